//! Waits for file descriptors, with a timeout.
//!
//! `poll` returns early with `EINTR` when a signal handler runs, for example for SIGCHLD. [`wait_ready`] continues with
//! the time that is left; the other functions report the signal to the caller.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock::monotonic;

/// Waits until a descriptor is ready. Returns the number of ready descriptors; 0 after the timeout. A signal does not
/// end the wait.
pub fn wait_ready(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<usize, Errno> {
    let deadline = monotonic().saturating_add(timeout);
    let mut left = timeout;
    loop {
        match poll(fds, Some(&timespec(left))) {
            Err(Errno::INTR) => left = deadline.saturating_sub(monotonic()),
            result => return result,
        }
    }
}

/// Waits until one of the descriptors is readable or closed. Returns for each whether it is; none is after the timeout.
/// A signal is the error [`io::ErrorKind::Interrupted`].
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    wait(fds, PollFlags::IN, timeout)
}

/// Waits until the descriptor can be written or is closed. Returns false after the timeout.
pub fn wait_writable(fd: impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    Ok(wait(&[fd.as_fd()], PollFlags::OUT, timeout)?.contains(&true))
}

fn wait(fds: &[BorrowedFd<'_>], flags: PollFlags, timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, flags)).collect();
    poll(&mut polled, timeout.map(timespec).as_ref())?;
    Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn only_the_readable_descriptor_is_reported() {
        let (silent, _open) = UnixStream::pair().unwrap();
        let (readable, mut other) = UnixStream::pair().unwrap();
        let fds = [silent.as_fd(), readable.as_fd()];
        assert_eq!(wait_readable(&fds, Some(Duration::from_millis(1))).unwrap(), [false, false]);
        other.write_all(b"x").unwrap();
        assert_eq!(wait_readable(&fds, None).unwrap(), [false, true]);
        assert!(wait_writable(&silent, None).unwrap());
    }
}
