//! The database form of a change: key columns for queries, and the value as JSON.
//!
//! Encoding is the expensive part of a commit. It is done by the caller and not by the writer. The columns repeat parts
//! of the value; a row in which they differ is damaged.

use abide_domain::{
    delivery::{Delivery, DeliveryStatus},
    effect::{EffectNumber, PendingEffect},
    event::KeyClaim,
    id::RunId,
    interaction::Interaction,
    run::{Run, RunStatus},
    slots::SlotOccupancy,
    time::{EventStamp, Timestamp},
};
use abide_ports::store::{JournalCommit, JournalEntry, JournalSeq, RunChange, RunTables, StoreError};
use crc32fast::Hasher;
use serde::de::DeserializeOwned;

use crate::row_buffer::{RowBuffer, RowText, TextRange, encoding_error};

/// The changes of one run in a commit. Rows that a later change overwrites are omitted.
#[derive(Debug)]
pub(crate) struct CommitRow {
    pub(crate) run_id: RunId,
    /// The revision that the store must have.
    pub(crate) expected_revision: u64,
    pub(crate) entries: Vec<EntryRow>,
    pub(crate) rows: TableRows,
}

/// The changed rows of one run, with their encoded texts.
#[derive(Debug)]
pub(crate) struct TableRows {
    pub(crate) text: RowText,
    /// The run's id, which is part of all its rows.
    pub(crate) run: TextRange,
    pub(crate) state: Option<(RunKeys, TextRange)>,
    /// Channel, message id and body.
    pub(crate) inbound: Vec<(TextRange, TextRange, TextRange)>,
    pub(crate) turns: Vec<(TextRange, TextRange)>,
    pub(crate) interactions: Vec<(TextRange, InteractionKeys, TextRange)>,
    pub(crate) deliveries: Vec<(TextRange, DeliveryKeys, TextRange)>,
    pub(crate) claims: Vec<KeyClaim>,
}

/// A journal entry before its position is known.
#[derive(Debug)]
pub(crate) struct EntryRow {
    pub(crate) revision: i64,
    pub(crate) at: i64,
    pub(crate) id_seed: TextRange,
    pub(crate) event: TextRange,
    pub(crate) digest: Hasher,
}

/// A stored journal entry.
#[derive(Clone, Copy)]
pub(crate) struct StoredEntry<'a> {
    pub(crate) seq: i64,
    pub(crate) run_id: &'a str,
    pub(crate) revision: i64,
    pub(crate) at: i64,
    pub(crate) id_seed: &'a str,
    pub(crate) event: &'a str,
    pub(crate) checksum: i64,
}

/// The indexed columns of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunKeys {
    pub(crate) revision: i64,
    pub(crate) status: &'static str,
    pub(crate) deadline_at: Option<i64>,
    pub(crate) activity: Option<i64>,
}

/// The indexed columns of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InteractionKeys {
    pub(crate) open: bool,
}

/// The indexed columns of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryKeys {
    pub(crate) conversation_ref: String,
    pub(crate) retry_pending: bool,
}

impl RunKeys {
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            revision: to_db_integer(run.revision),
            status: run.status().name(),
            deadline_at: run.deadline().map(|deadline| deadline.at.0),
            activity: activity(run),
        }
    }
}

/// Values of `runs.activity`: the run holds or waits for a slot, has pending effects, or both. NULL stands for neither.
pub(crate) const ACTIVITY_SLOT: i64 = 1;
pub(crate) const ACTIVITY_EFFECTS: i64 = 2;
pub(crate) const ACTIVITY_SLOT_AND_EFFECTS: i64 = ACTIVITY_SLOT + ACTIVITY_EFFECTS;

fn activity(run: &Run) -> Option<i64> {
    match (run.occupancy(), run.pending_effects.is_empty()) {
        (SlotOccupancy::None, true) => None,
        (SlotOccupancy::None, false) => Some(ACTIVITY_EFFECTS),
        (SlotOccupancy::Holding | SlotOccupancy::Queued(_), true) => Some(ACTIVITY_SLOT),
        (SlotOccupancy::Holding | SlotOccupancy::Queued(_), false) => Some(ACTIVITY_SLOT_AND_EFFECTS),
    }
}

impl InteractionKeys {
    pub(crate) fn of(interaction: &Interaction) -> Self {
        Self { open: interaction.is_open() }
    }
}

impl DeliveryKeys {
    pub(crate) fn of(delivery: &Delivery) -> Self {
        let unavailable = delivery.status == DeliveryStatus::DeliveryUnavailable;
        let conversation_ref = delivery.conversation_ref.clone();
        Self { conversation_ref, retry_pending: unavailable && !delivery.resent }
    }
}

