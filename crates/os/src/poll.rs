//! Waits for descriptors with a timeout that signals do not cut short.
//!
//! `poll` returns early with `EINTR` when a signal handler runs, for example for SIGCHLD. The function here continues
//! with the time that is left.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use crate::clock::monotonic;

/// Waits until a descriptor is ready. Returns the number of ready descriptors; 0 after the timeout.
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

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
