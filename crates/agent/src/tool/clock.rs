//! The monotonic clock for timeouts and the wall clock for the records of calls. Other files of `tool` call no clock.

/// Milliseconds of the monotonic clock.
pub(crate) fn monotonic_millis() -> u64 {
    u64::try_from(abide_os::clock::monotonic().as_millis()).unwrap_or(u64::MAX)
}

/// The current wall-clock time, for records.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().to_string()
}
