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

use crate::pen::{RowBuffer, RowText, TextRange, invalid};

/// The changes of one run in a commit. Rows that a later change overwrites are omitted.
#[derive(Debug)]
pub(crate) struct CommitRow {
    pub(crate) run_id: RunId,
    /// The revision that the store must have.
    pub(crate) expected: u64,
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
    pub(crate) fresh: TextRange,
    pub(crate) event: TextRange,
    pub(crate) digest: Hasher,
}

/// A stored journal entry.
pub(crate) struct StoredEntry<'a> {
    pub(crate) seq: i64,
    pub(crate) run_id: &'a str,
    pub(crate) revision: i64,
    pub(crate) at: i64,
    pub(crate) fresh: &'a str,
    pub(crate) event: &'a str,
    pub(crate) checksum: i64,
}

/// The indexed columns of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunKeys {
    pub(crate) revision: i64,
    pub(crate) status: &'static str,
    pub(crate) deadline_at: Option<i64>,
    pub(crate) astir: Option<i64>,
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
    pub(crate) waiting: bool,
}

impl RunKeys {
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            revision: number(run.revision),
            status: run.status().name(),
            deadline_at: run.deadline().map(|deadline| deadline.at.0),
            astir: astir(run),
        }
    }
}

/// Values of `runs.astir`: the run holds or waits for a slot, has pending effects, or both. NULL stands for neither.
pub(crate) const OCCUPIES: i64 = 1;
pub(crate) const OWES: i64 = 2;
pub(crate) const BOTH: i64 = OCCUPIES + OWES;

fn astir(run: &Run) -> Option<i64> {
    match (run.occupancy(), run.owed.is_empty()) {
        (SlotOccupancy::None, true) => None,
        (SlotOccupancy::None, false) => Some(OWES),
        (SlotOccupancy::Holding | SlotOccupancy::Queued(_), true) => Some(OCCUPIES),
        (SlotOccupancy::Holding | SlotOccupancy::Queued(_), false) => Some(BOTH),
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
        Self { conversation_ref, waiting: unavailable && !delivery.resent }
    }
}

/// The pending effects of these runs after a position, up to a limit.
pub(crate) fn owed_after(
    runs: impl IntoIterator<Item = Run>,
    after: Option<(RunId, EffectNumber)>,
    most: usize,
) -> Vec<(RunId, PendingEffect)> {
    let owed = runs.into_iter().flat_map(|run| run.owed.into_iter().map(move |owed| (run.run_id, owed)));
    owed.filter(|(run, owed)| after.is_none_or(|after| (*run, owed.number) > after)).take(most).collect()
}

/// The rows of a commit: one record for each sequence of consecutive changes of one run.
pub(crate) fn records(commit: &JournalCommit) -> Result<Vec<CommitRow>, StoreError> {
    let goes_on = |one: &RunChange, next: &RunChange| {
        one.run.run_id == next.run.run_id && next.run.revision == one.run.revision + 1
    };
    commit.changes.chunk_by(goes_on).map(CommitRow::of).collect()
}

impl CommitRow {
    /// The record of consecutive changes of one run.
    fn of(stretch: &[RunChange]) -> Result<Self, StoreError> {
        let [first, ..] = stretch else { return Err(invalid("a commit of nothing")) };
        let last = &*stretch[stretch.len() - 1].run;
        let expected = first.run.revision.checked_sub(1).ok_or_else(|| invalid("revision 0"))?;
        let mut pen = RowBuffer::new();
        let run = pen.word(last.run_id);
        let mut entries = Vec::with_capacity(stretch.len());
        let mut ledger = LedgerRows::default();
        for (place, change) in stretch.iter().enumerate() {
            entries.push(pen.entry(run, change)?);
            let later = &stretch[place + 1..];
            for row in change.inbound() {
                if !later.iter().any(|it| it.inbound().any(|it| it.message.key == row.message.key)) {
                    ledger.inbound.push(pen.inbound(row)?);
                }
            }
            for row in change.turns() {
                if !later.iter().any(|it| it.turns().any(|it| it.turn_id == row.turn_id)) {
                    ledger.turns.push(pen.turn(row)?);
                }
            }
            for row in change.interactions() {
                let same = |it: &Interaction| it.interaction_id == row.interaction_id;
                if !later.iter().any(|it| it.interactions().any(same)) {
                    ledger.interactions.push(pen.interaction(row)?);
                }
            }
            for row in change.deliveries() {
                if !later.iter().any(|it| it.deliveries().any(|it| it.delivery_id == row.delivery_id)) {
                    ledger.deliveries.push(pen.delivery(row)?);
                }
            }
        }
        let state = Some((RunKeys::of(last), pen.json(last)?));
        let claims = stretch.iter().flat_map(RunChange::claims).collect();
        let rows = ledger.rows(pen.done()?, run, state, claims);
        Ok(Self { run_id: last.run_id, expected, entries, rows })
    }

