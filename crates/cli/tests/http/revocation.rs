//! Commands that revoke or rotate a token end the open connections of the daemon.

use serde_json::json;

use crate::{new_home, stop, terminals::TerminalSocketClient};

#[test]
fn a_revoked_or_rotated_token_executes_nothing_on_an_open_socket() {
    let home = new_home();
    let daemon = home.start();
    let guest = home.run_json(&["token", "new", "guest", "--permit", "admin"]);
    let mut revoked = TerminalSocketClient::connect_with(&home, guest["secret"].as_str().unwrap());
    let mut rotated = TerminalSocketClient::connect(&home);
    let session = revoked.session();
    let touch = |name: &str| json!({ "session_id": session, "command": format!("touch {name}") });
    let before = home.path().join("before");
    revoked.call("exec.run", &touch(before.to_str().unwrap()));
    assert!(before.exists());
    home.run_ok(&["token", "revoke", "guest"]);
    let late = home.path().join("late");
    // The connection may be closed already.
    revoked.try_send("exec.run", &touch(late.to_str().unwrap())).ok();
    let (code, reason) = revoked.wait_for_close();
    assert_eq!((code, reason.contains("revoked")), (1008, true), "{reason}");
    // The connection of the owner is not affected, until its token is rotated.
    assert_eq!(rotated.call("system.ping", &json!({}))["result"]["pong"], true);
    home.run_ok(&["token", "rotate", "owner"]);
    rotated.try_send("exec.run", &touch(late.to_str().unwrap())).ok();
    assert_eq!(rotated.wait_for_close().0, 1008);
    let mut next = TerminalSocketClient::connect(&home);
    next.call("exec.run", &json!({ "session_id": session, "command": "true" }));
    assert!(!late.exists(), "commands of a session are executed in order");
    stop(&home, daemon);
}
