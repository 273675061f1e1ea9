//! The harness of the command tests: a temporary home with a daemon, and commands in it. Dropping it stops the daemon.
//!
//! Each wait is for output or an exit and has a timeout, so that a hang becomes a failure with a message.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

use abide_testkit::environment;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The timeout of a wait; longer than a busy machine needs.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

pub(crate) struct CommandTestHome {
    home: tempfile::TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandTestHome {
    pub(crate) fn new() -> Self {
        Self::with_config("listen = \"127.0.0.1:0\"\n")
    }

    pub(crate) fn with_config(config: &str) -> Self {
        let home = tempfile::Builder::new().prefix("abide-house-").tempdir().unwrap();
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        Self { home }
    }

    pub(crate) fn path(&self) -> &Path {
        self.home.path()
    }

    /// Returns a command with a plain environment: no colour settings and no `ABIDE_…` variables.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = environment::abide(env!("CARGO_BIN_EXE_abide"));
        command
            .args(words)
            .env("ABIDE_HOME", self.path())
            .env_remove("NO_COLOR")
            .env("USER", "ada")
            .env("TERM", "xterm")
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command and waits for its exit.
    pub(crate) fn abide<S: AsRef<OsStr>>(&self, words: &[S]) -> CommandOutput {
        Self::run_to_exit(self.command(words))
    }

    pub(crate) fn run_to_exit(mut command: Command) -> CommandOutput {
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Runs a command with this standard input.
    pub(crate) fn run_with_stdin<S: AsRef<OsStr>>(&self, words: &[S], input: &[u8]) -> CommandOutput {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Runs a command that must succeed, and parses its JSON output.
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let done = self.abide(&[words, &["--json"]].concat());
        assert_eq!(done.code, 0, "{words:?}: {}", done.err);
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{words:?}: {error}: {}", done.out))
    }

    /// Starts a detached run and returns its id.
    pub(crate) fn start_detached(&self, script: &str) -> String {
        let done = self.abide(&["run", "parrot", script, "--detach"]);
        assert_eq!(done.code, 0, "{}", done.err);
        done.out.trim().to_owned()
    }

    /// Starts a run, waits for its question and returns the run's id.
    pub(crate) fn start_waiting_run(&self, script: &str) -> String {
        let done = self.abide(&["run", "parrot", script, "--json"]);
        assert_eq!(done.code, 101, "{}", done.err);
        let run: Value = serde_json::from_str(&done.out).unwrap();
        run["run_id"].as_str().unwrap().to_owned()
    }

    /// Starts a long-running command whose output is read line by line.
    pub(crate) fn spawn_watched(&self, words: &[&str]) -> WatchedCommand {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        read("out", child.stdout.take().unwrap(), sender.clone());
        read("err", child.stderr.take().unwrap(), sender);
        WatchedCommand { child, lines, out: Vec::new(), err: Vec::new() }
    }

    fn daemon_pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.path().join("daemon.json")).ok()?;
        let address: Value = serde_json::from_str(&text).unwrap();
        Pid::from_raw(i32::try_from(address["process"]["pid"].as_i64()?).unwrap())
    }

    /// Kills the daemon with SIGKILL.
    pub(crate) fn kill_daemon(&self) {
        kill_process(self.daemon_pid().expect("a daemon runs"), Signal::KILL).unwrap();
    }

    pub(crate) fn up(&self) {
        let up = self.abide(&["up", "--detach"]);
        assert_eq!(up.code, 0, "{}", up.err);
    }
}

impl Drop for CommandTestHome {
    fn drop(&mut self) {
        let down = self.abide(&["down"]);
        if down.code != 0
            && let Some(daemon) = self.daemon_pid()
        {
            // The daemon may have exited.
            kill_process(daemon, Signal::KILL).ok();
        }
        // A keeper whose child exited just before the daemon's end keeps its record for the next daemon, and this home
        // has none.
        for keeper in keeper_pids(self.path()) {
            // The keeper may have exited.
            kill_process(keeper, Signal::KILL).ok();
        }
    }
}

/// Returns the keepers of a home, found by their working directory.
fn keeper_pids(home: &Path) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter(|entry| {
            std::fs::read_link(entry.path().join("cwd")).is_ok_and(|at| at.starts_with(home.join("keepers")))
        })
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
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
    pub(crate) fn wait_for_line(&mut self, wanted: &str) {
        loop {
            match self.lines.recv_timeout(WAIT_TIMEOUT) {
                Ok((stream, line)) => {
                    let found = line.contains(wanted);
                    if stream == "out" {
                        self.out.push(line)
                    } else {
                        self.err.push(line)
                    }
                    if found {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("never said {wanted:?}: {:?} {:?}", self.out, self.err)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("ended before {wanted:?}: {:?} {:?}", self.out, self.err)
                }
            }
        }
    }

    /// Reads to the end and returns the exit code.
    pub(crate) fn wait_for_exit(&mut self) -> Option<i32> {
        loop {
            match self.lines.recv_timeout(WAIT_TIMEOUT) {
                Ok((stream, line)) => {
                    if stream == "out" {
                        self.out.push(line)
                    } else {
                        self.err.push(line)
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("does not end: {:?} {:?}", self.out, self.err),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap().code(),
            }
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
