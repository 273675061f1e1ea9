//! Polls for an expected answer for a short time before blocking.
//!
//! Most shell commands take less time than waking a process on another processor. So a client that expects an answer
//! polls a few times before it blocks, and yields the processor between the polls. A miss means that the command takes
//! long or the machine is busy. Each miss doubles the number of waits that skip polling; up to 8 misses are tolerated
//! after hits. Without an expected answer there is no polling.

use crate::clock::boottime_micros;

/// Decides whether to poll again. Call [`Self::begin_wait`] first, then [`Self::on_miss`] after each miss or
/// [`Self::on_success`].
#[derive(Debug)]
pub struct AdaptiveSpin {
    max_spin_us: u64,
    spin_until: Option<u64>,
    last_poll_at: u64,
    /// Number of waits that skip polling.
    waits_to_skip: u32,
    /// The value of `skip` after the next miss.
    next_skip: u32,
    /// Number of misses that are tolerated, because of earlier hits.
    miss_credit: u32,
}

/// Maximum of consecutive waits that skip polling.
const MAX_SKIPPED_WAITS: u32 = 1 << 10;
/// Maximum number of tolerated misses.
const MAX_MISS_CREDIT: u32 = 8;
/// If a yield takes longer than this and no answer has arrived, other processes need the processor. In microseconds.
const BUSY_YIELD_US: u64 = 200;

impl AdaptiveSpin {
    /// Polls for at most this long, in microseconds.
    pub fn new(max_spin_us: u64) -> Self {
        Self {
            max_spin_us,
            spin_until: None,
            last_poll_at: 0,
            waits_to_skip: 0,
            next_skip: 1,
            miss_credit: 0,
        }
    }

    /// Call when an answer is expected.
    pub fn begin_wait(&mut self) {
        if self.waits_to_skip > 0 {
            self.waits_to_skip -= 1;
            return;
        }
        self.last_poll_at = boottime_micros();
        self.spin_until = Some(self.last_poll_at + self.max_spin_us);
    }

    /// Call when the answer has arrived.
    pub fn on_success(&mut self) {
        if self.spin_until.take().is_some() {
            self.next_skip = 1;
            self.miss_credit = (self.miss_credit + 1).min(MAX_MISS_CREDIT);
        }
    }

    /// Whether polling is active.
    pub fn is_spinning(&self) -> bool {
        self.spin_until.is_some()
    }

    /// Call after a poll without a result: yields the processor, or stops polling.
    pub fn on_miss(&mut self) {
        let Some(until) = self.spin_until else { return };
        let now = boottime_micros();
        if now >= until || now - self.last_poll_at > BUSY_YIELD_US {
            self.spin_until = None;
            if self.miss_credit > 0 {
                self.miss_credit -= 1;
            } else {
                self.waits_to_skip = self.next_skip;
                self.next_skip = (self.next_skip * 2).min(MAX_SKIPPED_WAITS);
            }
            return;
        }
        self.last_poll_at = now;
        rustix::thread::sched_yield();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the polls for answers that never arrive.
    fn count_polls(spin: &mut AdaptiveSpin, answers: u32) -> u32 {
        let mut looked = 0;
        for _ in 0..answers {
            spin.begin_wait();
            looked += u32::from(spin.is_spinning());
            while spin.is_spinning() {
                spin.on_miss();
            }
        }
        looked
    }

    #[test]
    fn repeated_misses_stop_the_polling() {
        let mut spin = AdaptiveSpin::new(1);
        assert!(count_polls(&mut spin, 1_000) < 12);
        assert!(!spin.is_spinning());
    }

    #[test]
    fn a_hit_keeps_the_polling_active() {
        let mut spin = AdaptiveSpin::new(1_000_000);
        for _ in 0..10 {
            spin.begin_wait();
            assert!(spin.is_spinning());
            spin.on_success();
            assert!(!spin.is_spinning());
        }
    }
}
