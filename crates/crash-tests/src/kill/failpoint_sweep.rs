//! Kills at each failpoint of a scenario group. A first run counts the failpoints; then each is triggered in a separate
//! home. The victims are the daemon, the daemon with all keepers and children, or keepers or children alone.
//!
//! The next daemon is killed too, at one of its first failpoints, so that recovery is also tested.

use std::{collections::BTreeMap, fmt, fs, path::Path, sync::Arc};

use abide_testkit::{
    daemon::{DaemonExit as DaemonDeath, TestDaemon},
    seeded_rng::SeededRng,
};

use super::{fixture::CrashFixture, scenarios::ScenarioGroup};
use crate::counters::CrashCounters;

/// The number of failpoints of each kind.
#[derive(Clone, Debug, Default)]
pub(super) struct FailpointCounts(BTreeMap<String, u64>);

/// The failpoints at which successive daemons, or other processes, are killed.
#[derive(Clone, Debug)]
pub(super) struct KillPlan {
    group: ScenarioGroup,
    kills: Vec<PlannedKill>,
}

/// One kill: the failpoint, its count, and the victims.
#[derive(Clone, Debug)]
struct PlannedKill {
    point: String,
    number: u64,
    victims: KillVictims,
}

/// The processes killed at a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KillVictims {
    Daemon,
    /// The daemon, all keepers and all children, as in a power failure.
    All,
    /// All keepers, and no other process.
    Keepers,
    /// All children, and no other process.
    Children,
}

impl KillVictims {
    /// The victims that include other processes than the daemon.
    pub(super) const OTHERS: [Self; 3] = [Self::All, Self::Keepers, Self::Children];

    /// Returns the name that the daemon's failpoint setting uses; `None` for the daemon alone.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Daemon => None,
            Self::All => Some("all"),
            Self::Keepers => Some("keepers"),
            Self::Children => Some("children"),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::OTHERS.into_iter().find(|victims| victims.name() == Some(name))
    }

    /// Returns the text for the figures.
    fn label(self) -> &'static str {
        match self {
            Self::Daemon => "",
            Self::All => ", daemon, keepers and children",
            Self::Keepers => ", keepers alone",
            Self::Children => ", children alone",
        }
    }
}

impl KillPlan {
    /// Parses kills of the form `after_commit:7`, or `after_commit:7:keepers` for other victims.
    pub(super) fn parse(group: ScenarioGroup, deaths: &[String]) -> Self {
        let parse = |death: &String| {
            let mut parts = death.split(':');
            let (point, number) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?);
            let victims = parts.next().map_or(Some(KillVictims::Daemon), KillVictims::parse)?;
            Some(PlannedKill { point, number, victims })
        };
        Self { group, kills: deaths.iter().filter_map(parse).collect() }
    }
}

/// The second daemon is killed at one of its first 8 failpoints.
const EARLY_FAILPOINTS: usize = 8;

/// Plays a scenario group without kills, and counts the failpoints.
pub(super) fn count_failpoints(program: &Path, group: ScenarioGroup) -> (FailpointCounts, CrashCounters) {
    let mut points = FailpointCounts::default();
    let fixture = CrashFixture::new(program);
    let home = fixture.home.clone();
    let counters = run(fixture, &KillPlan { group, kills: vec![] });
    for line in fs::read_to_string(home.path().join("failpoints")).unwrap_or_default().lines() {
        if let Some((point, _)) = line.split_once(':') {
            *points.0.entry(point.to_owned()).or_default() += 1;
        }
    }
    (points, counters)
}

