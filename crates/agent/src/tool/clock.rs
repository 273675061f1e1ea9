//! Time for waiting and for records. A door of its own: nothing else here asks for the time.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds that only ever go forward.
pub(crate) fn ticks_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Now, for people.
pub(crate) fn now() -> String {
    let now = clock_gettime(ClockId::Realtime);
    let nanoseconds = i32::try_from(now.tv_nsec).unwrap_or(0);
    jiff::Timestamp::new(now.tv_sec, nanoseconds).map(|at| at.to_string()).unwrap_or_default()
}
