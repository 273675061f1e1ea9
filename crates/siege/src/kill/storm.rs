//! Deaths at random times while many people live many stories in one home.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use abide_testkit::{
    daemon::{Death, Running},
    dice::Dice,
};

use super::{
    scene::{Scene, nap},
    stories,
};
use crate::tally::Tally;

/// How many deaths one storm has.
pub(super) const KILLS: u64 = 20;
/// How many people there are.
const PEOPLE: usize = 8;
/// The longest life of a daemon, in milliseconds from its being ready. Many lives are much shorter.
const LONGEST: usize = 600;
const AT_RANDOM: &str = "at random, ready";
const STARTING: &str = "at random, starting";

/// A storm of this seed.
pub(super) fn play(program: &Path, seed: u64) -> Tally {
    let mut tally = Tally::default();
    let mut dice = Dice::new(seed);
    let scene = Scene::new(program);
    let home = Arc::clone(&scene.home);
    let (number, calm) = (AtomicUsize::new(0), AtomicBool::new(false));
    let daemon = std::thread::scope(|scope| -> Running {
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
                // It may not even get as far as to be ready.
                home.start_unseen()
            } else {
                home.start()
            };
            tally.starts += 1;
            let life = dice.below(LONGEST) * dice.below(100) / 100;
            nap(Duration::from_millis(life as u64));
            let point = if daemon.is_ready() { AT_RANDOM } else { STARTING };
            match daemon.kill() {
                Death::Killed => *tally.kills.entry(point.to_owned()).or_default() += 1,
                other => tally.problems.push(format!("storm {seed}: the daemon died of {other:?}")),
            }
        }
        calm.store(true, Ordering::Release);
        tally.starts += 1;
        match Scene::watch(home.start(), &people) {
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
