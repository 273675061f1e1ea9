//! Failpoints of the agent: kills the process at a chosen journal write, as a power failure would. Only in builds with
//! the feature `failpoints`, which are never shipped.
//!
//! `ABIDE_TEST_FAILPOINT=after_write:7` kills this process right after its seventh write. The other points are
//! `before_write` and `mid_write`. Each point reached is logged as a line in the state folder's file `failpoints`, so
//! that a run without a kill shows how many there are.

use std::{fs::File, path::Path};

use abide_os::failpoint::{self, FailpointPlan};
use anyhow::Context;

use crate::home;

/// The failpoints of the agent's journal.
const NAMES: &[&str] = &["before_write", "mid_write", "after_write"];

/// Reads the chosen failpoint from the environment; `none` only counts.
pub(super) fn install(state: &Path) -> anyhow::Result<()> {
    let Some(text) = home::variable("ABIDE_TEST_FAILPOINT") else { return Ok(()) };
    std::fs::create_dir_all(state)?;
    let log = File::options().create(true).append(true).open(state.join("failpoints"))?;
    let chosen = Some(text.as_str()).filter(|text| *text != "none");
    let plan = FailpointPlan::parse(chosen, NAMES, log);
    let plan = plan.with_context(|| format!("cannot parse ABIDE_TEST_FAILPOINT={text}"))?;
    failpoint::install(move |name, _| plan.record(name, |_| failpoint::kill_this_process()));
    Ok(())
}
