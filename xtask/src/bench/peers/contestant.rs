//! Contestants that run timed commands, and the two that need no driver: our own runtime through `abide rpc`, and the
//! floor, a bare bash that receives a line and prints a marker.
//!
//! The time is measured from before the request is written until the response is parsed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::home::PeerHome;
use crate::shell::EchoedCommand;
use crate::stopwatch::Stopwatch;

pub(super) trait TimedShell {
    /// Runs `true` `times` times in sequence, and returns the durations.
    fn ask(&mut self, times: usize) -> Result<Vec<Duration>>;
}

/// A child process that answers each line with a line.
struct LineChild {
    child: Child,
    // Taken to close the input.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    answer: String,
}

impl LineChild {
    fn start(command: EchoedCommand, home: &PeerHome, log: &str) -> Result<Self> {
        let mut child = home.apply_environment(command).start_with_pipes(home.log(log)?)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("its output is on a pipe")?);
        Ok(Self { child, input, output, answer: String::new() })
    }

    fn ask(&mut self, line: &str) -> Result<&str> {
        let input = self.input.as_mut().context("its input is open until it is dropped")?;
        input.write_all(line.as_bytes()).context("it takes no more input")?;
        self.answer.clear();
        self.output.read_line(&mut self.answer).context("it gives no more output")?;
        Ok(&self.answer)
    }
}

impl Drop for LineChild {
    fn drop(&mut self) {
        // Both exit when their input is closed.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

pub(super) struct AbideShell {
    runtime: LineChild,
    request: String,
}

impl AbideShell {
    pub(super) fn start(binary: &Path, home: &PeerHome) -> Result<Self> {
        let mut runtime = LineChild::start(EchoedCommand::new(binary).arg("rpc"), home, "abide.log")?;
        let create = json!({
            "jsonrpc": "2.0", "id": 1, "method": "session.create", "params": { "shell": "bash" },
        });
        let created: Value = serde_json::from_str(runtime.ask(&format!("{create}\n"))?)?;
        let session = &created["result"]["session_id"];
        ensure!(session.is_string(), "our runtime made no session: {created}");
        let run = json!({
            "jsonrpc": "2.0", "id": 2, "method": "exec.run",
            "params": { "session_id": session, "command": "true" },
        });
        Ok(Self { runtime, request: format!("{run}\n") })
    }
}

impl TimedShell for AbideShell {
    fn ask(&mut self, times: usize) -> Result<Vec<Duration>> {
        let once = |_| {
            let watch = Stopwatch::start();
            let answer: Value = serde_json::from_str(self.runtime.ask(&self.request)?)?;
            let time = watch.elapsed();
            ensure!(answer["result"]["exit_code"] == 0, "our runtime answers {answer}");
            Ok(time)
        };
        (0..times).map(once).collect()
    }
}

pub(super) struct FloorShell {
    shell: LineChild,
}

impl FloorShell {
    pub(super) fn start(home: &PeerHome) -> Result<Self> {
        Ok(Self { shell: LineChild::start(EchoedCommand::new("bash"), home, "floor.log")? })
    }
}

impl TimedShell for FloorShell {
    fn ask(&mut self, times: usize) -> Result<Vec<Duration>> {
        let once = |_| {
            let watch = Stopwatch::start();
            let answer = self.shell.ask("true; echo MARK $?\n")?;
            let time = watch.elapsed();
            ensure!(answer == "MARK 0\n", "the bare shell answers {answer}");
            Ok(time)
        };
        (0..times).map(once).collect()
    }
}
