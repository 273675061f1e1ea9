//! The monotonic clock for timeouts and the wall clock for the records of calls. Other files of `tool` call no clock.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of the monotonic clock.
pub(crate) fn ticks_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// The current wall-clock time, for records.
pub(crate) fn now() -> String {
    let now = clock_gettime(ClockId::Realtime);
    let nanoseconds = i32::try_from(now.tv_nsec).unwrap_or(0);
    jiff::Timestamp::new(now.tv_sec, nanoseconds).map(|at| at.to_string()).unwrap_or_default()
}
