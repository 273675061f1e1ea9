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

use super::entry_pages::MAX_PAGE_BYTES;

/// Page size when turns are read.
const TURN_PAGE_ITEMS: usize = 200;

type AttemptExits = BTreeMap<Attempt, (ExitStatus, Option<Timestamp>)>;

/// Adds the exit to each attempt of these turns that is recorded with a later turn.
pub(super) async fn add_missing_exits(
    store: &dyn Store,
    run: RunId,
    turns: &mut [Turn],
) -> Result<(), StoreError> {
    let Some(attempt) = latest_attempt_without_exit(turns) else { return Ok(()) };
    let mut exits = attempt_exits(turns);
    let is_over = |state: &abide_domain::run::Run| state.attempt() != Some(attempt);
    if !exits.contains_key(&attempt) && store.run(run).await?.is_some_and(|state| is_over(&state)) {
        exits.extend(find_exit(store, run, attempt).await?);
    }
    let records = turns.iter_mut().flat_map(|turn| &mut turn.attempts).filter(|record| has_no_exit(record));
    for record in records {
        if let Some((exit, ended_at)) = exits.get(&record.attempt) {
            (record.exit, record.ended_at) = (Some(*exit), *ended_at);
        }
    }
    Ok(())
}

/// Attempts are numbered in the order of turns, so at most the latest one can end outside of a page.
fn latest_attempt_without_exit(turns: &[Turn]) -> Option<Attempt> {
    turns
        .iter()
        .flat_map(|turn| &turn.attempts)
        .filter(|record| has_no_exit(record))
        .map(|it| it.attempt)
        .max()
}

fn has_no_exit(record: &AttemptRecord) -> bool {
    record.process.is_some() && record.exit.is_none()
}

fn attempt_exits(turns: &[Turn]) -> AttemptExits {
    let records = turns.iter().flat_map(|turn| &turn.attempts);
    records.filter_map(|record| Some((record.attempt, (record.exit?, record.ended_at)))).collect()
}

/// Returns the exit of an attempt, if any turn records it.
async fn find_exit(store: &dyn Store, run: RunId, attempt: Attempt) -> Result<AttemptExits, StoreError> {
    let first = PageRequest::first(TURN_PAGE_ITEMS).with_max_bytes(MAX_PAGE_BYTES);
    let mut page = first.clone();
    loop {
        let listing = store.turns_of(run, page).await?;
        let mut exits = attempt_exits(&listing.items);
        exits.retain(|ended, _| *ended == attempt);
        match listing.next_cursor {
            Some(cursor) if exits.is_empty() => page = first.clone().after_cursor(cursor),
            Some(_) | None => return Ok(exits),
        }
    }
}
