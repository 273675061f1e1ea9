//! The HTTP interface of the real binary: complete runs of the scripted engine, terminals, and restarts.

mod memory;
mod revocation;
mod story;
mod terminals;

use abide_testkit::daemon::{DaemonExit, TestDaemon, TestHome};
use serde_json::{Value, json};

fn new_home() -> TestHome {
    TestHome::new(env!("CARGO_BIN_EXE_abide"))
}

/// Stops the daemon over HTTP, and returns the response.
fn stop(home: &TestHome, daemon: TestDaemon) -> Value {
    let stopped = home.post("/v1/stop", &json!({}));
    assert_eq!(daemon.wait(), DaemonExit::Exited(Some(0)));
    stopped
}

#[test]
fn settings_of_the_shell_do_not_reach_the_binary_under_test() {
    abide_testkit::environment::assert_not_inherited_by(&["story::a_stop_reports_the_ended_runs"]);
}
