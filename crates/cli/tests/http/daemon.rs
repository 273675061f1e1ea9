//! The harness of the HTTP tests: the real binary in a temporary home, called over sockets.
//!
//! Each wait has a timeout, so that a hang becomes a failure with a message and not a stuck build.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use abide_testkit::environment;
use serde_json::{Value, json};

/// The timeout of a wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct SocketTestDaemon {
    child: Child,
    pub(crate) address: String,
    pub(crate) token: String,
}

/// Returns a command that runs the binary with this home.
pub(crate) fn abide(home: &Path) -> Command {
    let mut command = environment::abide(env!("CARGO_BIN_EXE_abide"));
    command.current_dir(home).env("ABIDE_HOME", home).stdin(Stdio::null());
    command
}

impl SocketTestDaemon {
    pub(crate) fn start(home: &Path) -> Self {
        let mut child = abide(home)
            .args(["up", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary is there");
        let mut url = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut url).expect("it says where it is");
        let address = url.trim().trim_start_matches("http://").to_owned();
        let token = std::fs::read_to_string(home.join("token")).expect("there is a token");
        Self { child, address, token }
    }

    /// Returns the peak memory of the daemon, in MiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("it is a number") / 1024
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("the daemon listens");
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("it can be set");
        stream
    }

    fn send(&self, method: &str, path: &str, more: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
             content-length: {}\r\n{more}\r\n",
            self.address,
            self.token,
            body.len(),
        );
        stream.write_all((head + body).as_bytes()).expect("it is taken");
        stream
    }

    fn read_response(mut stream: TcpStream) -> (u16, String) {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("an answer comes");
        let text = String::from_utf8_lossy(&text).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, body.to_owned())
    }

    pub(crate) fn text(&self, path: &str) -> (u16, String) {
        Self::read_response(self.send("GET", path, "accept: application/json\r\n", ""))
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.text(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("it is JSON")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let kind = "content-type: application/json\r\n";
        let (status, body) = Self::read_response(self.send("POST", path, kind, &body.to_string()));
        (status, serde_json::from_str(&body).unwrap_or_default())
    }

    /// Creates a run of the scripted engine and returns its id.
    pub(crate) fn create_run(&self, engine: &str, prompt: &str) -> String {
        let (status, run) = self.post("/v1/runs", &json!({ "engine": engine, "prompt": prompt }));
        assert_eq!(status, 201, "{run}");
        run["run_id"].as_str().expect("it has a name").to_owned()
    }

    /// Opens the event stream after a position.
    pub(crate) fn events(&self, path: &str, after: u64) -> EventStream {
        let stream = self.send("GET", path, &format!("last-event-id: {after}\r\n"), "");
        EventStream(BufReader::new(stream))
    }

    /// Ends the daemon with SIGTERM, as an upgrade does: running turns are left to the keepers.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
        self.child.wait().expect("it ends")
    }

    /// Stops the daemon in order.
    pub(crate) fn stop(mut self) -> Value {
        let (status, stopped) = self.post("/v1/stop", &json!({}));
        assert_eq!(status, 200, "{stopped}");
        assert!(self.child.wait().expect("it ends").success());
        stopped
    }
}

impl Drop for SocketTestDaemon {
    fn drop(&mut self) {
        // Needed after a failed test; a daemon that was stopped has exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A stream of server-sent events.
pub(crate) struct EventStream(BufReader<TcpStream>);

impl Iterator for EventStream {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("something is said") == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).ok();
            }
        }
    }
}
