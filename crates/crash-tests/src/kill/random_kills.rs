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
    seeded_rng::SeededRng,
    wait::sleep,
};

use super::{fixture::CrashFixture, scenarios};
use crate::counters::CrashCounters;

/// The number of kills in one storm.
pub(super) const KILLS_PER_RUN: u64 = 20;
/// The number of concurrent players.
const PLAYERS: usize = 8;
/// The maximum lifetime of a daemon after it is ready, in milliseconds. Many lifetimes are much shorter.
const MAX_LIFETIME_MS: usize = 600;
const LABEL_READY: &str = "at random, ready";
const LABEL_STARTING: &str = "at random, starting";

const LABEL_ALL: &str = "at random, daemon, keepers and children";
const LABEL_KEEPER: &str = "at random, a keeper alone";
const LABEL_CHILD: &str = "at random, a child alone";

fn count_kill(counters: &mut CrashCounters, point: Option<&str>) {
    if let Some(point) = point {
        *counters.kills.entry(point.to_owned()).or_default() += 1;
    }
}

/// Kills a random keeper or its children; returns false if there is none.
fn kill_one(fixture: &CrashFixture, home: &TestHome, rng: &mut SeededRng, victim: CrashVictim) -> bool {
    let held: Vec<LiveKeeper> =
        home.live_keepers().into_iter().filter(|one| !one.children.is_empty()).collect();
    if held.is_empty() {
        return false;
    }
    let one = rng.choose_nonempty(&held);
    fixture.record_kill(&one.run_id, victim);
    match victim {
        CrashVictim::Keeper => one.kill_keeper(),
        CrashVictim::Child => one.kill_children(),
    }
    true
}

/// Runs a storm with this seed.
pub(super) fn run_seed(program: &Path, seed: u64) -> CrashCounters {
    let mut counters = CrashCounters::default();
    let mut rng = SeededRng::new(seed);
    let fixture = CrashFixture::new(program);
    let home = Arc::clone(&fixture.home);
    let (number, calm) = (AtomicUsize::new(0), AtomicBool::new(false));
    let daemon = std::thread::scope(|scope| -> TestDaemon {
        let players: Vec<_> = (0..PLAYERS)
            .map(|_| {
                scope.spawn(|| {
                    while !calm.load(Ordering::Acquire) {
                        fixture.play(scenarios::scenario_by_number(
                            &home,
                            number.fetch_add(1, Ordering::Relaxed),
                        ));
                    }
                })
            })
            .collect();
        for _ in 0..KILLS_PER_RUN {
            let daemon = if rng.chance(25) {
                // The daemon may be killed before it is ready.
                home.start_without_waiting()
            } else {
                home.try_start(&[])
            };
            counters.starts += 1;
            let life = rng.below(MAX_LIFETIME_MS) * rng.below(100) / 100;
            sleep(Duration::from_millis(life as u64));
            let point = if daemon.is_ready() { LABEL_READY } else { LABEL_STARTING };
            let (daemon, point) = match rng.below(100) {
                0..60 => (daemon, point),
                60..75 => {
                    // A stopped daemon cannot start further processes while the others are killed.
                    daemon.signal("STOP");
                    let held = home.live_keepers();
                    held.iter().for_each(|one| fixture.record_kill(&one.run_id, CrashVictim::Keeper));
                    held.iter().for_each(LiveKeeper::kill_with_children);
                    (daemon, if held.is_empty() { point } else { LABEL_ALL })
                }
                75..90 => {
                    let point =
                        kill_one(&fixture, &home, &mut rng, CrashVictim::Keeper).then_some(LABEL_KEEPER);
                    count_kill(&mut counters, point);
                    sleep(Duration::from_millis(rng.below(MAX_LIFETIME_MS) as u64));
                    (daemon, LABEL_READY)
                }
                _ => {
                    let point =
                        kill_one(&fixture, &home, &mut rng, CrashVictim::Child).then_some(LABEL_CHILD);
                    count_kill(&mut counters, point);
                    sleep(Duration::from_millis(rng.below(MAX_LIFETIME_MS) as u64));
                    (daemon, LABEL_READY)
                }
            };
            match daemon.kill() {
                DaemonExit::Killed => count_kill(&mut counters, Some(point)),
                other => counters.problems.push(format!("storm {seed}: the daemon died of {other:?}")),
            }
        }
        calm.store(true, Ordering::Release);
        counters.starts += 1;
        match CrashFixture::wait_for_crash(home.try_start(&[]), &players) {
            Ok(alive) => alive,
            Err(death) => {
                counters.problems.push(format!("storm {seed}: the last daemon died of {death:?}"));
                home.try_start(&[])
            }
        }
    });
    let before = counters.problems.len();
    let mut counters = fixture.finish(daemon, counters);
    for problem in counters.problems.iter_mut().skip(before) {
        *problem = format!("storm {seed}: {problem}");
    }
    counters
}
