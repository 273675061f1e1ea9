//! One daemon process, from its start to its exit.

use std::{
    fs::File,
    io::{BufRead, BufReader, Seek},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout},
};

use super::home::text_after;
use crate::proc;

/// A daemon process that a test started. Dropping it kills the process.
#[derive(Debug)]
pub struct TestDaemon {
    child: Child,
    /// Held open, because writes of the daemon would otherwise fail with a broken pipe.
    stdout: BufReader<ChildStdout>,
    ready: bool,
    log: File,
    /// The length of the log when the daemon was started.
    log_start: u64,
}

/// How a daemon exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonExit {
    /// The daemon was ended by SIGKILL.
    Killed,
    /// With this exit code.
    Exited(Option<i32>),
}

impl TestDaemon {
    /// Waits until the daemon prints its address or exits.
    pub(super) fn wait_until_ready(child: Child, log: &File) -> Self {
        let mut daemon = Self::spawned(child, log);
        let mut line = String::new();
        daemon.ready = daemon.stdout.read_line(&mut line).is_ok() && line.starts_with("http://");
        daemon
    }

    /// Does not wait for the daemon.
    pub(super) fn spawned(mut child: Child, log: &File) -> Self {
        let stdout = child.stdout.take().expect("its output goes to a pipe");
        let log = log.try_clone().expect("the file is open");
        let log_start = (&log).stream_position().expect("it is a file");
        Self { child, stdout: BufReader::new(stdout), ready: false, log, log_start }
    }

    /// Whether the daemon printed its address.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how the daemon exited, or `None` while it runs.
    pub fn try_exit(&mut self) -> Option<DaemonExit> {
        self.child.try_wait().ok().flatten().map(daemon_exit)
    }

    /// Kills the daemon with SIGKILL and waits for its exit.
    pub fn kill(mut self) -> DaemonExit {
        // The daemon may have exited.
        self.child.kill().ok();
        self.wait()
    }

    /// Sends SIGTERM, which leaves running turns to the keepers, and waits for the exit.
    pub fn terminate(self) -> DaemonExit {
        signal(self.child.id(), "TERM");
        self.wait()
    }

    /// Sends a signal. `name` is a signal name of `kill(1)`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits until the daemon exits.
    pub fn wait(mut self) -> DaemonExit {
        self.wait_for_exit()
    }

    /// Like [`TestDaemon::wait`]; the standard error can be read afterwards.
    pub fn wait_for_exit(&mut self) -> DaemonExit {
        self.child.wait().map_or(DaemonExit::Exited(None), daemon_exit)
    }

    /// Returns everything that was written to standard error since this daemon was started.
    pub fn stderr(&self) -> String {
        text_after(&self.log, self.log_start)
    }

    /// Returns the peak memory of the daemon, in bytes.
    pub fn peak_memory(&self) -> u64 {
        proc::peak_memory(self.pid())
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        // The daemon may have exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends a signal to one process.
#[expect(
    clippy::disallowed_methods,
    reason = "tests from outside start programs, and kill(1) needs no unsafe code"
)]
pub(super) fn signal(pid: u32, name: &str) {
    // The process may have exited.
    std::process::Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .stderr(std::process::Stdio::null())
        .status()
        .ok();
}

fn daemon_exit(status: std::process::ExitStatus) -> DaemonExit {
    match (status.signal(), status.code()) {
        (Some(9), _) => DaemonExit::Killed,
        (_, code) => DaemonExit::Exited(code),
    }
}