/// The pending effects of these runs after a position, up to a limit.
pub(crate) fn pending_effects_after(
    runs: impl IntoIterator<Item = Run>,
    after: Option<(RunId, EffectNumber)>,
    limit: usize,
) -> Vec<(RunId, PendingEffect)> {
    let pending = runs
        .into_iter()
        .flat_map(|run| run.pending_effects.into_iter().map(move |pending| (run.run_id, pending)));
    pending
        .filter(|(run, pending)| after.is_none_or(|after| (*run, pending.number) > after))
        .take(limit)
        .collect()
}

/// The rows of a commit: one record for each sequence of consecutive changes of one run.
pub(crate) fn commit_rows(commit: &JournalCommit) -> Result<Vec<CommitRow>, StoreError> {
    let is_consecutive = |one: &RunChange, next: &RunChange| {
        one.run.run_id == next.run.run_id && next.run.revision == one.run.revision + 1
    };
    commit.changes.chunk_by(is_consecutive).map(CommitRow::of).collect()
}

impl CommitRow {
    /// The record of consecutive changes of one run.
    fn of(changes: &[RunChange]) -> Result<Self, StoreError> {
        let [first, ..] = changes else { return Err(encoding_error("the commit has no changes")) };
        let last = &*changes[changes.len() - 1].run;
        let expected = first
            .run
            .revision
            .checked_sub(1)
            .ok_or_else(|| encoding_error("the first change of the commit has the revision 0"))?;
        let mut buffer = RowBuffer::new();
        let run = buffer.write_display(last.run_id);
        let mut entries = Vec::with_capacity(changes.len());
        let mut ledger = LedgerRows::default();
        for (place, change) in changes.iter().enumerate() {
            entries.push(buffer.write_entry(run, change)?);
            let later = &changes[place + 1..];
            for row in change.inbound() {
                if !later.iter().any(|it| it.inbound().any(|it| it.message.key == row.message.key)) {
                    ledger.inbound.push(buffer.write_inbound(row)?);
                }
            }
            for row in change.turns() {
                if !later.iter().any(|it| it.turns().any(|it| it.turn_id == row.turn_id)) {
                    ledger.turns.push(buffer.write_turn(row)?);
                }
            }
            for row in change.interactions() {
                let same = |it: &Interaction| it.interaction_id == row.interaction_id;
                if !later.iter().any(|it| it.interactions().any(same)) {
                    ledger.interactions.push(buffer.write_interaction(row)?);
                }
            }
            for row in change.deliveries() {
                if !later.iter().any(|it| it.deliveries().any(|it| it.delivery_id == row.delivery_id)) {
                    ledger.deliveries.push(buffer.write_delivery(row)?);
                }
            }
        }
        let state = Some((RunKeys::of(last), buffer.write_json(last)?));
        let claims = changes.iter().flat_map(RunChange::claims).collect();
        let rows = ledger.rows(buffer.finish()?, run, state, claims);
        Ok(Self { run_id: last.run_id, expected_revision: expected, entries, rows })
    }

    /// The revision of the run after the record.
    #[cfg(feature = "postgres")]
    pub(crate) fn final_revision(&self) -> u64 {
        self.expected_revision + self.entries.len() as u64
    }
}

impl TableRows {
    /// All rows of a run.
    pub(crate) fn of(run: RunId, tables: &RunTables) -> Result<Self, StoreError> {
        let mut buffer = RowBuffer::new();
        let name = buffer.write_display(run);
        let state = match &tables.run {
            Some(run) => Some((RunKeys::of(run), buffer.write_json(run)?)),
            None => None,
        };
        let ledger = LedgerRows {
            inbound: tables
                .inbound
                .values()
                .map(|row| buffer.write_inbound(row))
                .collect::<Result<_, _>>()?,
            turns: tables.turns.values().map(|row| buffer.write_turn(row)).collect::<Result<_, _>>()?,
            interactions: tables
                .interactions
                .values()
                .map(|row| buffer.write_interaction(row))
                .collect::<Result<_, _>>()?,
            deliveries: tables
                .deliveries
                .values()
                .map(|row| buffer.write_delivery(row))
                .collect::<Result<_, _>>()?,
        };
        Ok(ledger.rows(buffer.finish()?, name, state, tables.claims.clone()))
    }

    pub(crate) fn run(&self) -> &str {
        &self.text[self.run]
    }
}

/// The rows of a run except its own, during encoding.
#[derive(Default)]
struct LedgerRows {
    inbound: Vec<(TextRange, TextRange, TextRange)>,
    turns: Vec<(TextRange, TextRange)>,
    interactions: Vec<(TextRange, InteractionKeys, TextRange)>,
    deliveries: Vec<(TextRange, DeliveryKeys, TextRange)>,
}

