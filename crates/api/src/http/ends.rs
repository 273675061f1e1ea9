//! Adds the exit of a process that served several turns to each of these turns.
//!
//! A run keeps only its latest turn in memory, so the exit of a held process is recorded with the last turn that it
//! served. The earlier rows of the same attempt are completed here when they are read.

use std::collections::BTreeMap;

use abide_domain::{
    id::RunId,
    process::{Attempt, ExitStatus},
    time::Timestamp,
    turn::{AttemptRecord, Turn},
};
use abide_ports::store::{PageRequest, Store, StoreError};

use super::pages::MAX_PAGE_BYTES;

/// Page size when turns are read.
const TURNS_AT_ONCE: usize = 200;

type AttemptExits = BTreeMap<Attempt, (ExitStatus, Option<Timestamp>)>;

/// Adds the exit to each attempt of these turns that is recorded with a later turn.
pub(super) async fn fill_in(store: &dyn Store, run: RunId, turns: &mut [Turn]) -> Result<(), StoreError> {
    let Some(wanted) = latest_open(turns) else { return Ok(()) };
    let mut ends = ends_of(turns);
    let is_over = |state: &abide_domain::run::Run| state.attempt() != Some(wanted);
    if !ends.contains_key(&wanted) && store.run(run).await?.is_some_and(|state| is_over(&state)) {
        ends.extend(find(store, run, wanted).await?);
    }
    let records = turns.iter_mut().flat_map(|turn| &mut turn.attempts).filter(|record| is_open(record));
    for record in records {
        if let Some((exit, ended_at)) = ends.get(&record.attempt) {
            (record.exit, record.ended_at) = (Some(*exit), *ended_at);
        }
    }
    Ok(())
}

/// Attempts are numbered in the order of turns, so at most the latest one can end outside of a page.
fn latest_open(turns: &[Turn]) -> Option<Attempt> {
    turns.iter().flat_map(|turn| &turn.attempts).filter(|record| is_open(record)).map(|it| it.attempt).max()
}

fn is_open(record: &AttemptRecord) -> bool {
    record.process.is_some() && record.exit.is_none()
}

fn ends_of(turns: &[Turn]) -> AttemptExits {
    let records = turns.iter().flat_map(|turn| &turn.attempts);
    records.filter_map(|record| Some((record.attempt, (record.exit?, record.ended_at)))).collect()
}

/// Returns the exit of an attempt, if any turn records it.
async fn find(store: &dyn Store, run: RunId, attempt: Attempt) -> Result<AttemptExits, StoreError> {
    let first = PageRequest::first(TURNS_AT_ONCE).within(MAX_PAGE_BYTES);
    let mut page = first.clone();
    loop {
        let listing = store.turns_of(run, page).await?;
        let mut ends = ends_of(&listing.items);
        ends.retain(|ended, _| *ended == attempt);
        match listing.next_cursor {
            Some(cursor) if ends.is_empty() => page = first.clone().at(cursor),
            Some(_) | None => return Ok(ends),
        }
    }
}
