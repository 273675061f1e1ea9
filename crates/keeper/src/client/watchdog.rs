//! Watches a keeper that owes a response.
//!
//! A program below a keeper can stop it, with a signal or by tracing it. A keeper that a signal stopped is continued.
//! SIGCONT does not end a tracing stop, and a program can stop its keeper again and again. So a keeper that stays
//! stopped is overdue, and has to be killed.

use super::timeouts::{
    RESUME_INTERVAL_MS, STOPPED_END_TIMEOUT_MS, STOPPED_RESUME_INTERVAL_MS, STOPPED_TIMEOUT_MS,
};
use crate::clock::boottime_millis;
use crate::keeper_dir::KeeperDir;
use crate::launch::resume_stopped_keeper;

/// The response that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperDuty {
    /// Any response, at any time.
    Respond,
    /// The end of the child or of a command, after a request or a timeout. The keeper's own sequence of signals takes 5
    /// to 6 s.
    Stop,
}

/// The verdict on a keeper that has not responded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperWatch {
    Waiting,
    /// It stays stopped and must be killed.
    Overdue,
}

/// The stops of one keeper while it owes a response.
///
/// Only time between checks counts. A client that was stopped itself, or slept with the machine, does not take that
/// time for the keeper's.
#[derive(Debug)]
pub struct KeeperWatchdog {
    last_check_ms: u64,
    next_check_ms: u64,
    /// For how long the keeper was stopped, less the time for which it ran.
    stopped_ms: u64,
}

impl KeeperWatchdog {
    pub fn new() -> Self {
        let now = boottime_millis();
        Self { last_check_ms: now, next_check_ms: now + RESUME_INTERVAL_MS, stopped_ms: 0 }
    }

    /// Records a response.
    pub fn on_response(&mut self) {
        self.stopped_ms = 0;
    }

    /// Time until the next check, in milliseconds.
    pub fn next_check_in_ms(&self) -> u64 {
        self.next_check_ms.saturating_sub(boottime_millis())
    }

    /// Continues the keeper if it is stopped, unless it was checked recently.
    pub fn check(&mut self, keeper_dir: &KeeperDir, duty: KeeperDuty) -> KeeperWatch {
        let now = boottime_millis();
        if now < self.next_check_ms {
            return KeeperWatch::Waiting;
        }
        let is_stopped = resume_stopped_keeper(keeper_dir);
        self.observe(now, is_stopped, duty)
    }

    fn observe(&mut self, now: u64, is_stopped: bool, duty: KeeperDuty) -> KeeperWatch {
        let elapsed = now.saturating_sub(self.last_check_ms).min(2 * RESUME_INTERVAL_MS);
        self.last_check_ms = now;
        let (limit_ms, interval_ms) = match (duty, is_stopped) {
            // A program that stops its keeper repeatedly must not delay its own end: with one check a second, the
            // keeper would hardly run.
            (KeeperDuty::Stop, true) => (STOPPED_END_TIMEOUT_MS, STOPPED_RESUME_INTERVAL_MS),
            (KeeperDuty::Stop, false) => (STOPPED_END_TIMEOUT_MS, RESUME_INTERVAL_MS),
            (KeeperDuty::Respond, _) => (STOPPED_TIMEOUT_MS, RESUME_INTERVAL_MS),
        };
        self.next_check_ms = now + interval_ms;
        if !is_stopped {
            self.stopped_ms = self.stopped_ms.saturating_sub(elapsed);
            return KeeperWatch::Waiting;
        }
        self.stopped_ms += elapsed;
        if self.stopped_ms < limit_ms { KeeperWatch::Waiting } else { KeeperWatch::Overdue }
    }
}

impl Default for KeeperWatchdog {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time until a keeper that is in this state at each check is overdue, in milliseconds.
    fn overdue_after_ms(duty: KeeperDuty, is_stopped: impl Fn(u64) -> bool) -> Option<u64> {
        let mut watchdog = KeeperWatchdog { last_check_ms: 0, next_check_ms: 0, stopped_ms: 0 };
        loop {
            let now = watchdog.next_check_ms;
            if now > 100_000 {
                return None;
            }
            if watchdog.observe(now, is_stopped(now), duty) == KeeperWatch::Overdue {
                return Some(now);
            }
        }
    }

    #[test]
    fn a_keeper_is_overdue_only_if_it_stays_stopped_and_earlier_if_it_has_to_stop_something() {
        assert_eq!(overdue_after_ms(KeeperDuty::Respond, |_| false), None);
        assert_eq!(overdue_after_ms(KeeperDuty::Stop, |_| false), None);
        assert_eq!(overdue_after_ms(KeeperDuty::Respond, |_| true), Some(30_000));
        assert_eq!(overdue_after_ms(KeeperDuty::Stop, |_| true), Some(8_000));
        assert_eq!(overdue_after_ms(KeeperDuty::Respond, |now| now % 2_000 == 0), None);
        assert_eq!(overdue_after_ms(KeeperDuty::Respond, |now| now % 10_000 != 0), Some(36_000));
    }

    #[test]
    fn a_response_and_the_sleep_of_the_machine_do_not_count_as_a_stop() {
        let mut watchdog = KeeperWatchdog { last_check_ms: 0, next_check_ms: 0, stopped_ms: 7_000 };
        watchdog.on_response();
        assert_eq!(watchdog.observe(1_000, true, KeeperDuty::Stop), KeeperWatch::Waiting);
        assert_eq!(watchdog.observe(3_600_000, true, KeeperDuty::Stop), KeeperWatch::Waiting);
    }
}
