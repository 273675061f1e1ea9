//! Terminal methods over a WebSocket: all methods, concurrent calls, and isolation of clients from a slow one.

use std::net::TcpStream;

use abide_testkit::{
    daemon::{DaemonExit, TestHome},
    wait,
};
use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};

use crate::{new_home, stop};

pub(crate) struct TerminalSocketClient {
    socket: WebSocket<TcpStream>,
    last: u64,
}

impl TerminalSocketClient {
    pub(crate) fn connect(home: &TestHome) -> Self {
        let token = home.client().expect("a daemon was started").token;
        Self::connect_with(home, &token.unwrap_or_default())
    }

    pub(crate) fn connect_with(home: &TestHome, token: &str) -> Self {
        let client = home.client().expect("a daemon was started");
        let mut request =
            format!("ws://{}/v1/rpc", client.address).into_client_request().expect("it is a URL");
        let token = format!("Bearer {token}").parse().expect("it is text");
        request.headers_mut().insert("authorization", token);
        let stream = TcpStream::connect(client.address).expect("the daemon listens");
        stream.set_read_timeout(Some(wait::LIMIT)).expect("it can be set");
        let (socket, _) = tungstenite::client(request, stream).expect("the WebSocket opens");
        Self { socket, last: 0 }
    }

    pub(crate) fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.try_send(method, params).expect("it is taken");
        self.last
    }

    /// Sends a request on a connection that may be closed.
    pub(crate) fn try_send(&mut self, method: &str, params: &Value) -> tungstenite::Result<()> {
        self.last += 1;
        let text =
            json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params }).to_string();
        self.socket.send(Message::text(text))
    }

    pub(crate) fn next(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.socket.read().expect("something is said") {
                return serde_json::from_str(&text).expect("it is JSON");
            }
        }
    }

    /// Calls a method and waits for the response; other messages in between are dropped.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        loop {
            let message = self.next();
            if message["id"] == id {
                return message;
            }
        }
    }

    /// Reads until the server closes the connection. Returns the code and the reason.
    pub(crate) fn wait_for_close(&mut self) -> (u16, String) {
        loop {
            match self.socket.read().expect("a close frame comes") {
                Message::Close(Some(close)) => return (close.code.into(), close.reason.to_string()),
                Message::Text(text) => panic!("nothing else was expected, not {text}"),
                Message::Close(None)
                | Message::Binary(_)
                | Message::Ping(_)
                | Message::Pong(_)
                | Message::Frame(_) => {}
            }
        }
    }

    pub(crate) fn session(&mut self) -> String {
        let created = self.call("session.create", &json!({}));
        created["result"]["session_id"].as_str().expect("it is made").to_owned()
    }
}

#[test]
fn commands_run_stream_and_are_cancelled_over_a_websocket() {
    let home = new_home();
    let daemon = home.start();
    let mut client = TerminalSocketClient::connect(&home);
    let session = client.session();
    let ran = client
        .call("exec.run", &json!({ "session_id": session, "command": "cd /; X=1; echo out; echo err >&2" }));
    assert_eq!(
        (ran["result"]["stdout"].clone(), ran["result"]["stderr"].clone()),
        (json!("out\n"), json!("err\n"))
    );
    let streaming =
        client.call("exec.stream", &json!({ "session_id": session, "command": "printf $X; pwd; exit 3" }));
    let stream = streaming["result"]["stream_id"].clone();
    let mut text = String::new();
    let last = loop {
        let chunk = client.next();
        assert_eq!((&chunk["method"], &chunk["params"]["stream_id"]), (&json!("exec.chunk"), &stream));
        if chunk["params"]["type"] == "exit" {
            break chunk;
        }
        text += chunk["params"]["data"].as_str().unwrap();
    };
    assert_eq!((text.as_str(), last["params"]["exit_code"].clone()), ("1/\n", json!(3)));
    let session = client.session();
    let running = client.send("exec.run", &json!({ "session_id": session, "command": "sleep 600" }));
    let cancelling = client.send("exec.cancel", &json!({ "session_id": session }));
    let mut messages = [client.next(), client.next()];
    messages.sort_by_key(|message| message["id"].as_u64());
    assert_eq!((messages[0]["id"].as_u64(), messages[1]["id"].as_u64()), (Some(running), Some(cancelling)));
    assert_eq!(messages[0]["result"]["cancelled"], true);
    stop(&home, daemon);
}

#[test]
fn a_slow_client_blocks_no_other_and_its_session_survives() {
    let home = new_home();
    let daemon = home.start();
    let mut slow = TerminalSocketClient::connect(&home);
    let loud = slow.session();
    let flood = json!({ "session_id": loud, "command": "head -c 60000000 /dev/zero | tr '\\0' x" });
    let streaming = slow.call("exec.stream", &flood);
    let mut other = TerminalSocketClient::connect(&home);
    let quiet = other.session();
    for _ in 0..20 {
        let ran = other.call("exec.run", &json!({ "session_id": quiet, "command": "echo here" }));
        assert_eq!(ran["result"]["stdout"], "here\n");
    }
    // The slow client receives everything nevertheless.
    let mut byte_count = 0;
    loop {
        let chunk = slow.next();
        if chunk["params"]["type"] == "exit" {
            break;
        }
        byte_count += chunk["params"]["data"].as_str().unwrap().len();
    }
    assert_eq!(byte_count, 60_000_000);
    drop(slow);
    let sessions = other.call("session.list", &json!({}));
    assert_eq!(sessions["result"]["sessions"].as_array().unwrap().len(), 2);
    let range = json!({
        "session_id": loud, "exec_id": streaming["result"]["exec_id"], "stream": "stdout",
        "offset": 59_999_990, "limit": 100,
    });
    let rest = other.call("exec.output", &range);
    assert_eq!(
        (rest["result"]["data"].clone(), rest["result"]["end"].clone()),
        (json!("xxxxxxxxxx"), json!(true))
    );
    assert_eq!(stop(&home, daemon)["sessions"], 2);
}