    /// The revision of the run after the record.
    #[cfg(feature = "postgres")]
    pub(crate) fn reached(&self) -> u64 {
        self.expected + self.entries.len() as u64
    }
}

impl TableRows {
    /// All rows of a run.
    pub(crate) fn of(run: RunId, tables: &RunTables) -> Result<Self, StoreError> {
        let mut pen = RowBuffer::new();
        let name = pen.word(run);
        let state = match &tables.run {
            Some(run) => Some((RunKeys::of(run), pen.json(run)?)),
            None => None,
        };
        let ledger = LedgerRows {
            inbound: tables.inbound.values().map(|row| pen.inbound(row)).collect::<Result<_, _>>()?,
            turns: tables.turns.values().map(|row| pen.turn(row)).collect::<Result<_, _>>()?,
            interactions: tables
                .interactions
                .values()
                .map(|row| pen.interaction(row))
                .collect::<Result<_, _>>()?,
            deliveries: tables.deliveries.values().map(|row| pen.delivery(row)).collect::<Result<_, _>>()?,
        };
        Ok(ledger.rows(pen.done()?, name, state, tables.claims.clone()))
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
        placed(self.digest.clone(), seq)
    }
}

impl StoredEntry<'_> {
    /// The entry, if its checksum is correct.
    pub(crate) fn check(&self) -> Result<JournalEntry, StoreError> {
        let damaged =
            |how: &str| StoreError::Damaged { what: format!("entry {} of the journal {how}", self.seq) };
        let (run, fresh, event) = (self.run_id.as_bytes(), self.fresh.as_bytes(), self.event.as_bytes());
        let digest = digest(run, self.revision, self.at, fresh, event);
        if placed(digest, self.seq) != self.checksum {
            return Err(damaged("does not match its checksum"));
        }
        let unreadable = |_| damaged("has an id that is none");
        Ok(JournalEntry {
            seq: JournalSeq(self.seq as u64),
            run_id: self.run_id.parse().map_err(unreadable)?,
            revision: self.revision as u64,
            stamp: EventStamp { at: Timestamp(self.at), fresh: self.fresh.parse().map_err(unreadable)? },
            event: serde_json::from_str(self.event)
                .map_err(|error| damaged(&format!("holds an event that cannot be read ({error})")))?,
        })
    }
}

/// Decodes a row's body. The table and id are for the error message.
pub(crate) fn value<T: DeserializeOwned>(table: &str, id: &str, body: &str) -> Result<T, StoreError> {
    serde_json::from_str(body).map_err(|error| damaged_row(table, id, &format!("cannot be read ({error})")))
}

/// Returns an error if a row's columns do not match its body.
pub(crate) fn agree<K: PartialEq>(table: &str, id: &str, found: &K, told: &K) -> Result<(), StoreError> {
    if found == told { Ok(()) } else { Err(damaged_row(table, id, "is filed under what it does not say")) }
}

/// Parses an id of a table.
pub(crate) fn id<Id: std::str::FromStr>(table: &str, text: &str) -> Result<Id, StoreError> {
    text.parse().map_err(|_| damaged_row(table, text, "has an id that is none"))
}

/// The number of runs per status, from the index alone. Valid in both SQL dialects.
pub(crate) const TALLY: &str = "SELECT status, COUNT(*) FROM runs GROUP BY status";

/// Parses a status of a table.
pub(crate) fn status(name: &str) -> Result<RunStatus, StoreError> {
    let word = serde_json::Value::from(name);
    serde_json::from_value(word).map_err(|_| damaged_row("runs", name, "has a status that is none"))
}

fn damaged_row(table: &str, id: &str, how: &str) -> StoreError {
    StoreError::Damaged { what: format!("row {id} of {table} {how}") }
}

/// A count as a database integer. Counts never reach its limit.
pub(crate) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A row limit as a database integer.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The checksum input of an entry, without its position.
pub(crate) fn digest(run: &[u8], revision: i64, at: i64, fresh: &[u8], event: &[u8]) -> Hasher {
    let mut digest = Hasher::new();
    digest.update(run);
    digest.update(&revision.to_le_bytes());
    digest.update(&at.to_le_bytes());
    digest.update(fresh);
    digest.update(event);
    digest
}

fn placed(mut digest: Hasher, seq: i64) -> i64 {
    digest.update(&seq.to_le_bytes());
    i64::from(digest.finalize())
}
