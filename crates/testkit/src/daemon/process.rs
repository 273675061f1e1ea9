//! One daemon process, from its start to its death.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout},
};

/// A daemon that was started.
#[derive(Debug)]
pub struct TestDaemon {
    child: Child,
    /// Held open: a daemon that cannot print is another story.
    _stdout: BufReader<ChildStdout>,
    ready: bool,
}

/// How a daemon died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonExit {
    /// Of SIGKILL.
    Killed,
    /// By itself, with this code.
    Exited(Option<i32>),
}

impl TestDaemon {
    /// Waits until the daemon says where it is, or is over.
    pub(super) fn new(mut child: Child) -> Self {
        let stdout = child.stdout.take().expect("its output goes to a pipe");
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let ready = stdout.read_line(&mut line).is_ok() && line.starts_with("http://");
        Self { child, _stdout: stdout, ready }
    }

    /// Does not wait for anything.
    pub(super) fn unseen(mut child: Child) -> Self {
        let stdout = child.stdout.take().expect("its output goes to a pipe");
        Self { child, _stdout: BufReader::new(stdout), ready: false }
    }

    /// Whether it got as far as to say that it is ready.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it died, if it did.
    pub fn death(&mut self) -> Option<DaemonExit> {
        self.child.try_wait().ok().flatten().map(death)
    }

    /// Kills it as a power failure would, and waits until it is gone.
    pub fn kill(mut self) -> DaemonExit {
        let _it_may_be_dead_already = self.child.kill();
        self.wait()
    }

    /// Asks it to go and leave everything to the keepers.
    pub fn terminate(self) -> DaemonExit {
        signal(self.child.id(), "TERM");
        self.wait()
    }

    /// Sends it a signal, named as by `kill`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits until it is gone by itself.
    pub fn wait(mut self) -> DaemonExit {
        self.child.wait().map_or(DaemonExit::Exited(None), death)
    }
}

/// Sends a signal to one process.
#[expect(
    clippy::disallowed_methods,
    reason = "tests from outside start programs, and kill(1) needs no unsafe code"
)]
pub(super) fn signal(pid: u32, name: &str) {
    let _it_may_be_gone = std::process::Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
}

fn death(status: std::process::ExitStatus) -> DaemonExit {
    match (status.signal(), status.code()) {
        (Some(9), _) => DaemonExit::Killed,
        (_, code) => DaemonExit::Exited(code),
    }
}
