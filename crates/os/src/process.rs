//! Processes by identity: their entry in `/proc`, and signals that cannot reach another process.
//!
//! A pid is reused as soon as its process has been reaped. So a signal is sent through a pidfd, and a pidfd is used
//! only after the process behind it has been identified. [`PidFd::open`] does both in an order without a race.
//!
//! The caller chooses the processes and the order of signals.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::poll::wait_ready;

/// The fields of `/proc/PID/stat` that identify processes and their relations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// One letter, such as `R`, `S`, `T` (stopped) or `Z` (zombie).
    pub state: u8,
    /// The pid of the parent; 0 if it is outside the PID namespace.
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// In clock ticks since boot.
    pub start_time: u64,
}

impl ProcessStat {
    /// The entry of the process with this pid. None if there is none.
    pub fn read(pid: u32) -> Option<Self> {
        // The line is shorter than the buffer, and one read returns all of it.
        let mut line = [0; 1024];
        let count = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
        Self::parse(&String::from_utf8_lossy(line.get(..count)?))
    }

    /// Parses a line of `/proc/PID/stat`. The command name in parentheses may contain spaces and parentheses, so the
    /// fields are counted from the last closing parenthesis.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = *fields.next()?.as_bytes().first()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        let start_time = fields.nth(15)?.parse().ok()?;
        Some(Self { state, parent, group, session, start_time })
    }

    /// Whether the process has ended and waits to be reaped.
    pub fn is_zombie(&self) -> bool {
        self.state == b'Z'
    }
}

/// A reference to one process. It never refers to another process, even if the pid is reused.
#[derive(Debug)]
pub struct PidFd {
    pid: u32,
    fd: OwnedFd,
}

impl PidFd {
    /// Opens the process with this pid, if `is_expected` accepts it. None if there is no such process, or it has ended.
    ///
    /// The pidfd is opened first. Then `/proc/PID/stat` and the data for `is_expected` are read, and finally the pidfd is
    /// checked. A process that has not ended by then had its pid during the whole time, so the data belongs to it.
    pub fn open(pid: u32, is_expected: impl FnOnce(&ProcessStat) -> bool) -> Option<Self> {
        let fd = pidfd_open(as_pid(pid)?, PidfdFlags::empty()).ok()?;
        let stat = ProcessStat::read(pid)?;
        let this = Self { pid, fd };
        (is_expected(&stat) && !this.has_ended()).then_some(this)
    }

    /// Opens the process with this pid and start time.
    pub fn open_started_at(pid: u32, start_time: u64) -> Option<Self> {
        Self::open(pid, |stat| stat.start_time == start_time)
    }

    /// Opens a child of this process. The caller must not have reaped it. Until then the pid belongs to the child, even
    /// if it has ended.
    pub fn of_child(pid: u32) -> Option<Self> {
        Some(Self { pid, fd: pidfd_open(as_pid(pid)?, PidfdFlags::empty()).ok()? })
    }

    /// The pid of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal. Succeeds without effect if the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the process has ended. True for a zombie.
    pub fn has_ended(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits until the process has ended, with a timeout. Returns whether it has ended.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        wait_ready(&mut fds, timeout).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn as_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abide_testkit::wait;

    #[expect(clippy::disallowed_methods, reason = "the test needs a process to signal")]
    fn sleeper() -> std::process::Child {
        std::process::Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = ProcessStat::parse("7 (a) R (b) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0").unwrap();
        assert_eq!((stat.state, stat.parent, stat.start_time), (b'S', 3, 4242));
        assert_eq!((stat.group, stat.session), (7, 7));
    }

    #[test]
    fn security_23_a_process_with_another_start_time_is_not_opened() {
        let mut child = sleeper();
        let started = ProcessStat::read(child.id()).unwrap().start_time;
        assert!(PidFd::open_started_at(child.id(), started + 1).is_none());
        let held = PidFd::open_started_at(child.id(), started).unwrap();
        held.signal(Signal::KILL).unwrap();
        assert!(held.wait(Duration::from_secs(60)));
        // A zombie keeps its pid and its start time, but is not opened.
        assert!(PidFd::open_started_at(child.id(), started).is_none());
        child.wait().unwrap();
        assert_eq!(held.signal(Signal::KILL), Ok(()), "a process that is gone is no error");
    }

    #[test]
    fn security_11_a_pidfd_of_a_reaped_child_signals_no_later_process() {
        let mut child = sleeper();
        let held = PidFd::of_child(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(held.has_ended());
        let mut other = sleeper();
        assert_eq!(held.signal(Signal::KILL), Ok(()));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        wait::until("it has ended", || other.try_wait().unwrap().is_some());
    }
}
