//! Running the stops: commands of terminal sessions are stopped at random times.
//!
//! What is stopped and looked at is a test of the binary; here is only how many times, and with what installed.

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