impl LedgerRows {
    fn rows(
        self,
        text: RowText,
        run: TextRange,
        state: Option<(RunKeys, TextRange)>,
        claims: Vec<KeyClaim>,
    ) -> TableRows {
        let Self { inbound, turns, interactions, deliveries } = self;
        TableRows { text, run, state, inbound, turns, interactions, deliveries, claims }
    }
}

impl EntryRow {
    /// The checksum. It includes the position, so that a moved entry is detected like a modified one.
    pub(crate) fn checksum(&self, seq: i64) -> i64 {
        checksum_at(self.digest.clone(), seq)
    }
}

impl StoredEntry<'_> {
    pub(crate) fn has_valid_checksum(&self) -> bool {
        self.expected_checksum() == self.checksum
    }

    /// The checksum that the entry's contents and position require.
    pub(crate) fn expected_checksum(&self) -> i64 {
        let (run, id_seed, event) = (self.run_id.as_bytes(), self.id_seed.as_bytes(), self.event.as_bytes());
        checksum_at(hash_entry(run, self.revision, self.at, id_seed, event), self.seq)
    }

    /// The entry, if its checksum is correct.
    pub(crate) fn check(&self) -> Result<JournalEntry, StoreError> {
        let damaged = |problem: &str| StoreError::Damaged {
            detail: format!("entry {} of the journal {problem}", self.seq),
        };
        if !self.has_valid_checksum() {
            return Err(damaged("does not match its checksum"));
        }
        let unreadable = |_| damaged("has an invalid id");
        Ok(JournalEntry {
            seq: JournalSeq(self.seq as u64),
            run_id: self.run_id.parse().map_err(unreadable)?,
            revision: self.revision as u64,
            stamp: EventStamp { at: Timestamp(self.at), id_seed: self.id_seed.parse().map_err(unreadable)? },
            event: serde_json::from_str(self.event)
                .map_err(|error| damaged(&format!("holds an event that cannot be read ({error})")))?,
        })
    }
}

/// Decodes a row's body. The table and id are for the error message.
pub(crate) fn decode_body<T: DeserializeOwned>(table: &str, id: &str, body: &str) -> Result<T, StoreError> {
    serde_json::from_str(body).map_err(|error| damaged_row(table, id, &format!("cannot be read ({error})")))
}

/// Returns an error if a row's columns do not match its body.
pub(crate) fn check_columns<K: PartialEq>(
    table: &str,
    id: &str,
    found: &K,
    expected: &K,
) -> Result<(), StoreError> {
    if found == expected {
        Ok(())
    } else {
        Err(damaged_row(table, id, "is inconsistent: its indexed columns do not match its body"))
    }
}

/// Parses an id of a table.
pub(crate) fn parse_id<Id: std::str::FromStr>(table: &str, text: &str) -> Result<Id, StoreError> {
    text.parse().map_err(|_| damaged_row(table, text, "has an invalid id"))
}

/// The number of runs per status, from the index alone. Valid in both SQL dialects.
pub(crate) const COUNT_BY_STATUS_SQL: &str = "SELECT status, COUNT(*) FROM runs GROUP BY status";

/// The chained checksum at the position $2, or the one from before the last migration if that is $1, the checksum of the
/// witness. Valid in both SQL dialects; SQLite numbers parameters by their first use.
pub(crate) const CHAIN_AT_WITNESS_SQL: &str = "
    SELECT CASE WHEN chain_before_names = $1 THEN chain_before_names ELSE coalesce(chain, 0) END
    FROM journal WHERE seq = $2";

/// Parses a status of a table.
pub(crate) fn parse_status(name: &str) -> Result<RunStatus, StoreError> {
    let word = serde_json::Value::from(name);
    serde_json::from_value(word).map_err(|_| damaged_row("runs", name, "has an invalid status"))
}

fn damaged_row(table: &str, id: &str, problem: &str) -> StoreError {
    StoreError::Damaged { detail: format!("row {id} of {table} {problem}") }
}

/// A count as a database integer. Counts never reach its limit.
pub(crate) fn to_db_integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A row limit as a database integer.
pub(crate) fn limit_to_db_integer(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The checksum input of an entry, without its position.
pub(crate) fn hash_entry(run: &[u8], revision: i64, at: i64, id_seed: &[u8], event: &[u8]) -> Hasher {
    let mut digest = Hasher::new();
    digest.update(run);
    digest.update(&revision.to_le_bytes());
    digest.update(&at.to_le_bytes());
    digest.update(id_seed);
    digest.update(event);
    digest
}

fn checksum_at(mut digest: Hasher, seq: i64) -> i64 {
    digest.update(&seq.to_le_bytes());
    i64::from(digest.finalize())
}
