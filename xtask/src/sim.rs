//! Builds and starts the simulator: complete histories from seeds, with crashes, false reports and late events.
//!
//! The checks are in the crate `sim`.

use anyhow::Result;

use crate::shell::EchoedCommand;
use crate::workspace::CargoWorkspace;

pub(crate) fn run(workspace: &CargoWorkspace, args: &[String]) -> Result<()> {
    EchoedCommand::new("cargo")
        .args(["run", "--quiet", "--profile", "sim", "--package", "abide-sim", "--"])
        .args(args)
        .dir(&workspace.root)
        .run()
}

/// Runs the seeds that each change must pass, and the mutants that prove that the simulator detects faults.
pub(crate) fn run_for_tests(workspace: &CargoWorkspace) -> Result<()> {
    run(workspace, &["--seeds".into(), "20000".into()])?;
    run(workspace, &["--mutants".into()])
}
