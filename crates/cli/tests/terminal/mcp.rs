//! `abide mcp` with a client that uses only the protocol: handshake, tools, and a session's lifecycle.

use abide_testkit::{daemon::RpcTestClient, wait};
use serde_json::{Value, json};

use crate::support::home;

fn tool(client: &mut RpcTestClient, name: &str, arguments: Value) -> Value {
    client.call_ok("tools/call", json!({ "name": name, "arguments": arguments }))
}

#[test]
fn the_terminal_is_offered_as_mcp_tools() {
    let home = home();
    let mut client = RpcTestClient::subcommand("mcp", &home, &[]);
    let hello = client.call_ok(
        "initialize",
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } }),
    );
    assert_eq!(hello["serverInfo"]["name"], "abide");
    client.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    let listed = client.call_ok("tools/list", json!({}));
    let mut names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["terminal_cancel", "terminal_create", "terminal_destroy", "terminal_list", "terminal_run"]
    );
    let created = tool(&mut client, "terminal_create", json!({ "shell": "bash" }));
    let session = created["structuredContent"]["session_id"].as_str().unwrap().to_owned();
    tool(&mut client, "terminal_run", json!({ "session_id": session, "command": "cd /usr; x=1" }));
    let ran = tool(&mut client, "terminal_run", json!({ "session_id": session, "command": "pwd; echo $x" }));
    assert_eq!(ran["structuredContent"]["stdout"], "/usr\n1\n");
    let running = client.send(
        "tools/call",
        json!({ "name": "terminal_run", "arguments": { "session_id": session, "command": "while :; do :; done" } }),
    );
    wait::until("there is a command to cancel", || {
        tool(&mut client, "terminal_cancel", json!({ "session_id": session }))["isError"] != true
    });
    assert_eq!(client.response(running).unwrap()["structuredContent"]["cancelled"], true);
    let missing = tool(&mut client, "terminal_run", json!({ "session_id": "s-000000", "command": "true" }));
    assert_eq!(
        (&missing["isError"], &missing["structuredContent"]["code"]),
        (&json!(true), &json!("SESSION_NOT_FOUND"))
    );
    tool(&mut client, "terminal_destroy", json!({ "session_id": session }));
    tool(&mut client, "terminal_create", json!({}));
    assert_eq!(client.close(), Some(0));
    assert!(home.processes().is_empty());
}
