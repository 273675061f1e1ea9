//! The runtime's clocks. Nobody else in this crate asks what time it is.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the Unix epoch.
pub(crate) fn unix_micros() -> u64 {
    micros(ClockId::Realtime)
}

/// Milliseconds that only ever grow.
pub(crate) fn ticks() -> u64 {
    micros(ClockId::Boottime) / 1_000
}

fn micros(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}
