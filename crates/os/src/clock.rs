//! The monotonic clock, for time limits. Not for timestamps: it starts anew with each boot.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since an unspecified point that stays the same until the next boot.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
