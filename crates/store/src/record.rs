//! A change as a database keeps it: key columns to search by, and the value itself as JSON.
//!
//! Encoding is the costly part of a commit, so it happens where the commit is asked for, never where it is written.
//! The columns only repeat what the value says; a row in which they disagree is damaged.

use abide_domain::{
    delivery::{Delivery, DeliveryStatus},
    effect::Owed,
    event::{Claim, Event},
    id::RunId,
    inbound::Inbound,
    interaction::Interaction,
    run::{Run, Status},
    slots::Occupancy,
    time::{Stamp, Timestamp},
    turn::Turn,
};
use abide_ports::store::{Change, Commit, Entry, Seq, StoreError, Tables};
use crc32fast::Hasher;
use serde::{Serialize, de::DeserializeOwned};

/// One change of a commit.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) run_id: RunId,
    /// The revision that must be found.
    pub(crate) expected: u64,
    pub(crate) entry: EntryRow,
    pub(crate) rows: TableRows,
    pub(crate) settled: Vec<i64>,
}

/// Rows of one run, as far as they are to be written.
#[derive(Debug)]
pub(crate) struct TableRows {
    /// The run's id as text, which all of its rows bear.
    pub(crate) run: String,
    pub(crate) state: Option<(RunKeys, String)>,
    /// By channel and message id.
    pub(crate) inbound: Vec<(String, String, String)>,
    pub(crate) turns: Vec<(String, String)>,
    pub(crate) interactions: Vec<(String, InteractionKeys, String)>,
    pub(crate) deliveries: Vec<(String, DeliveryKeys, String)>,
    pub(crate) owed: Vec<(i64, String)>,
    pub(crate) claims: Vec<Claim>,
}

/// An entry of the journal before it has a place there.
#[derive(Debug)]
pub(crate) struct EntryRow {
    pub(crate) revision: i64,
    pub(crate) at: i64,
    pub(crate) fresh: String,
    pub(crate) event: String,
    digest: Hasher,
}

/// An entry as it was found.
pub(crate) struct FoundEntry<'a> {
    pub(crate) seq: i64,
    pub(crate) run_id: &'a str,
    pub(crate) revision: i64,
    pub(crate) at: i64,
    pub(crate) fresh: &'a str,
    pub(crate) event: &'a str,
    pub(crate) checksum: i64,
}

/// What a run is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunKeys {
    pub(crate) revision: i64,
    pub(crate) status: &'static str,
    pub(crate) deadline_at: Option<i64>,
    pub(crate) occupies: bool,
}

/// What a question is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InteractionKeys {
    pub(crate) open: bool,
}

/// What a delivery is found by.
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
            occupies: run.occupancy() != Occupancy::None,
        }
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

/// The records of a commit.
#[cfg(feature = "postgres")]
pub(crate) fn records(commit: &Commit) -> Result<Vec<Record>, StoreError> {
    commit.changes.iter().map(Record::of).collect()
}

/// The same records with nothing in them that a later change of the same commit writes over: what a run became is
/// written once, with the first of its changes, so that a conflict is found before anything else is written.
#[cfg(feature = "sqlite")]
pub(crate) fn merged_records(commit: &Commit) -> Result<Vec<Record>, StoreError> {
    let goes_on = |one: &Change, next: &Change| {
        one.run.run_id == next.run.run_id && next.run.revision == one.run.revision + 1
    };
    let mut merged = Vec::with_capacity(commit.changes.len());
    for stretch in commit.changes.chunk_by(goes_on) {
        match stretch {
            [change] => merged.push(Record::of(change)?),
            [..] => merge(stretch, &mut merged)?,
        }
    }
    Ok(merged)
}

