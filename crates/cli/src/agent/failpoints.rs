//! Failpoints of the agent: kills the process at a chosen journal write, as a power failure would. Only in builds with
//! the feature `failpoints`, which are never shipped.
//!
//! `ABIDE_TEST_FAILPOINT=after_write:7` kills this process right after its seventh write. The other points are
//! `before_write` and `mid_write`. Each point reached is logged as a line in the state folder's file `failpoints`, so
//! that a run without a kill shows how many there are.

use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
};

use abide_agent::failpoint::{self, AgentFailpoint};
use anyhow::Context;

use crate::home;

/// The chosen failpoint, the counters of all points, and the log.
struct AgentFailpointWatch {
    place: Option<(AgentFailpoint, u64)>,
    reached: Mutex<[u64; 3]>,
    log: File,
}

static WATCH: OnceLock<AgentFailpointWatch> = OnceLock::new();

/// Reads the chosen failpoint from the environment.
pub(super) fn install(state: &Path) -> anyhow::Result<()> {
    let Some(text) = home::variable("ABIDE_TEST_FAILPOINT") else { return Ok(()) };
    std::fs::create_dir_all(state)?;
    let log = File::options().create(true).append(true).open(state.join("failpoints"))?;
    let place = match text.as_str() {
        "none" => None,
        text => Some(parse(text).with_context(|| format!("cannot parse ABIDE_TEST_FAILPOINT={text}"))?),
    };
    // A watch that was installed before stays.
    WATCH.set(AgentFailpointWatch { place, reached: Mutex::default(), log }).ok();
    failpoint::install(reached);
    Ok(())
}

fn parse(text: &str) -> Option<(AgentFailpoint, u64)> {
    let (name, number) = text.split_once(':')?;
    let points = [AgentFailpoint::BeforeWrite, AgentFailpoint::MidWrite, AgentFailpoint::AfterWrite];
    Some((points.into_iter().find(|point| told(*point) == name)?, number.parse().ok()?))
}

fn told(point: AgentFailpoint) -> &'static str {
    match point {
        AgentFailpoint::BeforeWrite => "before_write",
        AgentFailpoint::MidWrite => "mid_write",
        AgentFailpoint::AfterWrite => "after_write",
    }
}

fn reached(point: AgentFailpoint) {
    let Some(watch) = WATCH.get() else { return };
    let mut reached = watch.reached.lock().unwrap_or_else(PoisonError::into_inner);
    let count = &mut reached[point as usize];
    *count += 1;
    // A missing line fails the test that reads the log.
    writeln!(&watch.log, "{}:{count}", told(point)).ok();
    if watch.place == Some((point, *count)) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