/// Creates a plan for each failpoint at which the daemon dies, and plans for the other victims: each kind at each
/// failpoint, or one kind at each failpoint in turn.
pub(super) fn make_plans(
    group: ScenarioGroup,
    points: &FailpointCounts,
    all_victims: bool,
    rng: &mut SeededRng,
) -> Vec<KillPlan> {
    let kinds: Vec<String> = points.0.keys().cloned().collect();
    let each: Vec<(String, u64)> =
        points.0.iter().flat_map(|(point, most)| (1..=*most).map(move |n| (point.clone(), n))).collect();
    let mut plans = vec![];
    for (place, (point, number)) in each.into_iter().enumerate() {
        let others = KillVictims::OTHERS.into_iter().enumerate();
        let others = others.filter(|(kind, _)| all_victims || kind % KillVictims::OTHERS.len() == place % 3);
        for victims in [KillVictims::Daemon].into_iter().chain(others.map(|(_, victims)| victims)) {
            let first = PlannedKill { point: point.clone(), number, victims };
            let again = PlannedKill {
                point: rng.choose_nonempty(&kinds),
                number: 1 + rng.below(EARLY_FAILPOINTS) as u64,
                victims: KillVictims::Daemon,
            };
            plans.push(KillPlan { group, kills: vec![first, again] });
        }
    }
    plans
}

/// Creates, for each kind of failpoint, a plan in which successive daemons die at the first of them. The crash guard
/// sets the affected run aside. Nothing may be lost or fail nevertheless.
pub(super) fn make_repeated_plans(group: ScenarioGroup, points: &FailpointCounts) -> Vec<KillPlan> {
    let death =
        |point: &String| PlannedKill { point: point.clone(), number: 1, victims: KillVictims::Daemon };
    points.0.keys().map(|point| KillPlan { group, kills: vec![death(point); REPEATED_KILLS] }).collect()
}

/// The number of successive daemons that die at the same failpoint.
const REPEATED_KILLS: usize = 20;

pub(super) fn run_plan(program: &Path, plan: &KillPlan) -> CrashCounters {
    run(CrashFixture::new(program), plan)
}

fn run(fixture: CrashFixture, plan: &KillPlan) -> CrashCounters {
    let mut counters = CrashCounters::default();
    let home = Arc::clone(&fixture.home);
    let daemon = std::thread::scope(|scope| -> TestDaemon {
        let people: Vec<_> = plan
            .group
            .scenarios(&home)
            .into_iter()
            .map(|story| scope.spawn(|| fixture.play(story)))
            .collect();
        for PlannedKill { point, number, victims } in &plan.kills {
            let place = format!("{point}:{number}");
            let mut env = vec![("ABIDE_TEST_FAILPOINT", place.as_str())];
            env.extend(victims.name().map(|name| ("ABIDE_TEST_FAILPOINT_VICTIMS", name)));
            let before = fixture.killed_at_failpoints().len();
            let daemon = home.try_start(&env);
            counters.starts += 1;
            let watched = CrashFixture::wait_for_crash(daemon, &people);
            let others = fixture.killed_at_failpoints().len() > before;
            let label = if others { victims.label() } else { "" };
            match watched {
                Ok(alive) => {
                    if others {
                        *counters.kills.entry(format!("{point}{label}")).or_default() += 1;
                    } else if let KillVictims::Daemon | KillVictims::All = victims {
                        counters.not_reached += 1;
                    } else {
                        counters.without_victim += 1;
                    }
                    // The remaining kills of the plan must not happen during the final checks.
                    alive.kill();
                    break;
                }
                Err(DaemonDeath::Killed) => {
                    *counters.kills.entry(format!("{point}{label}")).or_default() += 1;
                }
                Err(other) => counters.problems.push(format!("{place}: the daemon died of {other:?}")),
            }
        }
        let daemon = home.try_start(&[]);
        counters.starts += 1;
        match CrashFixture::wait_for_crash(daemon, &people) {
            Ok(alive) => alive,
            Err(death) => {
                counters.problems.push(format!("{plan:?}: the last daemon died of {death:?}"));
                home.try_start(&[])
            }
        }
    });
    let before = counters.problems.len();
    let mut counters = fixture.finish(daemon, counters);
    for problem in counters.problems.iter_mut().skip(before) {
        *problem = format!("{:?} {:?}: {problem}", plan.group, plan.kills);
    }
    counters
}

impl fmt::Display for FailpointCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(|(point, count)| format!("{count} {point}")).collect();
        f.write_str(&lines.join(", "))
    }
}
