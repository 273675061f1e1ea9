//! A client of `abide rpc` and `abide mcp`: the real binary in a temporary home, with responses matched by id.
//!
//! Each wait has a timeout, so that a hang becomes a failure with a message and not a stuck build.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Duration,
};

use serde_json::{Value, json};

use super::home::TestHome;

/// The timeout of a wait; longer than any escalation of signals.
const WAIT_TIMEOUT: Duration = Duration::from_secs(40);

#[derive(Debug)]
pub struct RpcTestClient {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    responses: BTreeMap<u64, Value>,
    chunks: Vec<Value>,
    next: u64,
}

impl RpcTestClient {
    pub fn start(home: &TestHome) -> Self {
        Self::with_env(home, &[])
    }

    pub fn with_env(home: &TestHome, env: &[(&str, &str)]) -> Self {
        Self::subcommand("rpc", home, env)
    }

    pub fn subcommand(name: &str, home: &TestHome, env: &[(&str, &str)]) -> Self {
        let mut child = home
            .command()
            // Files that commands leave behind are deleted with the home.
            .current_dir(home.path())
            .arg(name)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let output = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).expect("each line is JSON")).is_err() {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines, responses: BTreeMap::new(), chunks: Vec::new(), next: 0 }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.input
            .as_mut()
            .expect("the input is open")
            .write_all(bytes)
            .expect("the runtime reads its input");
    }

    pub fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        self.write(format!("{request}\n").as_bytes());
        self.next
    }

    /// Waits for the response to a request: its result, or its error object.
    pub fn response(&mut self, id: u64) -> Result<Value, Value> {
        loop {
            if let Some(answer) = self.responses.remove(&id) {
                return match answer.get("error") {
                    Some(error) => Err(error.clone()),
                    None => Ok(answer["result"].clone()),
                };
            }
            self.take_line();
        }
    }

    fn take_line(&mut self) {
        let line = match self.lines.recv_timeout(WAIT_TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no answer in {WAIT_TIMEOUT:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the runtime has ended"),
        };
        match line["id"].as_u64() {
            Some(id) => drop(self.responses.insert(id, line)),
            None => self.chunks.push(line),
        }
    }

    /// Returns the next line that is not a response to one of our requests.
    pub fn next_notification(&mut self) -> Value {
        while self.chunks.is_empty() {
            self.take_line();
        }
        self.chunks.remove(0)
    }

    /// Whether each line so far was a response to a request, or was returned by [`Self::next_notification`].
    pub fn has_no_unmatched_lines(&self) -> bool {
        self.chunks.is_empty()
    }

    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params);
        self.response(id)
    }

    pub fn call_ok(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Returns the error code of a call that must fail.
    pub fn call_error_code(&mut self, method: &str, params: Value) -> String {
        match self.call(method, params) {
            Ok(result) => panic!("{method} was done: {result}"),
            Err(error) => {
                error["data"]["code"].as_str().unwrap_or_else(|| panic!("{method}: {error}")).to_owned()
            }
        }
    }

    pub fn create(&mut self, shell: &str) -> String {
        if shell == "zsh" && !Path::new("/usr/bin/zsh").exists() && !Path::new("/bin/zsh").exists() {
            panic!("zsh is missing; `cargo xtask test` installs it, or `apt-get install zsh`");
        }
        self.call_ok("session.create", json!({ "shell": shell }))["session_id"]
            .as_str()
            .expect("a session has an id")
            .to_owned()
    }

    pub fn run(&mut self, session: &str, command: &str) -> Value {
        self.call_ok("exec.run", json!({ "session_id": session, "command": command }))
    }

    pub fn stdout(&mut self, session: &str, command: &str) -> String {
        self.run(session, command)["stdout"].as_str().expect("a result has an output").to_owned()
    }

    pub fn run_with_timeout(&mut self, session: &str, command: &str, timeout_ms: u64) -> Value {
        self.call_ok(
            "exec.run",
            json!({ "session_id": session, "command": command, "timeout_ms": timeout_ms }),
        )
    }

    pub fn state(&mut self, session: &str) -> String {
        self.call_ok("session.info", json!({ "session_id": session }))["state"]
            .as_str()
            .expect("a session has a state")
            .to_owned()
    }

    /// Collects a stream: stdout, stderr, and the last chunk.
    pub fn collect(&mut self, stream: &Value) -> (Vec<u8>, Vec<u8>, Value) {
        let mut outputs = [Vec::new(), Vec::new()];
        let mut seq = 0;
        loop {
            let chunk = self.next_notification()["params"].clone();
            if chunk["stream_id"] != stream["stream_id"] {
                continue;
            }
            assert_eq!(chunk["seq"].as_u64(), Some(seq), "chunks are numbered without gaps");
            seq += 1;
            let index = match chunk["type"].as_str().expect("a chunk has a type") {
                "stdout" => 0,
                "stderr" => 1,
                _ => {
                    let [out, err] = outputs;
                    return (out, err, chunk);
                }
            };
            assert_eq!(
                chunk["offset"].as_u64(),
                Some(outputs[index].len() as u64),
                "offsets follow each other"
            );
            outputs[index].extend_from_slice(chunk["data"].as_str().expect("a chunk has data").as_bytes());
        }
    }

    /// Kills the runtime with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours");
    }

    /// Closes the input and waits for the exit.
    pub fn close(mut self) -> Option<i32> {
        drop(self.input.take());
        self.child.wait().expect("the child is ours").code()
    }

    /// Closes the input without waiting.
    pub fn end_input(&mut self) {
        drop(self.input.take());
    }
}

impl Drop for RpcTestClient {
    fn drop(&mut self) {
        drop(self.input.take());
        // A child that was waited for has been reaped.
        self.child.wait().ok();
    }
}
