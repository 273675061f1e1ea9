//! A driver: a small program that holds one session of a peer and measures commands in it.
//!
//! It reports that it is ready, then reads a number from each line and answers with as many durations. All waits have a
//! timeout, because a peer may hang. A failure message quotes its standard error.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::contestant::TimedShell;
use super::home::PeerHome;
use crate::shell::{self, EchoedCommand};

pub(super) struct PeerDriver {
    child: Child,
    // Taken to close the input.
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    log: PathBuf,
    version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum DriverAnswer {
    /// Contains the peer's name and version.
    Ready(String),
    Micros(Vec<f64>),
}

impl PeerDriver {
    pub(super) fn start(command: EchoedCommand, home: &PeerHome) -> Result<Self> {
        let mut child = home.apply_environment(command).start_with_pipes(home.log("peer.log")?)?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("its output is on a pipe")?;
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let log = home.path().join("peer.log");
        let mut driver = Self { child, input, answers, log, version: String::new() };
        match driver.answer()? {
            DriverAnswer::Ready(version) => driver.version = version,
            DriverAnswer::Micros(_) => bail!("the driver printed times before a request"),
        }
        Ok(driver)
    }

    /// Returns the peer's package and version, as reported by the peer.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    fn answer(&self) -> Result<DriverAnswer> {
        for _ in 0..ANSWER_TIMEOUT_SEC {
            match self.answers.recv_timeout(Duration::from_secs(1)) {
                Ok(line) => {
                    return serde_json::from_str(&line).with_context(|| format!("the driver printed {line}"));
                }
                Err(RecvTimeoutError::Timeout) if shell::interrupted() => bail!("interrupted"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the driver ended: {}", self.last_error_line()),
            }
        }
        bail!("no answer for {ANSWER_TIMEOUT_SEC} s: {}", self.last_error_line())
    }

    /// Returns the last line with an error, or else the last line: Node prints more lines after the error than before
    /// it.
    fn last_error_line(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
        let error = lines.clone().rfind(|line| line.contains("Error"));
        error.or_else(|| lines.next_back()).unwrap_or("it printed nothing").to_owned()
    }
}

impl TimedShell for PeerDriver {
    fn ask(&mut self, times: usize) -> Result<Vec<Duration>> {
        let input = self.input.as_mut().context("its input is open until it is dropped")?;
        if writeln!(input, "{times}").is_err() {
            bail!("the driver ended: {}", self.last_error_line());
        }
        match self.answer()? {
            DriverAnswer::Micros(micros) => {
                ensure!(micros.len() == times, "{} times instead of {times}", micros.len());
                Ok(micros.into_iter().map(|time| Duration::from_secs_f64(time / 1e6)).collect())
            }
            DriverAnswer::Ready(_) => bail!("the driver restarted"),
        }
    }
}

impl Drop for PeerDriver {
    fn drop(&mut self) {
        drop(self.input.take());
        // The driver's output is closed after it has stopped its peer. The home ends the remaining processes.
        while self.answers.recv_timeout(Duration::from_secs(10)).is_ok() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The timeout in seconds. The slowest peer needs up to 2 s for a round, and about 10 s to start.
const ANSWER_TIMEOUT_SEC: u32 = 120;
