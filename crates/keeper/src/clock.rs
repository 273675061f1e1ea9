//! The two clocks of the keeper: wall-clock time for display and boot time for deadlines. Only this module reads a
//! clock.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the Unix epoch.
pub(crate) fn unix_micros() -> u64 {
    micros(ClockId::Realtime)
}

/// Microseconds of a monotonic clock that includes suspend (`CLOCK_BOOTTIME`).
pub(crate) fn ticks() -> u64 {
    micros(ClockId::Boottime)
}

fn micros(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}
