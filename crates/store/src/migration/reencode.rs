//! The part of a re-encoding migration that does not depend on the database: the new text, checksum and chained checksum
//! of each entry, and the new text of each row.
//!
//! Damage stays visible. An entry that does not match its checksum keeps its text and checksum, and an entry that does
//! not continue the chain does not continue the new one either. A row that cannot be decoded keeps its text.

use abide_ports::store::StoreError;

use super::first_names;
use crate::{chain, record::StoredEntry};

/// The number of entries or rows that are read at once.
pub(crate) const PAGE_ROWS: i64 = 500;

/// The tables whose rows have a re-encoded body, with their key columns.
pub(crate) const BODY_TABLES: [(&str, &str); 4] = [
    ("runs", "run_id"),
    ("turns", "turn_id"),
    ("interactions", "interaction_id"),
    ("deliveries", "delivery_id"),
];

/// The new form of a journal entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReencodedEntry {
    pub(crate) event: String,
    pub(crate) checksum: i64,
    pub(crate) chain: Option<i64>,
}

/// Re-encodes a journal, entry by entry from the first.
#[derive(Debug, Default)]
pub(crate) struct JournalReencoder {
    old_chain: i64,
    new_chain: i64,
}

impl JournalReencoder {
    /// The new form of the next entry. Fails if the entry is intact but cannot be decoded.
    pub(crate) fn next(
        &mut self,
        old: &StoredEntry<'_>,
        chain: Option<i64>,
    ) -> Result<ReencodedEntry, StoreError> {
        let (event, checksum) = if old.has_valid_checksum() {
            let event = first_names::reencode_event(old.event).map_err(|error| StoreError::Damaged {
                detail: format!("entry {} of the journal cannot be migrated ({error})", old.seq),
            })?;
            let checksum = StoredEntry { event: &event, ..*old }.expected_checksum();
            (event, checksum)
        } else {
            (old.event.to_owned(), old.checksum)
        };
        let Some(chain) = chain else {
            // Entries of versions before the chain have none, and the chain starts after them.
            *self = Self::default();
            return Ok(ReencodedEntry { event, checksum, chain: None });
        };
        let is_continued = chain::next(self.old_chain, old.checksum) == chain;
        let next = chain::next(self.new_chain, checksum);
        self.old_chain = chain;
        self.new_chain = if is_continued { next } else { !next };
        Ok(ReencodedEntry { event, checksum, chain: Some(self.new_chain) })
    }

    /// The chained checksums of the last entry, before and after. 0 stands for none.
    #[cfg(feature = "postgres")]
    pub(crate) fn last_chains(&self) -> (i64, i64) {
        (self.old_chain, self.new_chain)
    }
}

/// The new body of a row, or none if it cannot be decoded.
pub(crate) fn reencode_body(table: &str, old: &str) -> Option<String> {
    first_names::reencode_body(table, old).ok()
}
