//! A home under test: scenarios are played in it while its daemon is killed and restarted repeatedly.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::ScopedJoinHandle,
    time::Duration,
};

use abide_testkit::daemon::{
    CrashVictim, DaemonExit, EventReader, RetryLimits, ScenarioPlayer, ScenarioRecord, TestDaemon, TestHome,
    TestScenario, run_of,
};

use super::{audit, stories::SLOTS};
use crate::tally::CrashCounters;

/// A home, and a reader of all its events.
pub(super) struct CrashFixture {
    pub(super) home: Arc<TestHome>,
    feed: EventReader,
    played: Mutex<Vec<(TestScenario, ScenarioRecord)>>,
    /// The killed processes, by run.
    killed: Mutex<BTreeMap<String, Vec<CrashVictim>>>,
}

/// The retry limits of requests: 60 s in total.
const PATIENCE: RetryLimits = RetryLimits { tries: 3_000, pause: Duration::from_millis(20) };

/// The pause of the crash guard in milliseconds. Outside of crash tests it is at least one minute.
const GUARD_PAUSE_MS: &str = "200";

impl CrashFixture {
    pub(super) fn new(program: &Path) -> Self {
        let home = TestHome::new(program).with("ABIDE_SLOTS_MAX_RUNNING", SLOTS);
        let home = Arc::new(home.with("SIEGE_GUARD_PAUSE_MS", GUARD_PAUSE_MS));
        let feed = EventReader::open("/v1/events", home.finder());
        Self { home, feed, played: Mutex::default(), killed: Mutex::default() }
    }

    /// Plays a scenario to its end.
    pub(super) fn live(&self, story: TestScenario) {
        let account = ScenarioPlayer::new(self.home.finder(), PATIENCE).tell(&story);
        self.played.lock().unwrap_or_else(PoisonError::into_inner).push((story, account));
    }

    /// Records that a process of a run is about to be killed.
    pub(super) fn note(&self, run: &str, victim: CrashVictim) {
        let mut killed = self.killed.lock().unwrap_or_else(PoisonError::into_inner);
        killed.entry(run.to_owned()).or_default().push(victim);
    }

    /// Returns the processes that the daemon killed at failpoints, from its own record.
    pub(super) fn killed_at_failpoints(&self) -> Vec<(String, CrashVictim)> {
        let told = fs::read_to_string(self.home.path().join("failpoints")).unwrap_or_default();
        let killed = |line: &str| {
            let (victim, name) = match line.split_once(" keeper ") {
                Some(("killed", name)) => (CrashVictim::Keeper, name),
                _ => (CrashVictim::Child, line.strip_prefix("killed child ")?),
            };
            Some((run_of(Path::new(name))?, victim))
        };
        told.lines().filter_map(killed).collect()
    }

    /// Waits until the daemon dies. Returns the daemon if all scenarios end first.
    pub(super) fn watch(
        mut daemon: TestDaemon,
        people: &[ScopedJoinHandle<'_, ()>],
    ) -> Result<TestDaemon, DaemonExit> {
        loop {
            if let Some(death) = daemon.death() {
                return Err(death);
            }
            if people.iter().all(|person| person.is_finished()) {
                return Ok(daemon);
            }
            nap(Duration::from_millis(5));
        }
    }

    /// Checks the invariants after the last scenario.
    pub(super) fn end(mut self, daemon: TestDaemon, mut tally: CrashCounters) -> CrashCounters {
        for (run, victim) in self.killed_at_failpoints() {
            self.note(&run, victim);
        }
        let killed = self.killed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let played = self.played.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (story, mut account) in played {
            let killed = killed.get(&account.run_id).map(Vec::as_slice).unwrap_or_default();
            account.judge(&story, killed);
            tally.hit += u64::from(!killed.is_empty());
            tally.lived(&story, &account);
        }
        tally.readers += 1;
        tally.reconnections += self.feed.reconnections();
        let found = audit::look(&self.home, &self.feed, daemon, &mut tally);
        tally.problems.extend(found);
        // The home is deleted with its last reference, and the reader holds one.
        self.feed.stop();
        if !tally.problems.is_empty() {
            let place = super::place(self.home.path());
            eprintln!("{place}: {:#?}\n{}", tally.problems, self.home.complaints());
            if std::env::var_os("SIEGE_KEEP").is_some() {
                let kept = std::env::temp_dir().join(format!("kept-{place}"));
                let _ = copy(self.home.path(), &kept);
            }
        }
        tally
    }
}

/// Copies a home, so that it can be inspected after a failure.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a death comes at its own time, and chance decides when")]
pub(crate) fn nap(time: Duration) {
    std::thread::sleep(time);
}
