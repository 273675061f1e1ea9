//! The crash guard alone: counting, quarantine, and the end of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_daemon::{CrashGuard, CrashGuardDecision, GuardPauses, GuardedEffect};
use abide_ports::crash_log::{CrashGuardState, CrashLog, CrashLogContents};
use abide_testkit::clock::FakeClock;

/// A crash log that outlives daemons.
#[derive(Default)]
struct CrashLogFixture(Mutex<(BTreeMap<usize, String>, CrashGuardState)>);

impl CrashLog for CrashLogFixture {
    fn begin(&self, item: &str) -> usize {
        let mut record = self.0.lock().expect("no test panics with it");
        let place = (0..).find(|place| !record.0.contains_key(place)).expect("there is room");
        record.0.insert(place, item.to_owned());
        place
    }

    fn end(&self, place: usize) {
        self.0.lock().expect("no test panics with it").0.remove(&place);
    }

    fn save(&self, state: &CrashGuardState) {
        self.0.lock().expect("no test panics with it").1 = state.clone();
    }

    fn close(&self) {
        self.0.lock().expect("no test panics with it").0.clear();
    }
}

/// A crash log and a clock for several consecutive daemons.
struct GuardFixture {
    record: Arc<CrashLogFixture>,
    clock: Arc<FakeClock>,
}

impl GuardFixture {
    fn new() -> Self {
        Self { record: Arc::default(), clock: Arc::new(FakeClock::new()) }
    }

    /// Starts the next daemon with the records of the last one.
    fn start(&self) -> CrashGuard {
        let remains = {
            let record = self.record.0.lock().expect("no test panics with it");
            CrashLogContents { in_flight: record.0.values().cloned().collect(), state: record.1.clone() }
        };
        let guard =
            CrashGuard::open(self.record.clone(), remains, self.clock.clone(), GuardPauses::default());
        self.record.close();
        guard
    }

    /// Simulates a daemon that crashes while it executes these tasks.
    async fn dies_of(&self, items: &[&str]) {
        let guard = self.start();
        guard.ready();
        for item in items {
            // A crashed process drops nothing.
            std::mem::forget(admitted(&guard, item).await);
        }
    }

    fn pass(&self, seconds: u32) {
        self.clock.advance(i64::from(seconds) * 1_000_000);
    }
}

async fn admitted(guard: &CrashGuard, item: &str) -> GuardedEffect {
    match guard.admit(item).await {
        CrashGuardDecision::Now(mut effect) => {
            effect.begin();
            effect
        }
        CrashGuardDecision::Later(wait) => panic!("{item} has to wait for {wait:?}"),
    }
}

async fn waits(guard: &CrashGuard, item: &str) -> Option<Duration> {
    match guard.admit(item).await {
        CrashGuardDecision::Now(_) => None,
        // The fake clock advances a little with each reading.
        CrashGuardDecision::Later(wait) => Some(Duration::from_secs(wait.as_secs_f64().round() as u64)),
    }
}

fn names(guard: &CrashGuard) -> Vec<(String, u32)> {
    guard.set_aside().into_iter().map(|suspect| (suspect.item, suspect.deaths)).collect()
}

#[tokio::test]
async fn three_deaths_in_a_row_set_something_aside_and_nothing_else() {
    let machine = GuardFixture::new();
    for _ in 0..2 {
        machine.dies_of(&["effect a"]).await;
    }
    let guard = machine.start();
    assert_eq!((names(&guard), waits(&guard, "effect a").await), (vec![], None), "two are chance");
    machine.dies_of(&["effect a"]).await;
    let guard = machine.start();
    assert_eq!(names(&guard), [("effect a".to_owned(), 3)]);
    assert_eq!(waits(&guard, "effect a").await, Some(Duration::from_secs(60)));
    assert_eq!(waits(&guard, "effect b").await, None);
}