/// The records of consecutive changes of one run.
#[cfg(feature = "sqlite")]
fn merge(stretch: &[Change], merged: &mut Vec<Record>) -> Result<(), StoreError> {
    let Some(last) = stretch.last().map(|change| &*change.run) else { return Ok(()) };
    for (place, change) in stretch.iter().enumerate() {
        let (earlier, later) = (&stretch[..place], &stretch[place + 1..]);
        let is_last = |has: &dyn Fn(&Change) -> bool| !later.iter().any(has);
        let settled_later = |number| later.iter().any(|change| change.settled.contains(&number));
        let new_here =
            |number| earlier.iter().any(|change| change.owed.iter().any(|owed| owed.number == number));
        let kept = &change.rows;
        let rows = TableRows {
            run: last.run_id.to_string(),
            state: if place == 0 { Some((RunKeys::of(last), json(last)?)) } else { None },
            inbound: kept
                .inbound
                .iter()
                .filter(|row| {
                    is_last(&|it| it.rows.inbound.iter().any(|it| it.message.key == row.message.key))
                })
                .map(inbound)
                .collect::<Result<_, _>>()?,
            turns: kept
                .turns
                .iter()
                .filter(|row| is_last(&|it| it.rows.turns.iter().any(|it| it.turn_id == row.turn_id)))
                .map(turn)
                .collect::<Result<_, _>>()?,
            interactions: kept
                .interactions
                .iter()
                .filter(|row| {
                    is_last(&|it| {
                        it.rows.interactions.iter().any(|it| it.interaction_id == row.interaction_id)
                    })
                })
                .map(interaction)
                .collect::<Result<_, _>>()?,
            deliveries: kept
                .deliveries
                .iter()
                .filter(|row| {
                    is_last(&|it| it.rows.deliveries.iter().any(|it| it.delivery_id == row.delivery_id))
                })
                .map(delivery)
                .collect::<Result<_, _>>()?,
            owed: change
                .owed
                .iter()
                .filter(|row| !settled_later(row.number))
                .map(owed)
                .collect::<Result<_, _>>()?,
            claims: change.claims(),
        };
        let entry = EntryRow::of(&rows.run, change.run.revision, &change.stamp, &change.event)?;
        let expected = before_revision(&change.run)?;
        let settled = change.settled.iter().filter(|number| !new_here(**number));
        let settled = settled.map(|effect| i64::from(effect.0)).collect();
        merged.push(Record { run_id: last.run_id, expected, entry, rows, settled });
    }
    Ok(())
}

fn before_revision(run: &Run) -> Result<u64, StoreError> {
    run.revision.checked_sub(1).ok_or_else(|| StoreError::Invalid { what: "revision 0".to_owned() })
}

impl Record {
    fn of(change: &Change) -> Result<Self, StoreError> {
        let run = &*change.run;
        let expected = before_revision(run)?;
        let rows = TableRows {
            run: run.run_id.to_string(),
            state: Some((RunKeys::of(run), json(run)?)),
            inbound: change.rows.inbound.iter().map(inbound).collect::<Result<_, _>>()?,
            turns: change.rows.turns.iter().map(turn).collect::<Result<_, _>>()?,
            interactions: change.rows.interactions.iter().map(interaction).collect::<Result<_, _>>()?,
            deliveries: change.rows.deliveries.iter().map(delivery).collect::<Result<_, _>>()?,
            owed: change.owed.iter().map(owed).collect::<Result<_, _>>()?,
            claims: change.claims(),
        };
        let entry = EntryRow::of(&rows.run, run.revision, &change.stamp, &change.event)?;
        let settled = change.settled.iter().map(|effect| i64::from(effect.0)).collect();
        Ok(Self { run_id: run.run_id, expected, entry, rows, settled })
    }
}

impl TableRows {
    /// All rows of a run.
    pub(crate) fn of(run: RunId, tables: &Tables) -> Result<Self, StoreError> {
        let state = tables.run.as_ref().map(|run| Ok((RunKeys::of(run), json(run)?)));
        Ok(Self {
            run: run.to_string(),
            state: state.transpose()?,
            inbound: tables.inbound.values().map(inbound).collect::<Result<_, _>>()?,
            turns: tables.turns.values().map(turn).collect::<Result<_, _>>()?,
            interactions: tables.interactions.values().map(interaction).collect::<Result<_, _>>()?,
            deliveries: tables.deliveries.values().map(delivery).collect::<Result<_, _>>()?,
            owed: tables.owed.values().map(owed).collect::<Result<_, _>>()?,
            claims: tables.claims.clone(),
        })
    }
}

impl EntryRow {
    fn of(run: &str, revision: u64, stamp: &Stamp, event: &Event) -> Result<Self, StoreError> {
        let (revision, at) = (number(revision), stamp.at.0);
        let (fresh, event) = (stamp.fresh.to_string(), json(event)?);
        let digest = digest(run, revision, at, &fresh, &event);
        Ok(Self { revision, at, fresh, event, digest })
    }

