//! Combines several commits to one set of rows. They are checked one by one and written together.
//!
//! Checks need no savepoints. The writer holds the lock on the head row, so rows that were read under the lock stay
//! valid until the commit.

use std::collections::{BTreeMap, HashMap};

use abide_domain::{event::KeyClaim, id::RunId};
use abide_ports::store::{ClaimHolder, CommitReceipt, JournalSeq, StoreError};

use crate::{
    chain::JournalHead,
    record::{CommitRow, DeliveryKeys, EntryRow, InteractionKeys, RunKeys, TableRows},
};

/// The current rows of the runs and keys that a batch concerns.
#[derive(Debug, Default)]
pub(super) struct BatchBaseline {
    pub(super) head: JournalHead,
    pub(super) revisions: HashMap<RunId, u64>,
    pub(super) claims: HashMap<(String, String), ClaimHolder>,
}

/// The rows of all accepted commits. If a row is written several times, the last version remains.
#[derive(Debug, Default)]
pub(super) struct MergedRows<'a> {
    pub(super) entries: Vec<PlacedEntry<'a>>,
    pub(super) runs: BTreeMap<&'a str, (&'a RunKeys, &'a str)>,
    pub(super) inbound: BTreeMap<(&'a str, &'a str), (&'a str, &'a str)>,
    pub(super) turns: BTreeMap<&'a str, (&'a str, &'a str)>,
    pub(super) interactions: BTreeMap<&'a str, (&'a str, &'a InteractionKeys, &'a str)>,
    pub(super) deliveries: BTreeMap<&'a str, (&'a str, &'a DeliveryKeys, &'a str)>,
    pub(super) claims: Vec<(&'a KeyClaim, &'a str)>,
}

/// An entry with its position in the journal.
#[derive(Debug)]
pub(super) struct PlacedEntry<'a> {
    pub(super) rows: &'a TableRows,
    pub(super) entry: &'a EntryRow,
    pub(super) checksum: i64,
    /// The head of the journal after this entry.
    pub(super) head: JournalHead,
}

impl<'a> MergedRows<'a> {
    /// Adds a commit, or returns the reason for its refusal and changes nothing.
    pub(super) fn add_commit(
        &mut self,
        baseline: &mut BatchBaseline,
        records: &'a [CommitRow],
    ) -> Result<CommitReceipt, StoreError> {
        check_commit(baseline, records)?;
        for record in records {
            baseline.revisions.insert(record.run_id, record.final_revision());
            for claim in &record.rows.claims {
                let holder = ClaimHolder { run_id: record.run_id, fingerprint: claim.fingerprint.clone() };
                baseline.claims.insert((claim.scope.clone(), claim.key.clone()), holder);
            }
            for entry in &record.entries {
                let checksum = entry.checksum(baseline.head.seq + 1);
                baseline.head = baseline.head.next(checksum);
                self.entries.push(PlacedEntry { rows: &record.rows, entry, checksum, head: baseline.head });
            }
            self.add_rows(&record.rows);
        }
        Ok(CommitReceipt { last: JournalSeq(baseline.head.seq as u64) })
    }

    /// Adds rows without checks.
    pub(super) fn add_rows(&mut self, rows: &'a TableRows) {
        let (run, text) = (rows.run(), &rows.text);
        self.claims.extend(rows.claims.iter().map(|claim| (claim, run)));
        self.runs.extend(rows.state.iter().map(|(keys, body)| (run, (keys, &text[*body]))));
        for (channel, message, body) in &rows.inbound {
            self.inbound.insert((&text[*channel], &text[*message]), (run, &text[*body]));
        }
        for (turn, body) in &rows.turns {
            self.turns.insert(&text[*turn], (run, &text[*body]));
        }
        for (interaction, keys, body) in &rows.interactions {
            self.interactions.insert(&text[*interaction], (run, keys, &text[*body]));
        }
        for (delivery, keys, body) in &rows.deliveries {
            self.deliveries.insert(&text[*delivery], (run, keys, &text[*body]));
        }
    }
}

impl MergedRows<'_> {
    /// Whether there is anything to write.
    pub(super) fn has_rows(&self) -> bool {
        !(self.runs.is_empty()
            && self.inbound.is_empty()
            && self.turns.is_empty()
            && self.interactions.is_empty()
            && self.deliveries.is_empty()
            && self.claims.is_empty())
    }
}

fn check_commit(baseline: &BatchBaseline, records: &[CommitRow]) -> Result<(), StoreError> {
    let mut revisions: HashMap<RunId, u64> = HashMap::new();
    let mut claims: HashMap<(&str, &str), ClaimHolder> = HashMap::new();
    for record in records {
        let CommitRow { run_id, expected_revision: expected, .. } = *record;
        let stored = || baseline.revisions.get(&run_id).copied().unwrap_or(0);
        let found = revisions.get(&run_id).copied().unwrap_or_else(stored);
        if found != expected {
            return Err(StoreError::Conflict { run_id, expected, found });
        }
        revisions.insert(run_id, record.final_revision());
        for KeyClaim { scope, key, fingerprint } in &record.rows.claims {
            let stored = baseline.claims.get(&(scope.clone(), key.clone()));
            if let Some(holder) = stored.or_else(|| claims.get(&(scope.as_str(), key.as_str()))).cloned() {
                return Err(StoreError::KeyTaken { scope: scope.clone(), key: key.clone(), holder });
            }
            claims.insert((scope, key), ClaimHolder { run_id, fingerprint: fingerprint.clone() });
        }
    }
    Ok(())
}
