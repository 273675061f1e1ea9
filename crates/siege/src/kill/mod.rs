//! Kill -9 of the real daemon, of keepers and of what they hold, at every commit point and at random times under load, and
//! what must still be true after.

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

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) struct KillOptions {
    /// The daemon, built with its places to die.
    pub(crate) program: PathBuf,
    /// How often it is to die at least.
    pub(crate) kills: u64,
    /// What chance is made of.
    pub(crate) seed: u64,
    /// How many homes are besieged at a time.
    pub(crate) jobs: usize,
    /// Only these deaths, such as `after_commit:7` or `after_commit:7:keepers`, one daemon after the other, in the first
    /// story: to look at something again.
    pub(crate) at: Vec<String>,
}

/// From this many kills on every story is swept with all kinds of victims; below it the first, which has all kinds of
/// points, with one kind besides the daemon at each point.
const MANY: u64 = 500;

/// Kills the daemon as often as wished, and tells what was seen.
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
    // How many of the planned deaths came about is known only now. A quarter of the wish always comes at random.
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

/// Does something with each of these, several at a time.
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

/// The feed and the runs of a home, for whoever wants to know where it was.
fn place(home: &Path) -> String {
    home.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