#[test]
fn sessions_outlive_the_daemon_that_made_them() {
    let home = new_home();
    let daemon = home.start();
    let mut client = TerminalSocketClient::connect(&home);
    let session = client.session();
    client.call("exec.run", &json!({ "session_id": session, "command": "X=kept" }));
    assert_eq!(daemon.terminate(), DaemonExit::Exited(Some(0)));
    let daemon = home.start();
    let mut client = TerminalSocketClient::connect(&home);
    let ran = client.call("exec.run", &json!({ "session_id": session, "command": "echo $X" }));
    assert_eq!(ran["result"]["stdout"], "kept\n", "{ran}");
    stop(&home, daemon);
}

/// SECURITY finding 14: responses are bounded, and count for flow control like streams.
#[test]
fn answers_that_are_not_read_take_little_memory_and_hold_up_no_other_client() {
    let home = new_home();
    let daemon = home.start();
    let mut greedy = TerminalSocketClient::connect(&home);
    let loud = greedy.session();
    let print = json!({ "session_id": loud, "command": "head -c 8000000 /dev/zero", "max_output_bytes": 10 });
    let exec = greedy.call("exec.run", &print)["result"]["exec_id"].clone();
    let range = json!({ "session_id": loud, "exec_id": exec, "limit": 33_554_432 });
    // A NUL byte takes six bytes as JSON: these would be 3 GB.
    let request_ids: Vec<u64> = (0..500).map(|_| greedy.send("exec.output", &range)).collect();
    let mut other = TerminalSocketClient::connect(&home);
    let quiet = other.session();
    for _ in 0..20 {
        let ran = other.call("exec.run", &json!({ "session_id": quiet, "command": "echo here" }));
        assert_eq!(ran["result"]["stdout"], "here\n");
    }
    for id in request_ids.iter().take(20) {
        let answer = greedy.next();
        assert_eq!(answer["id"].as_u64(), Some(*id));
        assert_eq!(answer["result"]["data"].as_str().unwrap().len(), 1 << 20, "a page");
    }
    let once = json!({ "jsonrpc": "2.0", "id": 1, "method": "exec.output", "params": range });
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let answer = home.try_post("/v1/rpc", &once);
                assert_eq!((answer.status, answer.str_at("/result/data").len()), (200, 1 << 20));
            });
        }
    });
    let peak = daemon.peak_memory() >> 20;
    assert!(peak < 200, "{peak} MiB");
    drop(greedy);
    let screen =
        other.call("session.create", &json!({ "pty": { "rows": 5, "cols": 40 }, "shell": "/bin/sh" }));
    let screen = screen["result"]["session_id"].clone();
    other.call(
        "exec.run",
        &json!({ "session_id": screen, "command": "seq 1 300000", "max_output_bytes": 10 }),
    );
    let shown = other.call("session.screen", &json!({ "session_id": screen }));
    assert!(shown["result"]["text"].as_str().unwrap().contains("300000"), "{shown}");
    let peak = daemon.peak_memory() >> 20;
    assert!(peak < 200, "{peak} MiB");
    stop(&home, daemon);
}

/// Issue 14, bounds: memory for command results is reserved before they are read from their keepers, for all clients
/// together.
#[test]
fn results_of_many_commands_at_once_take_little_memory() {
    const SESSIONS: usize = 12;
    const PRINTED: usize = 3_000_000;
    let home = new_home();
    let daemon = home.start();
    let mut client = TerminalSocketClient::connect(&home);
    let sessions: Vec<String> = (0..SESSIONS).map(|_| client.session()).collect();
    let print = |session: &str, encoding: &str| {
        let command = format!("head -c {PRINTED} /dev/zero; head -c {PRINTED} /dev/zero >&2");
        json!({ "session_id": session, "command": command, "max_output_bytes": 33_554_432, "encoding": encoding })
    };
    let is_bounded = |answer: &Value, length: usize| {
        for stream in ["stdout", "stderr"] {
            assert_eq!(answer["result"][stream].as_str().map(str::len), Some(length), "{stream}");
            assert_eq!(answer["result"]["truncated"][stream], PRINTED - (1 << 20), "{stream}");
        }
    };
    // The client reads nothing while these commands end.
    let run = |session: &String| client.send("exec.run", &print(session, "base64"));
    let request_ids: Vec<u64> = sessions.iter().map(run).collect();
    // A NUL byte takes six bytes as JSON: with 3 MB of each stream these would be 500 MB.
    std::thread::scope(|scope| {
        for _ in 0..SESSIONS {
            scope.spawn(|| {
                let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "session.create", "params": {} });
                let response = home.try_post("/v1/rpc", &request).body;
                let session = response["result"]["session_id"].as_str().expect("it is made");
                let run =
                    json!({ "jsonrpc": "2.0", "id": 1, "method": "exec.run", "params": print(session, "utf8") });
                is_bounded(&home.post("/v1/rpc", &run), 1 << 20);
            });
        }
    });
    for _ in &request_ids {
        let answer = client.next();
        assert!(request_ids.contains(&answer["id"].as_u64().unwrap()));
        is_bounded(&answer, (1_usize << 20).div_ceil(3) * 4);
    }
    let ran = client.call("exec.run", &json!({ "session_id": sessions[0], "command": "echo here" }));
    assert_eq!(ran["result"]["stdout"], "here\n", "the session continues");
    let peak = daemon.peak_memory() >> 20;
    assert!(peak < 200, "{peak} MiB");
    stop(&home, daemon);
}
