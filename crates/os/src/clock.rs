//! The clocks of the kernel. Only this module reads them, besides the port `Clock` of the daemon.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since an unspecified point that is constant until the next boot, without suspend. For time limits of work.
pub fn monotonic() -> Duration {
    read(ClockId::Monotonic)
}

/// Time since the boot, with suspend. For deadlines.
pub fn boottime() -> Duration {
    read(ClockId::Boottime)
}

/// Time since the Unix epoch. For timestamps; it can go backwards.
pub fn since_epoch() -> Duration {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
