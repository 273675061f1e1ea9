//! The two clocks of the runtime.

use abide_os::clock;

/// Microseconds since the Unix epoch, for display.
pub(crate) fn unix_micros() -> u64 {
    u64::try_from(clock::since_epoch().as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds since the boot, with suspend, for deadlines.
pub(crate) fn boottime_millis() -> u64 {
    u64::try_from(clock::boottime().as_millis()).unwrap_or(u64::MAX)
}
