//! Kills the real daemon, keepers and their children with SIGKILL at each commit point and at random times under load,
//! and checks the invariants afterwards.

pub(crate) mod audit;
pub(crate) mod scene;
pub(crate) mod stories;
mod storm;
mod sweep;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use abide_testkit::dice::SeededRng;

use crate::{tally::CrashCounters, watch::SlowStopwatch};

/// The options of the kill test.
#[derive(Clone, Debug)]
pub(crate) struct KillOptions {
    /// The daemon, built with the feature `failpoints`.
    pub(crate) program: PathBuf,
    /// The minimum number of kills.
    pub(crate) kills: u64,
    /// The seed of the random numbers.
    pub(crate) seed: u64,
    /// The number of homes that are tested at a time.
    pub(crate) jobs: usize,
    /// Only these kills, such as `after_commit:7` or `after_commit:7:keepers`, one daemon after the other, in the first
    /// scenario group. Used to reproduce a failure.
    pub(crate) at: Vec<String>,
}

/// From this number of kills on, each scenario group is swept with all kinds of victims. Below it, only the first group
/// is swept, which has all kinds of points, with one kind of victim besides the daemon at each point.
const MANY: u64 = 500;

/// Runs the crash test until the requested number of kills is reached, and returns the counters.
pub(crate) fn run(wish: &KillOptions) -> CrashCounters {
    let mut tally = CrashCounters::default();
    let program = wish.program.as_path();
    let mut acts = stories::acts();
    if wish.kills < MANY {
        acts.truncate(1);
    }
    if !wish.at.is_empty() {
        return sweep::play(program, &sweep::KillPlan::given(acts[0], &wish.at));
    }
    let mut dice = SeededRng::new(wish.seed);
    let mut plans = vec![];
    for act in &acts {
        let (points, counted) = sweep::count(program, *act);
        eprintln!("{act:?}: {points}");
        plans.extend(sweep::plans(*act, &points, wish.kills >= MANY, &mut dice));
        plans.extend(sweep::repeated(*act, &points));
        tally.add(counted);
    }
    if !tally.problems.is_empty() {
        return tally;
    }
    tally.add(all(wish, &plans, |plan| sweep::play(program, plan)));
    eprintln!("swept: {tally}");
    // The number of planned kills that happened is known only now. At least a quarter of the requested kills are
    // random.
    let least = wish.kills.max(tally.kills() + wish.kills / 4);
    while tally.kills() < least && tally.problems.is_empty() {
        let missing = least - tally.kills();
        let storms = missing.div_ceil(storm::KILLS).clamp(1, wish.jobs.max(4) as u64);
        let seeds: Vec<u64> = (0..storms).map(|_| dice.number()).collect();
        tally.add(all(wish, &seeds, |seed| storm::play(program, *seed)));
        eprintln!("stormed: {tally}");
    }
    tally
}

/// Processes each item, several at a time.
fn all<T: Sync + fmt::Debug>(
    wish: &KillOptions,
    among: &[T],
    play: impl Fn(&T) -> CrashCounters + Sync,
) -> CrashCounters {
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(CrashCounters::default()));
    std::thread::scope(|scope| {
        for _ in 0..wish.jobs.max(1) {
            scope.spawn(|| {
                while let Some(one) = among.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let watch = SlowStopwatch::start();
                    let played = play(one);
                    watch.complain_about(one);
                    sum.lock().unwrap_or_else(PoisonError::into_inner).add(played);
                }
            });
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the name of the home, which identifies it in a report.
fn place(home: &Path) -> String {
    home.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
