//! The harness of the command tests: a home whose daemon is started by commands.
//!
//! Each wait is for output or an exit and has a timeout, so that a hang becomes a failure with a message.

use std::{
    io::{BufRead, BufReader, Read},
    ops::Deref,
    process::{Child, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
};

use abide_testkit::{
    daemon::{TerminalUser, TestHome},
    wait,
};
use serde_json::Value;

pub(crate) struct CommandTestHome {
    home: TestHome,
}

impl Deref for CommandTestHome {
    type Target = TestHome;

    fn deref(&self) -> &TestHome {
        &self.home
    }
}

impl CommandTestHome {
    pub(crate) fn new() -> Self {
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide"));
        Self { home: home.with_config("").with_env("USER", "ada").with_env("TERM", "xterm") }
    }

    /// Starts a daemon in the background.
    pub(crate) fn up(&self) {
        self.run_ok(&["up", "--detach"]);
    }

    /// Starts a detached run and returns its id.
    pub(crate) fn start_detached(&self, script: &str) -> String {
        self.run_ok(&["run", "parrot", script, "--detach"]).trim().to_owned()
    }

    /// Starts a run, waits for its question and returns the run's id.
    pub(crate) fn start_waiting_run(&self, script: &str) -> String {
        let output = self.run(&["run", "parrot", script, "--json"]);
        let run: Value = serde_json::from_str(&output.expect(101).stdout).unwrap();
        run["run_id"].as_str().unwrap().to_owned()
    }

    /// Starts a long-running command whose output is read line by line.
    pub(crate) fn spawn_watched(&self, words: &[&str]) -> WatchedCommand {
        let mut command = self.command();
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        read("out", child.stdout.take().unwrap(), sender.clone());
        read("err", child.stderr.take().unwrap(), sender);
        WatchedCommand { child, lines, out: Vec::new(), err: Vec::new() }
    }
}

/// Starts a command on a terminal.
pub(crate) fn on_terminal(home: &CommandTestHome, words: &[&str]) -> TerminalUser {
    on_terminal_with_env(home, words, &[])
}

pub(crate) fn on_terminal_with_env(
    home: &CommandTestHome,
    words: &[&str],
    env: &[(&str, &str)],
) -> TerminalUser {
    let mut command = home.command();
    command.args(words).envs(env.iter().copied());
    TerminalUser::start(&command, 40, 160)
}

fn read(stream: &'static str, pipe: impl Read + Send + 'static, sender: Sender<(&'static str, String)>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send((stream, line)).is_err() {
                break;
            }
        }
    });
}

/// A running command whose output is read line by line.
pub(crate) struct WatchedCommand {
    pub(crate) child: Child,
    lines: Receiver<(&'static str, String)>,
    pub(crate) out: Vec<String>,
    pub(crate) err: Vec<String>,
}

impl WatchedCommand {
    /// Reads until a line contains `wanted`.
    pub(crate) fn wait_for_line(&mut self, text: &str) {
        loop {
            match self.next_line() {
                Some(line) if line.contains(text) => return,
                Some(_) => {}
                None => panic!("ended before {text:?}: {:?} {:?}", self.out, self.err),
            }
        }
    }

    /// Reads to the end and returns the exit code.
    pub(crate) fn wait_for_exit(&mut self) -> Option<i32> {
        while self.next_line().is_some() {}
        self.child.wait().unwrap().code()
    }

    /// Reads and records a line; `None` at the end of both streams.
    fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(wait::LIMIT) {
            Ok((stream, line)) => {
                if stream == "out" { &mut self.out } else { &mut self.err }.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Timeout) => panic!("no further line: {:?} {:?}", self.out, self.err),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

impl Drop for WatchedCommand {
    fn drop(&mut self) {
        // The command may have exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
