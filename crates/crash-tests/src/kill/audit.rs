//! The invariants of a home in which every scenario has ended.

use std::{collections::BTreeMap, time::Duration};

use abide_domain::run::RunStatus;
use abide_ports::store::{JournalSeq, PageRequest, Store, StoreError};
use abide_store::{registry, verification};
use abide_testkit::daemon::{DaemonExit, EventReader, SeenEvent, TestDaemon, TestHome};

use crate::counters::CrashCounters;
use abide_testkit::wait::sleep;

/// The maximum number of polls for a condition, 50 ms apart.
const MAX_POLLS: usize = 600;
/// The number of consecutive checks without a change after which the home is quiet.
const QUIET_POLLS: usize = 6;

/// Checks all invariants and returns the violations.
pub(crate) fn check_home(
    home: &TestHome,
    feed: &EventReader,
    daemon: TestDaemon,
    counters: &mut CrashCounters,
) -> Vec<String> {
    let mut violations = vec![];
    if !poll_until(|| home.keepers().is_empty()) {
        violations.push(format!("keepers are left: {:?}", home.keepers()));
    }
    if !poll_until(|| slots_held(home) == Some(0)) {
        violations.push(format!("slots are held: {:?}", slots_held(home)));
    }
    if !poll_until(|| is_quiet(home, feed)) {
        violations.push(format!("a reader does not come to an end after {} events", feed.events().len()));
    }
    let death = daemon.terminate();
    if death != DaemonExit::Exited(Some(0)) {
        violations.push(format!("the last daemon ended with {death:?}"));
    }
    if !poll_until(|| home.processes().is_empty()) {
        violations.push(format!("processes are left: {:?}", home.processes()));
    }
    // On a busy machine the report of the last effect may be too late for the last daemon, or its event too late for the
    // reader. The next daemon must process the effect and serve the event.
    if has_pending_effects(home).unwrap_or(false) || has_unread_events(home, feed).unwrap_or(false) {
        counters.leftover_effects += 1;
        let daemon = home.try_start(&[]);
        counters.starts += 1;
        if !poll_until(|| is_quiet(home, feed)) {
            violations.push("pending effects are not performed".to_owned());
        }
        daemon.terminate();
    }
    match check_journal(home, feed, counters) {
        Ok(more) => violations.extend(more),
        Err(error) => violations.push(format!("the store cannot be read: {error}")),
    }
    violations
}

/// Whether effects are pending.
fn has_pending_effects(home: &TestHome) -> Result<bool, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    runtime
        .block_on(async { Ok(!registry::open(&url(home)).await?.pending_effects(None, 1).await?.is_empty()) })
}

/// Whether the journal has events that the reader has not received.
fn has_unread_events(home: &TestHome, feed: &EventReader) -> Result<bool, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    let last = JournalSeq(feed.events().last().map_or(0, |event| event.id));
    runtime.block_on(async { Ok(!registry::open(&url(home)).await?.entries(last, 1).await?.is_empty()) })
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
    let seen = feed.events().len();
    (0..QUIET_POLLS).all(|_| {
        sleep(Duration::from_millis(50));
        has_read_everything(home, feed) == Some(true) && feed.events().len() == seen
    })
}

fn has_read_everything(home: &TestHome, feed: &EventReader) -> Option<bool> {
    let last = feed.events().last().map_or(0, |seen| seen.id);
    let later = home.client().ok()?.get(&format!("/v1/events?after={last}&limit=1")).ok()?;
    Some(later.body["items"].as_array()?.is_empty())
}

fn poll_until(condition: impl Fn() -> bool) -> bool {
    for _ in 0..MAX_POLLS {
        if condition() {
            return true;
        }
        sleep(Duration::from_millis(50));
    }
    false
}

/// Checks the journal itself, against its tables, and against the events read while it was written.
fn check_journal(
    home: &TestHome,
    feed: &EventReader,
    counters: &mut CrashCounters,
) -> Result<Vec<String>, StoreError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
    runtime.block_on(async {
        let store = registry::open(&url(home)).await?;
        let mut violations = vec![];
        let verification = verification::verify(&*store, |_| {}).await?;
        violations.extend(verification.findings.iter().map(|finding| format!("journal: {finding}")));
        counters.events += verification.entries;
        violations.extend(check_nothing_pending(&*store).await?);
        violations.extend(check_all_ended(&*store).await?);
        violations.extend(check_events_read_once(&*store, &feed.events()).await?);
        Ok(violations)
    })
}

/// No slot is held, no effect is pending and no question is open.
async fn check_nothing_pending(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut violations = vec![];
    let held = store.slot_occupancies().await?;
    if !held.is_empty() {
        violations.push(format!("runs hold or want slots: {held:?}"));
    }
    let owed = store.pending_effects(None, 10).await?;
    if !owed.is_empty() {
        violations.push(format!("orders are owed: {owed:?}"));
    }
    let open = store.open_interactions(PageRequest::first(10)).await?;
    if !open.items.is_empty() {
        violations.push(format!("questions are open: {:?}", open.items));
    }
    Ok(violations)
}

/// Each run, turn and launched process has a recorded end.
async fn check_all_ended(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut violations = vec![];
    for run in store.runs(None, PageRequest::first(usize::MAX >> 8)).await?.items {
        match run.status() {
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled => {}
            RunStatus::Queued | RunStatus::Running | RunStatus::WaitingUser | RunStatus::Idle => {
                violations.push(format!("{} is still {:?}", run.run_id, run.status()));
            }
        }
        // A sticky process is one attempt of several turns; its end is recorded in the last of them.
        let mut last = BTreeMap::new();
        for turn in store.turns_of(run.run_id, PageRequest::first(1_000)).await?.items {
            if turn.result_persisted_at.is_none() {
                let (run, number) = (run.run_id, turn.turn_index);
                violations.push(format!("turn {number} of {run} is still {:?}", turn.execution_status));
            }
            let started = turn.attempts.into_iter().filter(|attempt| attempt.process.is_some());
            last.extend(started.map(|attempt| (attempt.attempt, attempt)));
        }
        for attempt in last.values().filter(|attempt| attempt.ended_at.is_none()) {
            violations.push(format!("{} has an attempt without an end: {attempt:?}", run.run_id));
        }
    }
    Ok(violations)
}

/// The events that a reader received across all restarts equal the journal, without gaps or repetitions.
async fn check_events_read_once(store: &dyn Store, seen: &[SeenEvent]) -> Result<Vec<String>, StoreError> {
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
