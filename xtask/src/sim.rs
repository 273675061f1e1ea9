//! Running the simulator: whole histories from seeds, with crashes, lies and late news.
//!
//! What it checks is in its own crate; here is only how it is built and started.

use anyhow::{Result, bail};

use crate::shell::Shell;
use crate::workspace::Workspace;

const PACKAGE: &str = "abide-sim";

/// What became of the simulation that belongs to the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Simulated {
    Passed,
    /// The workspace has no simulator yet.
    Absent,
}

pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    if workspace.member(PACKAGE).is_none() {
        bail!("this workspace has no simulator yet: the package {PACKAGE} is missing");
    }
    Shell::new("cargo")
        .args(["run", "--quiet", "--profile", "sim", "--package", PACKAGE, "--"])
        .args(args)
        .dir(&workspace.root)
        .run()
}

/// As many seeds as every change must survive.
pub(crate) fn run_for_tests(workspace: &Workspace) -> Result<Simulated> {
    if workspace.member(PACKAGE).is_none() {
        eprintln!("\n*** NOT SIMULATED: the package {PACKAGE} is not in this workspace yet. ***\n");
        return Ok(Simulated::Absent);
    }
    run(workspace, &["--seeds".into(), SEEDS.into()])?;
    Ok(Simulated::Passed)
}

const SEEDS: &str = "20000";
