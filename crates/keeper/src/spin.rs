//! Staying awake for a moment for an answer that is about to come.
//!
//! Most commands of a shell take less time than waking a sleeping process on another processor. Whoever expects such an
//! answer looks for it a few times before it sleeps, and gives way to everybody else between the looks. When that was
//! in vain, because the command takes long or the machine has other things to do, the next ones are not looked for:
//! one more in vain, twice as many; a few are forgiven while most are not in vain. Nobody stays awake when nothing is expected.

use crate::clock::ticks;

/// Whether to look once more.
#[derive(Debug)]
pub struct AdaptiveSpin {
    patience_us: u64,
    until: Option<u64>,
    looked_at: u64,
    /// How many expected answers are not looked for.
    skip: u32,
    /// How many that will be after the next time in vain.
    next_skip: u32,
    /// How many times in vain are forgiven, because others were not.
    credit: u32,
}

/// The most answers in a row that are not looked for.
const MOST: u32 = 1 << 10;
/// The most times in vain that are forgiven.
const CREDIT: u32 = 8;
/// When giving way took this long, in microseconds, and brought nothing, somebody else needs the processor.
const CROWDED_US: u64 = 200;

impl AdaptiveSpin {
    /// Looks for at most this long, in microseconds.
    pub fn new(patience_us: u64) -> Self {
        Self { patience_us, until: None, looked_at: 0, skip: 0, next_skip: 1, credit: 0 }
    }

    /// An answer is expected.
    pub fn expect(&mut self) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.looked_at = ticks();
        self.until = Some(self.looked_at + self.patience_us);
    }

    /// It has come.
    pub fn came(&mut self) {
        if self.until.take().is_some() {
            self.next_skip = 1;
            self.credit = (self.credit + 1).min(CREDIT);
        }
    }

    /// Whether somebody is looking.
    pub fn is_looking(&self) -> bool {
        self.until.is_some()
    }

    /// A look found nothing: gives way to others, or gives up.
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

    /// How often something is looked for that never comes.
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
