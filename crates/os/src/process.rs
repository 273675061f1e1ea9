//! Processes by identity: what `/proc` says about one, and signals that cannot reach another.
//!
//! A pid is reused as soon as its process has been reaped. A signal therefore goes through a pidfd, and a pidfd is only used
//! after the process behind it has been identified. [`PidFd::open`] does both in an order that cannot race.
//!
//! Not here: which process is meant, and in which order several are signalled. The caller decides both.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The fields of `/proc/PID/stat` that tell processes apart and show how they are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// One letter, such as `R`, `S`, `T` (stopped) or `Z` (zombie).
    pub state: u8,
    /// The pid of the parent.
    pub parent: u32,
    /// The process group.
    pub group: u32,
    /// The session.
    pub session: u32,
    /// When the process started, in clock ticks since boot.
    pub start_time: u64,
}

impl ProcessStat {
    /// What the kernel says about the process that has this pid now. None if there is none.
    pub fn read(pid: u32) -> Option<Self> {
        // The line is shorter than this, and one read returns all of it.
        let mut line = [0; 1024];
        let count = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
        Self::parse(&String::from_utf8_lossy(line.get(..count)?))
    }

    /// Parses a line of `/proc/PID/stat`. The command name in brackets may contain spaces and brackets, so the fields are
    /// counted from the last closing bracket.
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

/// A reference to one process. It never refers to another process, also when the pid has been reused.
#[derive(Debug)]
pub struct PidFd {
    pid: u32,
    fd: OwnedFd,
}

impl PidFd {
    /// Refers to the process that has this pid and for which `is_meant` holds. None if there is no such process, or it has
    /// ended.
    ///
    /// The pidfd is opened first, then `/proc/PID/stat` and whatever `is_meant` looks at is read, then the pidfd is checked. A process that has not ended by
    /// then had its pid during the whole time, so everything that was read is its own.
    pub fn open(pid: u32, is_meant: impl FnOnce(&ProcessStat) -> bool) -> Option<Self> {
        let fd = pidfd_open(as_pid(pid)?, PidfdFlags::empty()).ok()?;
        let stat = ProcessStat::read(pid)?;
        let this = Self { pid, fd };
        (is_meant(&stat) && !this.has_ended()).then_some(this)
    }

    /// Refers to the process that has this pid and started at that time.
    pub fn open_started_at(pid: u32, start_time: u64) -> Option<Self> {
        Self::open(pid, |stat| stat.start_time == start_time)
    }

    /// Refers to a child of this process. The caller must not have reaped it: until then the pid is the child's own, also
    /// if the child has ended.
    pub fn of_child(pid: u32) -> Option<Self> {
        Some(Self { pid, fd: pidfd_open(as_pid(pid)?, PidfdFlags::empty()).ok()? })
    }

    /// The pid that the process had when it was opened.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal. A process that has ended gets none, which is not an error.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the process has ended. A zombie has.
    pub fn has_ended(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits until the process has ended, at most for this time. Whether it has.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
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
        // A zombie keeps its pid and its start time, and is not opened all the same.
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
