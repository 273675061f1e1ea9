//! Terminal sessions across an upgrade. The new binary adopts the shells of the old one with their variables and
//! directory, and reads a running command to its end.

use std::path::Path;

use abide_testkit::{
    daemon::{RpcTestClient, TestHome},
    wait,
};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The name of a session in the home whose daemon is replaced.
const SESSION_NAME: &str = "kept";

/// Creates the session with the old binary.
pub(super) fn begin(home: &TestHome) -> Result<()> {
    let created = home.run(&["sessions", "new", "--name", SESSION_NAME, "--shell", "bash"]);
    ensure!(created.code == Some(0), "{created:?}");
    let set = home.run(&["sessions", "exec", SESSION_NAME, "cd /usr; kept=1; sleep 1000 &"]);
    ensure!(set.code == Some(0), "{set:?}");
    Ok(())
}

/// Continues the session with the new binary, and ends it.
pub(super) fn finish(home: &TestHome) -> Result<()> {
    let listed = home.run(&["sessions", "ls", "--json"]);
    ensure!(listed.code == Some(0) && listed.stdout.contains(SESSION_NAME), "{listed:?}");
    let ran = home.run(&["sessions", "exec", SESSION_NAME, "pwd; echo $kept; jobs | wc -l"]);
    let words: Vec<&str> = ran.stdout.split_whitespace().collect();
    ensure!(ran.code == Some(0) && words == ["/usr", "1", "1"], "{ran:?}");
    let removed = home.run(&["sessions", "rm", SESSION_NAME]);
    ensure!(removed.code == Some(0), "{removed:?}");
    Ok(())
}

/// Kills a runtime of the old binary while a command runs; one of the new binary adopts its session.
pub(super) fn check_adoption(old: &Path, new: &Path) -> Result<()> {
    let mut home = TestHome::new(old);
    let mut runtime = RpcTestClient::start(&home);
    let created = runtime.call_ok("session.create", json!({ "shell": "bash" }));
    let session = created["session_id"].as_str().context("a session is made")?.to_owned();
    runtime.call_ok("exec.run", json!({ "session_id": session, "command": "cd /usr; kept=1" }));
    let command = "echo begun; sleep 2; echo ended; (exit 7)";
    let streaming = runtime.call_ok("exec.stream", json!({ "session_id": session, "command": command }));
    let exec = streaming["exec_id"].as_str().unwrap_or("e-2").to_owned();
    runtime.kill();
    home.replace_program(new);
    let mut runtime = RpcTestClient::start(&home);
    wait::until("the session of the old runtime is adopted", || {
        let listed = runtime.call("session.list", json!({})).unwrap_or_default();
        listed.to_string().contains(&session)
    });
    let range = json!({ "session_id": session, "exec_id": exec, "offset": 0, "limit": 1000 });
    let mut last = Value::Null;
    wait::until("the old runtime's command has ended", || {
        last = runtime.call("exec.output", range.clone()).unwrap_or_default();
        last["end"] == true
    });
    ensure!(last["data"] == "begun\nended\n", "the output of the old runtime's command: {last}");
    let ran = runtime.call_ok("exec.run", json!({ "session_id": session, "command": "pwd; echo $kept" }));
    ensure!(ran["stdout"] == "/usr\n1\n", "the adopted session: {ran}");
    let code = runtime.close();
    ensure!(code == Some(0), "the runtime ended with {code:?}");
    wait::until("no process of the home is left", || home.processes().is_empty());
    Ok(())
}
