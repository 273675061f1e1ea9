//! The encoded rows of a commit, in one buffer.
//!
//! A commit has more than a dozen texts. Separate allocations would be made on one thread and freed on another, which
//! costs more than encoding.

use std::{fmt::Display, io::Write, ops::Index};

use abide_domain::{delivery::Delivery, inbound::Inbound, interaction::Interaction, turn::Turn};
use abide_ports::store::{RunChange, StoreError, StoreInputError};
use serde::Serialize;

use crate::record::{DeliveryKeys, EntryRow, InteractionKeys, hash_entry, to_db_integer};

/// The initial capacity in bytes, sufficient for most commits without growing.
const INITIAL_CAPACITY_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct RowText(String);

/// The range of one text in the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextRange {
    start: usize,
    end: usize,
}

impl Index<TextRange> for RowText {
    type Output = str;

    fn index(&self, range: TextRange) -> &str {
        &self.0[range.start..range.end]
    }
}

/// The buffer to which rows are encoded.
pub(crate) struct RowBuffer(Vec<u8>);

impl RowBuffer {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(INITIAL_CAPACITY_BYTES))
    }

    pub(crate) fn finish(self) -> Result<RowText, StoreError> {
        String::from_utf8(self.0)
            .map(RowText)
            .map_err(|error| encoding_error(&format!("the rows are not UTF-8: {error}")))
    }

    /// Appends a plain text.
    pub(crate) fn write_display(&mut self, word: impl Display) -> TextRange {
        let start = self.0.len();
        // Writing to memory cannot fail.
        let _ = write!(self.0, "{word}");
        TextRange { start, end: self.0.len() }
    }

    /// Appends a value as JSON.
    pub(crate) fn write_json(&mut self, value: &impl Serialize) -> Result<TextRange, StoreError> {
        let start = self.0.len();
        serde_json::to_writer(&mut self.0, value)
            .map_err(|error| encoding_error(&format!("the value cannot be encoded as JSON: {error}")))?;
        Ok(TextRange { start, end: self.0.len() })
    }

    pub(crate) fn write_inbound(
        &mut self,
        row: &Inbound,
    ) -> Result<(TextRange, TextRange, TextRange), StoreError> {
        let key = &row.message.key;
        Ok((self.write_display(&key.channel), self.write_display(&key.message_id), self.write_json(row)?))
    }

    pub(crate) fn write_turn(&mut self, row: &Turn) -> Result<(TextRange, TextRange), StoreError> {
        Ok((self.write_display(row.turn_id), self.write_json(row)?))
    }

    pub(crate) fn write_interaction(
        &mut self,
        row: &Interaction,
    ) -> Result<(TextRange, InteractionKeys, TextRange), StoreError> {
        Ok((self.write_display(row.interaction_id), InteractionKeys::of(row), self.write_json(row)?))
    }

    pub(crate) fn write_delivery(
        &mut self,
        row: &Delivery,
    ) -> Result<(TextRange, DeliveryKeys, TextRange), StoreError> {
        Ok((self.write_display(row.delivery_id), DeliveryKeys::of(row), self.write_json(row)?))
    }

    /// Encodes the journal entry of a change. `run` is the range of the run's id.
    pub(crate) fn write_entry(&mut self, run: TextRange, change: &RunChange) -> Result<EntryRow, StoreError> {
        let (revision, at) = (to_db_integer(change.run.revision), change.stamp.at.0);
        let (id_seed, event) = (self.write_display(change.stamp.id_seed), self.write_json(&change.event)?);
        let digest =
            hash_entry(self.bytes_of(run), revision, at, self.bytes_of(id_seed), self.bytes_of(event));
        Ok(EntryRow { revision, at, id_seed, event, digest })
    }

    fn bytes_of(&self, part: TextRange) -> &[u8] {
        &self.0[part.start..part.end]
    }
}

/// The error for a value that cannot be encoded.
pub(crate) fn encoding_error(detail: &str) -> StoreError {
    StoreError::Invalid(StoreInputError::Unencodable { detail: detail.to_owned() })
}
