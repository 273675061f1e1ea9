//! Continues the child after a signal has stopped it.
//!
//! A tool can stop the agent that started it, which is the child of this keeper, and a shell can stop itself. Only a
//! parent with job control would continue them, and the keeper has none. Without this, the child would keep its slot or
//! session for ever. Descendants of the child are left to their parents.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::{ChildFd, ChildSupervisor};
use crate::clock::boottime_micros;
use crate::process_tree;
use crate::protocol::KeeperResponse;

/// Time between a stop and SIGCONT, in microseconds. It doubles from the first to the last value while the child is
/// stopped again and again.
const MIN_RESUME_DELAY_US: u64 = 100_000;
const MAX_RESUME_DELAY_US: u64 = 10_000_000;
/// After this time without a stop, the delay starts at its first value, in microseconds.
const RESUME_DELAY_RESET_US: u64 = 60_000_000;

/// The stops of the child.
#[derive(Debug, Default)]
pub(super) struct ChildResume {
    due_at: Option<u64>,
    /// The delay of the last SIGCONT, and its time.
    last: Option<(u64, u64)>,
    /// Number of times that the child was continued.
    count: u64,
}

impl ChildResume {
    pub(super) fn wakes_at(&self) -> Option<u64> {
        self.due_at
    }

    fn on_stop(&mut self, now: u64) {
        self.due_at.get_or_insert(now + self.next_delay_us(now));
    }

    fn next_delay_us(&self, now: u64) -> u64 {
        match self.last {
            Some((delay_us, at)) if now.saturating_sub(at) < RESUME_DELAY_RESET_US => {
                (delay_us * 2).min(MAX_RESUME_DELAY_US)
            }
            Some(_) | None => MIN_RESUME_DELAY_US,
        }
    }

    /// Whether the child is to be continued now, if it is still stopped.
    fn take_due(&mut self, now: u64) -> bool {
        self.due_at.take_if(|at| *at <= now).is_some()
    }

    fn on_resume(&mut self, now: u64) {
        self.last = Some((self.next_delay_us(now), now));
        self.count += 1;
    }
}

impl ChildSupervisor {
    /// Notices that the child was stopped. Called after SIGCHLD, which reports stops, too.
    pub(super) fn note_child_stop(&mut self) {
        let child = i32::try_from(self.child.pid).ok().and_then(Pid::from_raw);
        let Some(child) = child.filter(|_| !matches!(self.child_fd, ChildFd::Reaped)) else { return };
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(_)) = waitid(WaitId::Pid(child), options) {
            self.child_resume.on_stop(boottime_micros());
        }
    }

    /// Continues the child if that is due, and reports it to the clients. A shell that this keeper holds stopped during
    /// the stop of a command stays stopped.
    pub(super) fn resume_child(&mut self, now: u64) {
        if self.child_resume.take_due(now) && !self.holds_shell() && process_tree::is_stopped(self.child.pid)
        {
            self.signal_child(Signal::CONT);
            self.child_resume.on_resume(now);
            let count = self.child_resume.count;
            self.clients.broadcast(|| KeeperResponse::ChildResumed(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_to_a_bound_while_a_child_is_stopped_repeatedly_and_is_reset_later() {
        let mut resume = ChildResume::default();
        let mut now = 0;
        let mut delays_ms = Vec::new();
        for _ in 0..10 {
            resume.on_stop(now);
            assert!(!resume.take_due(now));
            let due_at = resume.wakes_at().unwrap();
            delays_ms.push((due_at - now) / 1_000);
            now = due_at;
            assert!(resume.take_due(now) && !resume.take_due(now));
            resume.on_resume(now);
        }
        assert_eq!(delays_ms, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
        resume.on_stop(now + RESUME_DELAY_RESET_US);
        assert_eq!(resume.wakes_at(), Some(now + RESUME_DELAY_RESET_US + MIN_RESUME_DELAY_US));
    }
}
