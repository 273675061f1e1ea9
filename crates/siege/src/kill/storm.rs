//! Kills at random times while many scenarios are played in one home. The victims are the daemon, the daemon with all
//! keepers and children, one keeper, or one child.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use abide_testkit::{
    daemon::{CrashVictim, DaemonExit, LiveKeeper, TestDaemon, TestHome},
    dice::SeededRng,
};

use super::{
    scene::{CrashFixture, nap},
    stories,
};
use crate::tally::CrashCounters;

/// The number of kills in one storm.
pub(super) const KILLS: u64 = 20;
/// The number of concurrent players.
const PEOPLE: usize = 8;
/// The maximum lifetime of a daemon after it is ready, in milliseconds. Many lifetimes are much shorter.
const LONGEST: usize = 600;
const AT_RANDOM: &str = "at random, ready";
const STARTING: &str = "at random, starting";

const WITH_EVERYBODY: &str = "at random, daemon, keepers and children";
const KEEPER_ALONE: &str = "at random, a keeper alone";
const CHILD_ALONE: &str = "at random, a child alone";

fn count(tally: &mut CrashCounters, point: Option<&str>) {
    if let Some(point) = point {
        *tally.kills.entry(point.to_owned()).or_default() += 1;
    }
}

/// Kills a random keeper or its children; returns false if there is none.
fn lonely(scene: &CrashFixture, home: &TestHome, dice: &mut SeededRng, victim: CrashVictim) -> bool {
    let held: Vec<LiveKeeper> = home.held().into_iter().filter(|one| !one.children.is_empty()).collect();
    if held.is_empty() {
        return false;
    }
    let one = dice.pick(&held);
    scene.note(&one.run_id, victim);
    match victim {
        CrashVictim::Keeper => one.kill_keeper(),
        CrashVictim::Child => one.kill_children(),
    }
    true
}

/// Runs a storm with this seed.
pub(super) fn play(program: &Path, seed: u64) -> CrashCounters {
    let mut tally = CrashCounters::default();
    let mut dice = SeededRng::new(seed);
    let scene = CrashFixture::new(program);
    let home = Arc::clone(&scene.home);
    let (number, calm) = (AtomicUsize::new(0), AtomicBool::new(false));
    let daemon = std::thread::scope(|scope| -> TestDaemon {
        let people: Vec<_> = (0..PEOPLE)
            .map(|_| {
                scope.spawn(|| {
                    while !calm.load(Ordering::Acquire) {
                        scene.live(stories::any(&home, number.fetch_add(1, Ordering::Relaxed)));
                    }
                })
            })
            .collect();
        for _ in 0..KILLS {
            let daemon = if dice.chance(25) {
                // The daemon may be killed before it is ready.
                home.start_unseen()
            } else {
                home.start()
            };
            tally.starts += 1;
            let life = dice.below(LONGEST) * dice.below(100) / 100;
            nap(Duration::from_millis(life as u64));
            let point = if daemon.is_ready() { AT_RANDOM } else { STARTING };
            let (daemon, point) = match dice.below(100) {
                0..60 => (daemon, point),
                60..75 => {
                    // A stopped daemon cannot start further processes while the others are killed.
                    daemon.signal("STOP");
                    let held = home.held();
                    held.iter().for_each(|one| scene.note(&one.run_id, CrashVictim::Keeper));
                    held.iter().for_each(LiveKeeper::kill_whole);
                    (daemon, if held.is_empty() { point } else { WITH_EVERYBODY })
                }
                75..90 => {
                    let point = lonely(&scene, &home, &mut dice, CrashVictim::Keeper).then_some(KEEPER_ALONE);
                    count(&mut tally, point);
                    nap(Duration::from_millis(dice.below(LONGEST) as u64));
                    (daemon, AT_RANDOM)
                }
                _ => {
                    let point = lonely(&scene, &home, &mut dice, CrashVictim::Child).then_some(CHILD_ALONE);
                    count(&mut tally, point);
                    nap(Duration::from_millis(dice.below(LONGEST) as u64));
                    (daemon, AT_RANDOM)
                }
            };
            match daemon.kill() {
                DaemonExit::Killed => count(&mut tally, Some(point)),
                other => tally.problems.push(format!("storm {seed}: the daemon died of {other:?}")),
            }
        }
        calm.store(true, Ordering::Release);
        tally.starts += 1;
        match CrashFixture::watch(home.start(), &people) {
            Ok(alive) => alive,
            Err(death) => {
                tally.problems.push(format!("storm {seed}: the last daemon died of {death:?}"));
                home.start()
            }
        }
    });
    let before = tally.problems.len();
    let mut tally = scene.end(daemon, tally);
    for problem in tally.problems.iter_mut().skip(before) {
        *problem = format!("storm {seed}: {problem}");
    }
    tally
}
