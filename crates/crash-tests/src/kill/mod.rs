//! Kills the real daemon, keepers and their children with SIGKILL at each commit point and at random times under load,
//! and checks the invariants afterwards.

pub(crate) mod audit;
mod failpoint_sweep;
pub(crate) mod fixture;
mod random_kills;
pub(crate) mod scenarios;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use abide_testkit::seeded_rng::SeededRng;

use crate::{counters::CrashCounters, slow_stopwatch::SlowStopwatch};

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
const FULL_SWEEP_KILLS: u64 = 500;

/// Runs the crash test until the requested number of kills is reached, and returns the counters.
pub(crate) fn run(options: &KillOptions) -> CrashCounters {
    let mut counters = CrashCounters::default();
    let program = options.program.as_path();
    let mut groups = scenarios::groups();
    if options.kills < FULL_SWEEP_KILLS {
        groups.truncate(1);
    }
    if !options.at.is_empty() {
        return failpoint_sweep::run_plan(program, &failpoint_sweep::KillPlan::parse(groups[0], &options.at));
    }
    let mut rng = SeededRng::new(options.seed);
    let mut plans = vec![];
    for act in &groups {
        let (points, counted) = failpoint_sweep::count_failpoints(program, *act);
        eprintln!("{act:?}: {points}");
        plans.extend(failpoint_sweep::make_plans(*act, &points, options.kills >= FULL_SWEEP_KILLS, &mut rng));
        plans.extend(failpoint_sweep::make_repeated_plans(*act, &points));
        counters.add(counted);
    }
    if !counters.problems.is_empty() {
        return counters;
    }
    counters.add(run_concurrently(options, &plans, |plan| failpoint_sweep::run_plan(program, plan)));
    eprintln!("swept: {counters}");
    // The number of planned kills that happened is known only now. At least a quarter of the requested kills are
    // random.
    let least = options.kills.max(counters.kills() + options.kills / 4);
    while counters.kills() < least && counters.problems.is_empty() {
        let missing = least - counters.kills();
        let random_runs = missing.div_ceil(random_kills::KILLS_PER_RUN).clamp(1, options.jobs.max(4) as u64);
        let seeds: Vec<u64> = (0..random_runs).map(|_| rng.next_u64()).collect();
        counters.add(run_concurrently(options, &seeds, |seed| random_kills::run_seed(program, *seed)));
        eprintln!("stormed: {counters}");
    }
    counters
}

/// Processes each item, several at a time.
fn run_concurrently<T: Sync + fmt::Debug>(
    options: &KillOptions,
    among: &[T],
    run_one: impl Fn(&T) -> CrashCounters + Sync,
) -> CrashCounters {
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(CrashCounters::default()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(one) = among.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let watch = SlowStopwatch::start();
                    let result = run_one(one);
                    watch.report_if_slow(one);
                    sum.lock().unwrap_or_else(PoisonError::into_inner).add(result);
                }
            });
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the name of the home, which identifies it in a report.
fn home_name(home: &Path) -> String {
    home.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
