//! The clocks of the runtime. Only this module reads a clock.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the Unix epoch.
pub(crate) fn unix_micros() -> u64 {
    micros(ClockId::Realtime)
}

/// Milliseconds of a monotonic clock that includes suspend.
pub(crate) fn ticks() -> u64 {
    micros(ClockId::Boottime) / 1_000
}

fn micros(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}
