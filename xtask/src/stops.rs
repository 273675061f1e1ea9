//! Runs the test that stops commands of terminal sessions at random times.
//!
//! The test itself is a test of the binary; this file sets the number of stops and installs the requirements.

use anyhow::Result;

use crate::shell::EchoedCommand;
use crate::tools;
use crate::workspace::CargoWorkspace;

const TEST: &str = "stops::c5_c6_a_stop_at_any_time_leaves_no_word_running_and_keeps_the_session";

pub(crate) fn run(workspace: &CargoWorkspace, count: u32) -> Result<()> {
    tools::for_tests()?;
    EchoedCommand::new("cargo")
        .args(["test", "--quiet", "--package", "abide", "--test", "terminal", "--", "--exact", TEST])
        .args(["--nocapture"])
        .env("STOPS_COUNT", count.to_string())
        .dir(&workspace.root)
        .run()
}
