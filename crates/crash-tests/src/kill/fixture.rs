//! A home under test: scenarios are played in it while its daemon is killed and restarted repeatedly.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::ScopedJoinHandle,
    time::Duration,
};

use abide_testkit::{
    daemon::{
        CrashVictim, DaemonExit, RetryLimits, ScenarioPlayer, ScenarioRecord, TestDaemon, TestHome,
        TestScenario, run_of,
    },
    wait::sleep,
};

use super::{audit, scenarios::SLOTS};
use crate::counters::CrashCounters;

/// A home with the scenarios that were played in it. Its events are read from the beginning.
pub(super) struct CrashFixture {
    pub(super) home: Arc<TestHome>,
    scenarios: Mutex<Vec<(TestScenario, ScenarioRecord)>>,
    /// The killed processes, by run.
    killed: Mutex<BTreeMap<String, Vec<CrashVictim>>>,
}

/// The retry limits of requests: 60 s in total.
const REQUEST_RETRIES: RetryLimits = RetryLimits { tries: 3_000, pause: Duration::from_millis(20) };

/// The pause of the crash guard in milliseconds. Outside of crash tests it is at least one minute.
const GUARD_PAUSE_MS: &str = "200";

impl CrashFixture {
    pub(super) fn new(program: &Path) -> Self {
        let home = TestHome::new(program).with_env("ABIDE_SLOTS_MAX_RUNNING", SLOTS);
        let home = Arc::new(home.with_env("ABIDE_TEST_GUARD_PAUSE_MS", GUARD_PAUSE_MS));
        home.events();
        Self { home, scenarios: Mutex::default(), killed: Mutex::default() }
    }

    /// Plays a scenario to its end.
    pub(super) fn play(&self, scenario: TestScenario) {
        let record = ScenarioPlayer::new(self.home.client_factory(), REQUEST_RETRIES).play(&scenario);
        self.scenarios.lock().unwrap_or_else(PoisonError::into_inner).push((scenario, record));
    }

    /// Records that a process of a run is about to be killed.
    pub(super) fn record_kill(&self, run: &str, victim: CrashVictim) {
        let mut killed = self.killed.lock().unwrap_or_else(PoisonError::into_inner);
        killed.entry(run.to_owned()).or_default().push(victim);
    }

    /// Returns the processes that the daemon killed at failpoints, from its own record.
    pub(super) fn killed_at_failpoints(&self) -> Vec<(String, CrashVictim)> {
        let log = fs::read_to_string(self.home.path().join("failpoints")).unwrap_or_default();
        let killed = |line: &str| {
            let (victim, name) = match line.split_once(" keeper ") {
                Some(("killed", name)) => (CrashVictim::Keeper, name),
                _ => (CrashVictim::Child, line.strip_prefix("killed child ")?),
            };
            Some((run_of(Path::new(name))?, victim))
        };
        log.lines().filter_map(killed).collect()
    }

    /// Waits until the daemon dies. Returns the daemon if all scenarios end first.
    pub(super) fn wait_for_crash(
        mut daemon: TestDaemon,
        players: &[ScopedJoinHandle<'_, ()>],
    ) -> Result<TestDaemon, DaemonExit> {
        loop {
            if let Some(death) = daemon.try_exit() {
                return Err(death);
            }
            if players.iter().all(|person| person.is_finished()) {
                return Ok(daemon);
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Checks the invariants after the last scenario.
    pub(super) fn finish(self, daemon: TestDaemon, mut counters: CrashCounters) -> CrashCounters {
        for (run, victim) in self.killed_at_failpoints() {
            self.record_kill(&run, victim);
        }
        let killed = self.killed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let played = self.scenarios.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (story, mut account) in played {
            let killed = killed.get(&account.run_id).map(Vec::as_slice).unwrap_or_default();
            account.check(&story, killed);
            counters.affected_runs += u64::from(!killed.is_empty());
            counters.add_scenario(&story, &account);
        }
        counters.readers += 1;
        counters.reconnections += self.home.events().reconnections();
        let problems = audit::check_home(&self.home, self.home.events(), daemon, &mut counters);
        counters.problems.extend(problems);
        if !counters.problems.is_empty() {
            let name = super::home_name(self.home.path());
            eprintln!("{name}: {:#?}\n{}", counters.problems, self.home.stderr_tail());
            if std::env::var_os("ABIDE_TEST_KEEP_HOME").is_some() {
                let kept = std::env::temp_dir().join(format!("kept-{name}"));
                let copied = copy_home(self.home.path(), &kept)
                    .and_then(|()| fs::write(kept.join("stderr.log"), self.home.log_text()));
                if let Err(error) = copied {
                    eprintln!("cannot keep {name}: {error}");
                }
            }
        }
        counters
    }
}

/// Copies a home, so that it can be inspected after a failure.
fn copy_home(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_home(&entry.path(), &to.join(entry.file_name()))?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
