//! The invariants of a home in which every scenario has ended.

use std::{collections::BTreeMap, time::Duration};

use abide_domain::run::RunStatus;
use abide_ports::store::{JournalSeq, PageRequest, Store, StoreError};
use abide_store::{registry, upkeep};
use abide_testkit::daemon::{DaemonExit, EventReader, SeenEvent, TestDaemon, TestHome};

use super::scene::nap;
use crate::tally::CrashCounters;

/// The maximum number of polls for a condition, 50 ms apart.
const LOOKS: usize = 600;
/// The number of consecutive checks without a change after which the home is quiet.
const QUIET_LOOKS: usize = 6;

/// Checks all invariants and returns the violations.
pub(crate) fn look(
    home: &TestHome,
    feed: &EventReader,
    daemon: TestDaemon,
    tally: &mut CrashCounters,
) -> Vec<String> {
    let mut wrong = vec![];
    if !comes(|| home.keepers().is_empty()) {
        wrong.push(format!("keepers are left: {:?}", home.keepers()));
    }
    if !comes(|| slots_held(home) == Some(0)) {
        wrong.push(format!("slots are held: {:?}", slots_held(home)));
    }
    if !comes(|| is_quiet(home, feed)) {
        wrong.push(format!("a reader does not come to an end after {} events", feed.seen().len()));
    }
    let death = daemon.terminate();
    if death != DaemonExit::Exited(Some(0)) {
        wrong.push(format!("the last daemon ended with {death:?}"));
    }
    if !comes(|| home.processes().is_empty()) {
        wrong.push(format!("processes are left: {:?}", home.processes()));
    }
    // On a busy machine the report of the last effect may be too late for the last daemon. The next daemon must process
    // it.
    if owes(home).unwrap_or(false) {
        tally.late += 1;
        let daemon = home.start();
        tally.starts += 1;
        if !comes(|| is_quiet(home, feed)) {
            wrong.push("what was left over is not carried out".to_owned());
        }
        daemon.terminate();
    }
    match journal(home, feed, tally) {
        Ok(more) => wrong.extend(more),
        Err(error) => wrong.push(format!("the store cannot be read: {error}")),
    }
    wrong
}

/// Whether effects are pending.
fn owes(home: &TestHome) -> Result<bool, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    runtime.block_on(async { Ok(!registry::open(&url(home)).await?.owed(None, 1).await?.is_empty()) })
}

fn url(home: &TestHome) -> String {
    format!("sqlite:{}", home.path().join("abide.db").display())
}

fn slots_held(home: &TestHome) -> Option<u64> {
    let status = home.client().ok()?.get("/v1/status").ok()?;
    status.body["slots_held"].as_u64()
}

/// Whether the home is quiet. The report of the last effect may come after all visible events.
fn is_quiet(home: &TestHome, feed: &EventReader) -> bool {
    let seen = feed.seen().len();
    (0..QUIET_LOOKS).all(|_| {
        nap(Duration::from_millis(50));
        has_read_everything(home, feed) == Some(true) && feed.seen().len() == seen
    })
}

fn has_read_everything(home: &TestHome, feed: &EventReader) -> Option<bool> {
    let last = feed.seen().last().map_or(0, |seen| seen.id);
    let later = home.client().ok()?.get(&format!("/v1/events?after={last}&limit=1")).ok()?;
    Some(later.body["items"].as_array()?.is_empty())
}

fn comes(wanted: impl Fn() -> bool) -> bool {
    for _ in 0..LOOKS {
        if wanted() {
            return true;
        }
        nap(Duration::from_millis(50));
    }
    false
}

/// Checks the journal itself, against its tables, and against the events read while it was written.
fn journal(
    home: &TestHome,
    feed: &EventReader,
    tally: &mut CrashCounters,
) -> Result<Vec<String>, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    runtime.block_on(async {
        let store = registry::open(&url(home)).await?;
        let mut wrong = vec![];
        let verification = upkeep::verify(&*store, |_| {}).await?;
        wrong.extend(verification.findings.iter().map(|finding| format!("journal: {finding}")));
        tally.events += verification.entries;
        wrong.extend(settled(&*store).await?);
        wrong.extend(ended(&*store).await?);
        wrong.extend(read_once(&*store, &feed.seen()).await?);
        Ok(wrong)
    })
}

/// No slot is held, no effect is pending and no question is open.
async fn settled(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut wrong = vec![];
    let held = store.occupying().await?;
    if !held.is_empty() {
        wrong.push(format!("runs hold or want slots: {held:?}"));
    }
    let owed = store.owed(None, 10).await?;
    if !owed.is_empty() {
        wrong.push(format!("orders are owed: {owed:?}"));
    }
    let open = store.open_interactions(PageRequest::first(10)).await?;
    if !open.items.is_empty() {
        wrong.push(format!("questions are open: {:?}", open.items));
    }
    Ok(wrong)
}

/// Each run, turn and launched process has a recorded end.
async fn ended(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut wrong = vec![];
    for run in store.runs(None, PageRequest::first(usize::MAX >> 8)).await?.items {
        match run.status() {
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled => {}
            RunStatus::Queued | RunStatus::Running | RunStatus::WaitingUser | RunStatus::Idle => {
                wrong.push(format!("{} is still {:?}", run.run_id, run.status()));
            }
        }
        // A sticky process is one attempt of several turns; its end is recorded in the last of them.
        let mut last = BTreeMap::new();
        for turn in store.turns_of(run.run_id, PageRequest::first(1_000)).await?.items {
            if turn.result_persisted_at.is_none() {
                let (run, number) = (run.run_id, turn.turn_index);
                wrong.push(format!("turn {number} of {run} is still {:?}", turn.execution_status));
            }
            let started = turn.attempts.into_iter().filter(|attempt| attempt.process.is_some());
            last.extend(started.map(|attempt| (attempt.attempt, attempt)));
        }
        for attempt in last.values().filter(|attempt| attempt.ended_at.is_none()) {
            wrong.push(format!("{} has an attempt without an end: {attempt:?}", run.run_id));
        }
    }
    Ok(wrong)
}

/// The events that a reader received across all restarts equal the journal, without gaps or repetitions.
async fn read_once(store: &dyn Store, seen: &[SeenEvent]) -> Result<Vec<String>, StoreError> {
    let entries = store.entries(JournalSeq(0), usize::MAX).await?;
    let written: Vec<(u64, String)> =
        entries.iter().map(|entry| (entry.seq.0, entry.run_id.to_string())).collect();
    let read: Vec<(u64, String)> = seen
        .iter()
        .map(|seen| (seen.id, seen.event["run_id"].as_str().unwrap_or_default().to_owned()))
        .collect();
    if written == read {
        return Ok(vec![]);
    }
    let differs = written.iter().zip(&read).find(|(written, read)| written != read);
    let (length, read) = (written.len(), read.len());
    Ok(vec![format!("a reader saw {read} events of {length}, first difference {differs:?}")])
}
