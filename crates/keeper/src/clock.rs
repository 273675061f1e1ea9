//! The two clocks of the keeper and its clients.

use abide_os::clock;

/// Microseconds since the Unix epoch, for display.
pub(crate) fn unix_micros() -> u64 {
    micros(clock::since_epoch())
}

/// Microseconds since the boot, with suspend, for deadlines.
pub(crate) fn boottime_micros() -> u64 {
    micros(clock::boottime())
}

/// Milliseconds since the boot, with suspend, for timeouts of clients.
pub(crate) fn boottime_millis() -> u64 {
    boottime_micros() / 1_000
}

fn micros(time: std::time::Duration) -> u64 {
    time.as_secs() * 1_000_000 + u64::from(time.subsec_micros())
}
