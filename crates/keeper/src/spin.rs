//! Polls for an expected answer for a short time before blocking.
//!
//! Most shell commands take less time than waking a process on another processor. So a client that expects an answer
//! polls a few times before it blocks, and yields the processor between the polls. A miss means that the command takes
//! long or the machine is busy. Each miss doubles the number of waits that skip polling; up to 8 misses are tolerated
//! after hits. Without an expected answer there is no polling.

use crate::clock::ticks;

/// Decides whether to poll again. Call [`Self::expect`] first, then [`Self::saw_nothing`] after each miss or
/// [`Self::came`].
#[derive(Debug)]
pub struct AdaptiveSpin {
    patience_us: u64,
    until: Option<u64>,
    looked_at: u64,
    /// Number of waits that skip polling.
    skip: u32,
    /// The value of `skip` after the next miss.
    next_skip: u32,
    /// Number of misses that are tolerated, because of earlier hits.
    credit: u32,
}

/// Maximum of consecutive waits that skip polling.
const MOST: u32 = 1 << 10;
/// Maximum number of tolerated misses.
const CREDIT: u32 = 8;
/// If a yield takes longer than this and no answer has arrived, other processes need the processor. In microseconds.
const CROWDED_US: u64 = 200;

impl AdaptiveSpin {
    /// Polls for at most this long, in microseconds.
    pub fn new(patience_us: u64) -> Self {
        Self { patience_us, until: None, looked_at: 0, skip: 0, next_skip: 1, credit: 0 }
    }

    /// Call when an answer is expected.
    pub fn expect(&mut self) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.looked_at = ticks();
        self.until = Some(self.looked_at + self.patience_us);
    }

    /// Call when the answer has arrived.
    pub fn came(&mut self) {
        if self.until.take().is_some() {
            self.next_skip = 1;
            self.credit = (self.credit + 1).min(CREDIT);
        }
    }

    /// Whether polling is active.
    pub fn is_looking(&self) -> bool {
        self.until.is_some()
    }

    /// Call after a poll without a result: yields the processor, or stops polling.
    pub fn saw_nothing(&mut self) {
        let Some(until) = self.until else { return };
        let now = ticks();
        if now >= until || now - self.looked_at > CROWDED_US {
            self.until = None;
            if self.credit > 0 {
                self.credit -= 1;
            } else {
                self.skip = self.next_skip;
                self.next_skip = (self.next_skip * 2).min(MOST);
            }
            return;
        }
        self.looked_at = now;
        rustix::thread::sched_yield();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the polls for answers that never arrive.
    fn looks(spin: &mut AdaptiveSpin, answers: u32) -> u32 {
        let mut looked = 0;
        for _ in 0..answers {
            spin.expect();
            looked += u32::from(spin.is_looking());
            while spin.is_looking() {
                spin.saw_nothing();
            }
        }
        looked
    }

    #[test]
    fn what_never_comes_at_once_is_soon_not_looked_for() {
        let mut spin = AdaptiveSpin::new(1);
        assert!(looks(&mut spin, 1_000) < 12);
        assert!(!spin.is_looking());
    }

    #[test]
    fn what_came_in_time_is_looked_for_again() {
        let mut spin = AdaptiveSpin::new(1_000_000);
        for _ in 0..10 {
            spin.expect();
            assert!(spin.is_looking());
            spin.came();
            assert!(!spin.is_looking());
        }
    }
}
