//! Lets the agent die at a write to its journal that a test chose, as if the power had failed. Only in builds with the
//! feature `failpoints`, which are never shipped.
//!
//! `SIEGE_FAILPOINT=after_write:7` kills this process right after its seventh write; the other places are `before_write`
//! and `mid_write`. Each place that is reached is a line in the state folder's `failpoints`, so that a run without a death
//! tells how many there are.

use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
};

use abide_agent::failpoint::{self, AgentFailpoint};
use anyhow::Context;

use crate::home;

/// Where to die, how often each place was reached, and where that is told.
struct AgentFailpointWatch {
    place: Option<(AgentFailpoint, u64)>,
    reached: Mutex<[u64; 3]>,
    log: File,
}

static WATCH: OnceLock<AgentFailpointWatch> = OnceLock::new();

/// Reads where to die from the environment.
pub(super) fn install(state: &Path) -> anyhow::Result<()> {
    let Some(text) = home::variable("SIEGE_FAILPOINT") else { return Ok(()) };
    std::fs::create_dir_all(state)?;
    let log = File::options().create(true).append(true).open(state.join("failpoints"))?;
    let place = match text.as_str() {
        "none" => None,
        text => Some(parse(text).with_context(|| format!("cannot understand SIEGE_FAILPOINT={text}"))?),
    };
    let _the_first_counts = WATCH.set(AgentFailpointWatch { place, reached: Mutex::default(), log });
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
    let _a_test_would_miss_it = writeln!(&watch.log, "{}:{count}", told(point));
    if watch.place == Some((point, *count)) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
