//! The monotonic clock, for time limits. It restarts with each boot, so it is not for timestamps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since an unspecified point that is constant until the next boot.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