#[tokio::test]
async fn the_pause_grows_from_a_minute_to_an_hour_and_a_success_ends_it() {
    let machine = GuardFixture::new();
    for _ in 0..2 {
        machine.dies_of(&["effect a"]).await;
    }
    for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
        machine.dies_of(&["effect a"]).await;
        let guard = machine.start();
        guard.ready();
        assert_eq!(waits(&guard, "effect a").await, Some(Duration::from_secs(minutes * 60)));
        machine.pass(u32::try_from(minutes * 60).expect("an hour at the most"));
    }
    let guard = machine.start();
    guard.ready();
    admitted(&guard, "effect a").await.succeeded();
    assert_eq!(names(&guard), []);
    let next = machine.start();
    assert_eq!(waits(&next, "effect a").await, None, "the count starts again");
}

#[tokio::test]
async fn it_is_not_tried_before_the_daemon_is_ready_however_long_ago_the_deaths_were() {
    let machine = GuardFixture::new();
    for _ in 0..3 {
        machine.dies_of(&["effect a"]).await;
    }
    drop(machine.start());
    machine.pass(100_000);
    let guard = machine.start();
    assert!(waits(&guard, "effect a").await.is_some());
    guard.ready();
    assert_eq!(waits(&guard, "effect a").await, None);
}

#[tokio::test]
async fn it_is_tried_alone() {
    let machine = GuardFixture::new();
    for _ in 0..3 {
        machine.dies_of(&["effect a"]).await;
    }
    let guard = machine.start();
    guard.ready();
    machine.pass(60);
    let other = admitted(&guard, "effect b").await;
    assert!(waits(&guard, "effect a").await.is_some(), "something else is being performed");
    drop(other);
    let alone = admitted(&guard, "effect a").await;
    let later = tokio::spawn({
        let guard = guard.clone();
        async move { drop(admitted(&guard, "effect b").await) }
    });
    tokio::task::yield_now().await;
    assert!(!later.is_finished(), "others wait for it");
    alone.succeeded();
    later.await.expect("they continue");
}

#[tokio::test]
async fn deaths_between_which_it_was_performed_are_not_in_a_row() {
    let machine = GuardFixture::new();
    for _ in 0..4 {
        machine.dies_of(&["effect a"]).await;
        machine.dies_of(&["effect b"]).await;
        let guard = machine.start();
        admitted(&guard, "effect a").await.succeeded();
        admitted(&guard, "effect b").await.succeeded();
    }
    assert_eq!(names(&machine.start()), []);
}

#[tokio::test]
async fn an_orderly_end_and_an_idle_death_blame_nothing() {
    let machine = GuardFixture::new();
    for _ in 0..5 {
        let guard = machine.start();
        let performance = admitted(&guard, "effect a").await;
        guard.close();
        std::mem::forget(performance);
        machine.dies_of(&[]).await;
    }
    assert_eq!(names(&machine.start()), []);
}

#[tokio::test]
async fn after_three_crowded_deaths_everything_is_performed_one_by_one_until_the_cause_is_known() {
    let machine = GuardFixture::new();
    for _ in 0..3 {
        machine.dies_of(&["effect a", "effect b"]).await;
    }
    assert_eq!(names(&machine.start()), [], "which of them it was is not known");
    for _ in 0..3 {
        let guard = machine.start();
        admitted(&guard, "effect b").await.succeeded();
        let poison = admitted(&guard, "effect a").await;
        let other = tokio::spawn({
            let guard = guard.clone();
            async move { drop(admitted(&guard, "effect c").await) }
        });
        tokio::task::yield_now().await;
        assert!(!other.is_finished());
        other.abort();
        std::mem::forget(poison);
    }
    assert_eq!(names(&machine.start()), [("effect a".to_owned(), 3)]);
}

#[tokio::test]
async fn settled_effects_are_forgotten() {
    let machine = GuardFixture::new();
    for _ in 0..3 {
        machine.dies_of(&["effect a"]).await;
    }
    let guard = machine.start();
    guard.forget("deletion ", |_| false);
    assert_eq!(names(&guard).len(), 1);
    guard.forget("effect ", |_| false);
    assert_eq!(names(&machine.start()), []);
}
