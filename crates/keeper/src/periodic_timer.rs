//! A periodic timer that runs only while it is needed.
//!
//! A timeout on every wait would set and clear a kernel timer for each command, which costs more than the command. This
//! timer keeps running, and stops after a whole period without work.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

#[derive(Debug)]
pub struct PeriodicTimer {
    timer: OwnedFd,
    period_us: u64,
    is_running: bool,
}

impl PeriodicTimer {
    pub fn new(period_us: u64) -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, period_us, is_running: false })
    }

    pub fn start(&mut self) {
        if !self.is_running {
            self.set(self.period_us);
        }
    }

    /// Consumes a tick; stops the timer unless it is still wanted.
    pub fn tick(&mut self, wanted: bool) {
        let _ticks = rustix::io::read(&self.timer, &mut [0; 8]);
        if !wanted {
            self.set(0);
        }
    }

    fn set(&mut self, period_us: u64) {
        let time = Timespec {
            tv_sec: i64::try_from(period_us / 1_000_000).unwrap_or(0),
            tv_nsec: i64::try_from(period_us % 1_000_000).unwrap_or(0) * 1_000,
        };
        let period = Itimerspec { it_interval: time, it_value: time };
        self.is_running =
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &period).is_ok() && period_us > 0;
    }
}

impl AsFd for PeriodicTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
