//! Memory of the daemon with many clients that request more than they read (SECURITY finding D4).

use std::{io::Write, net::TcpStream, time::Duration};

use abide_testkit::{
    daemon::{DaemonExit, TestHome},
    wait,
};
use serde_json::{Value, json};

use crate::terminals::TerminalSocketClient;
use crate::{new_home, stop};

/// The maximum peak memory of the daemon, in MiB.
const MAX_MEMORY_MIB: u64 = 200;
const CLIENTS: usize = 160;
const SESSIONS: usize = 4;
/// Bytes of each stream of a command. A result is 1.6 MB of Base64.
const PRINTED: usize = 600_000;

/// Buffers of connections and results that no client reads are bounded for all clients together.
#[test]
fn many_clients_with_unread_results_take_little_memory_and_hold_up_no_other_client() {
    let home = new_home();
    let daemon = home.start();
    let mut other = TerminalSocketClient::connect(&home);
    let quiet = other.session();
    let sessions: Vec<String> = (0..SESSIONS).map(|_| other.session()).collect();
    let run = |session: &str| {
        let command = format!("head -c {PRINTED} /dev/zero; head -c {PRINTED} /dev/zero >&2");
        json!({ "session_id": session, "command": command, "encoding": "base64" })
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| TerminalSocketClient::connect(&home)).collect();
    // One result is read: a connection must not keep memory of its size.
    for (number, client) in clients.iter_mut().enumerate() {
        let ran = client.call("exec.run", &run(&sessions[number % SESSIONS]));
        assert_eq!(ran["result"]["stdout"].as_str().map(str::len), Some(PRINTED.div_ceil(3) * 4), "{ran}");
    }
    // Further results are not read. A NUL byte takes six bytes as JSON: these would be 2.8 GB.
    for (number, client) in clients.iter_mut().enumerate() {
        let session = &sessions[number % SESSIONS];
        client.send("exec.run", &run(session));
        for _ in 0..4 {
            client.send("exec.output", &json!({ "session_id": session, "exec_id": "e-1" }));
            let encoded = json!({ "session_id": session, "exec_id": "e-1", "encoding": "base64" });
            client.send("exec.output", &encoded);
            client.send("session.list", &json!({}));
        }
    }
    for _ in 0..20 {
        let ran = other.call("exec.run", &json!({ "session_id": quiet, "command": "echo here" }));
        assert_eq!(ran["result"]["stdout"], "here\n");
    }
    assert_eq!(streamed_bytes(&mut other, &quiet), PRINTED);
    assert_eq!(home.try_get("/readyz").status, 200);
    let peak = daemon.peak_memory() >> 20;
    assert!(peak < MAX_MEMORY_MIB, "{peak} MiB");
    drop(clients);
    stop(&home, daemon);
}

/// Streams a large output and returns its size.
fn streamed_bytes(client: &mut TerminalSocketClient, session: &str) -> usize {
    let command = format!("head -c {PRINTED} /dev/zero | tr '\\0' x");
    let streaming = client.call("exec.stream", &json!({ "session_id": session, "command": command }));
    assert!(streaming["result"]["stream_id"].is_string(), "{streaming}");
    let mut bytes = 0;
    loop {
        let chunk = client.next();
        if chunk["params"]["type"] == "exit" {
            return bytes;
        }
        bytes += chunk["params"]["data"].as_str().expect("a chunk has data").len();
    }
}

/// Number of runs with a long prompt, its length in bytes, and the number of clients per path that read nothing.
const LONG_RUNS: usize = 16;
const LONG_PROMPT_BYTES: usize = 900_000;
const UNREAD_CLIENTS: usize = 120;

/// Sends a request whose response is not read.
fn request_unread(home: &TestHome, path: &str, accept: &str) -> TcpStream {
    let client = home.client().expect("a daemon was started");
    let (address, token) = (client.address, client.token.unwrap_or_default());
    let mut stream = TcpStream::connect(address).expect("the daemon listens");
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\naccept: {accept}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("the daemon receives the request");
    stream
}

/// Streams and pages that clients do not read are bounded for all clients together. Each stream used to hold its own
/// page of the journal.
#[test]
fn unread_event_streams_and_pages_of_long_entries_take_little_memory() {
    let home = new_home();
    let daemon = home.start();
    let prompt = format!("say {}", "a".repeat(LONG_PROMPT_BYTES));
    let runs: Vec<String> =
        (0..LONG_RUNS).map(|_| home.create_run(&json!({ "engine": "parrot", "prompt": prompt }))).collect();
    for run in &runs {
        home.wait_for_status(run, "succeeded");
    }
    assert_eq!(daemon.terminate(), DaemonExit::Exited(Some(0)));
    let daemon = home.start();
    let turns = format!("/v1/runs/{}/turns", runs[0]);
    let requests = [
        ("/v1/events", "text/event-stream"),
        ("/v1/events", "application/json"),
        (&turns, "application/json"),
    ];
    let mut clients = Vec::new();
    for _ in 0..UNREAD_CLIENTS {
        clients.extend(requests.map(|(path, accept)| request_unread(&home, path, accept)));
    }
    // The memory settles when as much is read as the budgets allow.
    let mut peak = 0;
    for _ in 0..20 {
        let reached = daemon.peak_memory() >> 20;
        assert!(reached < MAX_MEMORY_MIB, "{reached} MiB");
        if reached == peak {
            break;
        }
        peak = reached;
        wait::sleep(Duration::from_secs(2));
    }
    assert_eq!(home.try_get("/readyz").status, 200);
    drop(clients);
    // The streams have released their bytes, so another client receives the whole journal.
    let created = home.event_stream("/v1/events", 0).filter(|event| event["type"] == "run_created");
    assert_eq!(created.take(LONG_RUNS).count(), LONG_RUNS);
    stop(&home, daemon);
}

/// A request that quotes much of itself in its response, or stays in memory until its reply, is bounded.
#[test]
fn long_ids_and_names_are_refused_with_a_short_response() {
    let home = new_home();
    let daemon = home.start();
    let mut client = TerminalSocketClient::connect(&home);
    let long = "x".repeat(500_000);
    let refusals = [
        ("session.create", json!({ "name": long })),
        ("session.info", json!({ "session_id": long })),
        (long.as_str(), json!({})),
    ];
    for (method, params) in refusals {
        let answer = client.call(method, &params);
        assert!(
            answer["error"]["code"].is_number() && answer.to_string().len() < 2_000,
            "{}",
            answer["error"]
        );
    }
    let request = json!({ "jsonrpc": "2.0", "id": long, "method": "system.ping" });
    let answer = home.try_post("/v1/rpc", &request).body;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)), "{answer}");
    // Reads of a client follow one another, also if each is answered at once.
    let missing = json!({ "session_id": "s-none", "exec_id": "e-1" });
    let request_ids: Vec<u64> = (0..3).map(|_| client.send("exec.output", &missing)).collect();
    for id in request_ids {
        assert_eq!(client.next()["id"].as_u64(), Some(id));
    }
    stop(&home, daemon);
}