    /// The checksum, once the place is known: an entry that was moved is as wrong as one that was changed.
    pub(crate) fn checksum(&self, seq: i64) -> i64 {
        placed(self.digest.clone(), seq)
    }
}

impl FoundEntry<'_> {
    /// The entry, if it is as it was written.
    pub(crate) fn check(&self) -> Result<Entry, StoreError> {
        let damaged =
            |how: &str| StoreError::Damaged { what: format!("entry {} of the journal {how}", self.seq) };
        let digest = digest(self.run_id, self.revision, self.at, self.fresh, self.event);
        if placed(digest, self.seq) != self.checksum {
            return Err(damaged("does not match its checksum"));
        }
        let unreadable = |_| damaged("has an id that is none");
        Ok(Entry {
            seq: Seq(self.seq as u64),
            run_id: self.run_id.parse().map_err(unreadable)?,
            revision: self.revision as u64,
            stamp: Stamp { at: Timestamp(self.at), fresh: self.fresh.parse().map_err(unreadable)? },
            event: serde_json::from_str(self.event)
                .map_err(|error| damaged(&format!("holds an event that cannot be read ({error})")))?,
        })
    }
}

/// What a row holds. The name is for the message if that cannot be read.
pub(crate) fn value<T: DeserializeOwned>(table: &str, id: &str, body: &str) -> Result<T, StoreError> {
    serde_json::from_str(body).map_err(|error| damaged_row(table, id, &format!("cannot be read ({error})")))
}

/// A row whose columns and value disagree.
pub(crate) fn agree<K: PartialEq>(table: &str, id: &str, found: &K, told: &K) -> Result<(), StoreError> {
    if found == told { Ok(()) } else { Err(damaged_row(table, id, "is filed under what it does not say")) }
}

/// An id that a table holds.
pub(crate) fn id<Id: std::str::FromStr>(table: &str, text: &str) -> Result<Id, StoreError> {
    text.parse().map_err(|_| damaged_row(table, text, "has an id that is none"))
}

/// Runs by status, off the index alone. Both databases understand it.
pub(crate) const TALLY: &str = "SELECT status, COUNT(*) FROM runs GROUP BY status";

/// A status that a table holds.
pub(crate) fn status(name: &str) -> Result<Status, StoreError> {
    let word = serde_json::Value::from(name);
    serde_json::from_value(word).map_err(|_| damaged_row("runs", name, "has a status that is none"))
}

fn damaged_row(table: &str, id: &str, how: &str) -> StoreError {
    StoreError::Damaged { what: format!("row {id} of {table} {how}") }
}

/// A count as databases have them. Nothing here ever gets near the limit.
pub(crate) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// How many rows to ask for.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn inbound(row: &Inbound) -> Result<(String, String, String), StoreError> {
    let key = row.message.key.clone();
    Ok((key.channel, key.message_id, json(row)?))
}

fn turn(row: &Turn) -> Result<(String, String), StoreError> {
    Ok((row.turn_id.to_string(), json(row)?))
}

fn interaction(row: &Interaction) -> Result<(String, InteractionKeys, String), StoreError> {
    Ok((row.interaction_id.to_string(), InteractionKeys::of(row), json(row)?))
}

fn delivery(row: &Delivery) -> Result<(String, DeliveryKeys, String), StoreError> {
    Ok((row.delivery_id.to_string(), DeliveryKeys::of(row), json(row)?))
}

fn owed(row: &Owed) -> Result<(i64, String), StoreError> {
    Ok((i64::from(row.number.0), json(row)?))
}

fn json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    let invalid =
        |error: String| StoreError::Invalid { what: format!("a value that JSON cannot hold ({error})") };
    // Room for most rows at once, rather than by growing.
    let mut text = Vec::with_capacity(2048);
    serde_json::to_writer(&mut text, value).map_err(|error| invalid(error.to_string()))?;
    String::from_utf8(text).map_err(|error| invalid(error.to_string()))
}

fn digest(run: &str, revision: i64, at: i64, fresh: &str, event: &str) -> Hasher {
    let mut digest = Hasher::new();
    digest.update(run.as_bytes());
    digest.update(&revision.to_le_bytes());
    digest.update(&at.to_le_bytes());
    digest.update(fresh.as_bytes());
    digest.update(event.as_bytes());
    digest
}

fn placed(mut digest: Hasher, seq: i64) -> i64 {
    digest.update(&seq.to_le_bytes());
    i64::from(digest.finalize())
}
