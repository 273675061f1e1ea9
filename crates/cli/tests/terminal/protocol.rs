//! The JSON-RPC layer with invalid requests and misbehaving clients.

use crate::support::home;
use abide_testkit::{daemon::RpcTestClient, proc};
use serde_json::json;

#[test]
fn garbage_gets_an_error_and_the_next_request_is_served() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for (line, code) in [
        (&b"not json\n"[..], -32700),
        (b"\xff\xfe\n", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\n", -32700),
        (b"[]\n", -32600),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"system.ping\"}]\n", -32600),
        (b"42\n", -32600),
        (b"{\"id\":null,\"method\":\"system.ping\"}\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"system.ping\"}\n", -32600),
    ] {
        rpc.write(line);
        assert_eq!(rpc.next_notification()["error"]["code"], code, "{}", String::from_utf8_lossy(line));
    }
    assert_eq!(rpc.call("no.such.method", json!({})).unwrap_err()["code"], -32601);
    assert_eq!(rpc.call("session.info", json!({})).unwrap_err()["code"], -32602);
    assert_eq!(rpc.call("session.info", json!([1])).unwrap_err()["code"], -32602);
    rpc.write(b"\n   \n{\"jsonrpc\":\"2.0\",\"method\":\"system.ping\"}\n");
    assert_eq!(rpc.call_ok("system.ping", json!({})), json!({ "pong": true }));
}

#[test]
fn a_notification_gets_no_response() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for line in [
        "{\"jsonrpc\":\"2.0\",\"method\":\"no.such.method\"}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"system.ping\"}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"session.info\",\"params\":{}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"session.info\",\"params\":{\"session_id\":\"s-none\"}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"session.list\"}",
    ] {
        rpc.write(format!("{line}\n").as_bytes());
    }
    // `null` is a valid id, so this is the only one of these lines with a response.
    rpc.write(b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"no.such.method\"}\n");
    let answer = rpc.next_notification();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(null), &json!(-32601)));
    assert_eq!(rpc.call_ok("system.ping", json!({})), json!({ "pong": true }));
    assert!(rpc.has_no_unmatched_lines());
}

#[test]
fn a_line_of_a_hundred_megabytes_is_refused_without_being_kept() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        rpc.write(&piece);
    }
    rpc.write(b"\n");
    assert_eq!(rpc.next_notification()["error"]["code"], -32600);
    assert_eq!(rpc.call_ok("system.ping", json!({})), json!({ "pong": true }));
    let peak = proc::peak_memory(rpc.pid()) >> 10;
    assert!(peak < 64 << 10, "{peak} KiB at the highest");
}

#[test]
fn requests_are_served_concurrently() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let (slow, quick) = (rpc.create("bash"), rpc.create("bash"));
    rpc.run(&quick, "mkfifo $ABIDE_HOME/gate");
    let command = "read x < $ABIDE_HOME/gate; echo $x";
    let waiting = rpc.send("exec.run", json!({ "session_id": slow, "command": command }));
    rpc.run(&quick, "echo opened > $ABIDE_HOME/gate");
    assert_eq!(rpc.response(waiting).unwrap()["stdout"], "opened\n");
}

#[test]
fn a_half_line_at_the_end_of_input_is_answered_before_the_end() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    rpc.write(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"system.ping\"}");
    assert_eq!(rpc.close(), Some(0));
}

#[test]
fn stats_count_sessions_by_state_and_commands() {
    let home = home();
    let mut rpc = RpcTestClient::with_env(&home, &[("ABIDE_TERMINAL_MAX_SESSIONS", "7")]);
    let (idle, ended) = (rpc.create("/bin/sh"), rpc.create("bash"));
    rpc.run(&idle, "true");
    rpc.run(&ended, "exit 3");
    let stats = rpc.call_ok("system.stats", json!({}));
    let figures = ["sessions", "running", "terminated", "max_sessions", "commands", "adopted"];
    let figures = figures.map(|name| stats[name].as_u64());
    assert_eq!(figures, [1, 0, 1, 7, 2, 0].map(Some), "{stats}");
}
