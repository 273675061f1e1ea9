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
    /// The period after [`Self::start`].
    initial_period_us: u64,
    /// The current period; 0 if the timer is stopped.
    period_us: u64,
}

impl PeriodicTimer {
    pub fn new(initial_period_us: u64) -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer, initial_period_us, period_us: 0 })
    }

    pub fn start(&mut self) {
        if self.period_us == 0 {
            self.set(self.initial_period_us);
        }
    }

    /// Consumes a tick; stops the timer unless it is still wanted.
    pub fn tick(&mut self, wanted: bool) {
        self.tick_with_period(wanted.then_some(self.initial_period_us));
    }

    /// Consumes a tick, and sets the period in microseconds; None stops the timer.
    pub fn tick_with_period(&mut self, period_us: Option<u64>) {
        let _ticks = rustix::io::read(&self.timer, &mut [0; 8]);
        let period_us = period_us.unwrap_or(0);
        if period_us != self.period_us {
            self.set(period_us);
        }
    }

    fn set(&mut self, period_us: u64) {
        let time = Timespec {
            tv_sec: i64::try_from(period_us / 1_000_000).unwrap_or(0),
            tv_nsec: i64::try_from(period_us % 1_000_000).unwrap_or(0) * 1_000,
        };
        let period = Itimerspec { it_interval: time, it_value: time };
        let is_set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &period).is_ok();
        self.period_us = if is_set { period_us } else { 0 };
    }
}

impl AsFd for PeriodicTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
