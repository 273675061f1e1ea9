//! One death at every point that a story has: a first run counts them, then each is hit in a home of its own.
//!
//! The daemon that comes next dies too, at one of its first points, so that taking things up is killed as well.

use std::{collections::BTreeMap, fmt, fs, path::Path, sync::Arc};

use abide_testkit::{
    daemon::{Death, Running},
    dice::Dice,
};

use super::{scene::Scene, stories::Act};
use crate::tally::Tally;

/// How many points of each kind there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Points(BTreeMap<String, u64>);

/// Where successive daemons die.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    act: Act,
    deaths: Vec<(String, u64)>,
}

impl Plan {
    /// These deaths, written as `after_commit:7`.
    pub(super) fn given(act: Act, deaths: &[String]) -> Self {
        let parse = |death: &String| {
            let (point, number) = death.split_once(':')?;
            Some((point.to_owned(), number.parse().ok()?))
        };
        Self { act, deaths: deaths.iter().filter_map(parse).collect() }
    }
}

/// The second daemon dies at one of so many points.
const EARLY: usize = 8;

/// Lives the stories of an act without any death, and counts the points.
pub(super) fn count(program: &Path, act: Act) -> (Points, Tally) {
    let mut points = Points::default();
    let scene = Scene::new(program);
    let home = scene.home.clone();
    let tally = besiege(scene, &Plan { act, deaths: vec![] });
    for line in fs::read_to_string(home.path().join("failpoints")).unwrap_or_default().lines() {
        if let Some((point, _)) = line.split_once(':') {
            *points.0.entry(point.to_owned()).or_default() += 1;
        }
    }
    (points, tally)
}

/// A plan for each point.
pub(super) fn plans(act: Act, points: &Points, dice: &mut Dice) -> Vec<Plan> {
    let kinds: Vec<String> = points.0.keys().cloned().collect();
    let each = points.0.iter().flat_map(|(point, most)| (1..=*most).map(move |n| (point.clone(), n)));
    each.map(|first| {
        let again = (dice.pick(&kinds), 1 + dice.below(EARLY) as u64);
        Plan { act, deaths: vec![first, again] }
    })
    .collect()
}

/// Carries a plan out.
pub(super) fn play(program: &Path, plan: &Plan) -> Tally {
    besiege(Scene::new(program), plan)
}

fn besiege(scene: Scene, plan: &Plan) -> Tally {
    let mut tally = Tally::default();
    let home = Arc::clone(&scene.home);
    let daemon = std::thread::scope(|scope| -> Running {
        let people: Vec<_> =
            plan.act.stories(&home).into_iter().map(|story| scope.spawn(|| scene.live(story))).collect();
        for (point, number) in &plan.deaths {
            let place = format!("{point}:{number}");
            let daemon = home.start_with(&[("SIEGE_FAILPOINT", &place)]);
            tally.starts += 1;
            match Scene::watch(daemon, &people) {
                Ok(alive) => {
                    // The stories came to their end before it, and it must not come while everything is looked at.
                    tally.not_reached += 1;
                    alive.kill();
                    break;
                }
                Err(Death::Killed) => *tally.kills.entry(point.clone()).or_default() += 1,
                Err(other) => tally.problems.push(format!("{place}: the daemon died of {other:?}")),
            }
        }
        let daemon = home.start();
        tally.starts += 1;
        match Scene::watch(daemon, &people) {
            Ok(alive) => alive,
            Err(death) => {
                tally.problems.push(format!("{plan:?}: the last daemon died of {death:?}"));
                home.start()
            }
        }
    });
    let before = tally.problems.len();
    let mut tally = scene.end(daemon, tally);
    for problem in tally.problems.iter_mut().skip(before) {
        *problem = format!("{:?} {:?}: {problem}", plan.act, plan.deaths);
    }
    tally
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told: Vec<_> = self.0.iter().map(|(point, count)| format!("{count} {point}")).collect();
        f.write_str(&told.join(", "))
    }
}
