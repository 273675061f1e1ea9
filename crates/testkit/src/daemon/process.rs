//! One daemon process, from its start to its exit.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout},
};

/// A daemon process that a test started.
#[derive(Debug)]
pub struct TestDaemon {
    child: Child,
    /// Held open, because writes of the daemon would otherwise fail with a broken pipe.
    _stdout: BufReader<ChildStdout>,
    ready: bool,
}

/// How a daemon exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonExit {
    /// By SIGKILL.
    Killed,
    /// With this exit code.
    Exited(Option<i32>),
}

impl TestDaemon {
    /// Waits until the daemon prints its address or exits.
    pub(super) fn new(mut child: Child) -> Self {
        let stdout = child.stdout.take().expect("its output goes to a pipe");
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let ready = stdout.read_line(&mut line).is_ok() && line.starts_with("http://");
        Self { child, _stdout: stdout, ready }
    }

    /// Does not wait for the daemon.
    pub(super) fn spawned(mut child: Child) -> Self {
        let stdout = child.stdout.take().expect("its output goes to a pipe");
        Self { child, _stdout: BufReader::new(stdout), ready: false }
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
        self.child.wait().map_or(DaemonExit::Exited(None), daemon_exit)
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
