//! Running the simulator: whole histories from seeds, with crashes, lies and late news.
//!
//! What it checks is in its own crate; here is only how it is built and started.

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

/// As many seeds as every change must survive, and the proof that the simulator would notice if one did not.
pub(crate) fn run_for_tests(workspace: &CargoWorkspace) -> Result<()> {
    run(workspace, &["--seeds".into(), "20000".into()])?;
    run(workspace, &["--mutants".into()])
}
