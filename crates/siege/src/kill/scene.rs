//! A home under siege: people live their stories in it while its daemon dies and is started again and again.

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

/// A home, and somebody who reads all its events from the first to the last.
pub(super) struct CrashFixture {
    pub(super) home: Arc<TestHome>,
    feed: EventReader,
    played: Mutex<Vec<(TestScenario, ScenarioRecord)>>,
    /// The runs whose processes were killed, and which of them.
    killed: Mutex<BTreeMap<String, Vec<CrashVictim>>>,
}

/// How often anything is tried: a minute and more.
const PATIENCE: RetryLimits = RetryLimits { tries: 3_000, pause: Duration::from_millis(20) };

/// How long the crash guard sets something aside, which is a minute and more outside of crash tests.
const GUARD_PAUSE_MS: &str = "200";

impl CrashFixture {
    pub(super) fn new(program: &Path) -> Self {
        let home = TestHome::new(program).with("ABIDE_SLOTS_MAX_RUNNING", SLOTS);
        let home = Arc::new(home.with("SIEGE_GUARD_PAUSE_MS", GUARD_PAUSE_MS));
        let feed = EventReader::open("/v1/events", home.finder());
        Self { home, feed, played: Mutex::default(), killed: Mutex::default() }
    }

    /// Lives a story to its end.
    pub(super) fn live(&self, story: TestScenario) {
        let account = ScenarioPlayer::new(self.home.finder(), PATIENCE).tell(&story);
        self.played.lock().unwrap_or_else(PoisonError::into_inner).push((story, account));
    }

    /// Notes that a process of a run is about to be killed.
    pub(super) fn note(&self, run: &str, victim: CrashVictim) {
        let mut killed = self.killed.lock().unwrap_or_else(PoisonError::into_inner);
        killed.entry(run.to_owned()).or_default().push(victim);
    }

    /// What the daemon itself has killed at a failpoint, as it wrote down.
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

    /// Waits for a daemon's death, or until nobody lives a story any more: then it is given back.
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

    /// Everything is over: is everything right?
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
        // The home goes with its last holder, and the reader is one.
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

/// Keeps a home for whoever wants to look at it.
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

/// Lets time pass.
#[expect(clippy::disallowed_methods, reason = "a death comes at its own time, and chance decides when")]
pub(crate) fn nap(time: Duration) {
    std::thread::sleep(time);
}
