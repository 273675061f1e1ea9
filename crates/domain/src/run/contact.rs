//! A process ends without a word, is out of contact, or is found again.
//!
//! A restart of the daemon is nothing else: what it finds dead or alive comes in through here.

use alloc::{format, string::String};

use super::{Active, Hold, News, Recovering, RunState, Waiting, Working, draft::Draft};
use crate::{
    deadline::{MAX_LOSSES, RECOVERY_BOUND},
    effect::Effect,
    failure::{Failure, FailureCode},
    process::{Attempt, Exit, Live, Losses, Position, Process},
    time::{Seconds, Span},
    turn::{ExecutionStatus, RuntimeStatus},
};

impl Draft {
    pub(super) fn process_exited(&mut self, attempt: Attempt, exit: Exit) -> News {
        if self.run.attempt() != Some(attempt) {
            // Late, but it settles the order to end it.
            return if self.note_exit(attempt, exit) { News::Changed } else { News::Absorbed };
        }
        self.note_exit(attempt, exit);
        match &self.run.state {
            // An engine that can be asked may still know how the turn ended.
            RunState::Running(Working::Recovering(_)) if self.run.abilities.recover => {
                let turn_id = self.turn_id();
                self.owe(Effect::Recover { attempt, turn_id });
            }
            RunState::Running(Working::Launching(_) | Working::Active(_) | Working::Recovering(_)) => {
                match exit {
                    Exit::Code(code) => {
                        self.leave_dead_process();
                        let message = format!("the engine ended with code {code} before its turn was over");
                        self.turn_failed(Failure::new(FailureCode::EngineFailed, message));
                    }
                    Exit::Unseen if self.run.abilities.recover => self.search(RECOVERY_BOUND),
                    Exit::Unseen => {
                        self.leave_dead_process();
                        self.outcome_unknown("the engine's process is gone and nobody saw how it ended");
                    }
                }
            }
            RunState::Running(Working::Stopping(stopping)) => {
                let stopping = stopping.clone();
                self.leave_dead_process();
                self.stopped_for_good(&stopping);
            }
            // An engine that takes its leave while nobody waits for it has not failed anyone.
            RunState::Idle { .. } if exit == Exit::Code(0) => {
                self.leave_dead_process();
                self.let_go("the chat's engine has ended; start a new one to go on");
            }
            RunState::WaitingUser(Waiting { hold: Hold::Turn { .. }, .. }) if self.voids_requests() => {
                self.leave_dead_process();
                self.request_void(&ended_at_request(exit));
            }
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                self.leave_dead_process();
                self.fail(Failure::new(
                    FailureCode::InteractionProcessLost,
                    "the process that waited for an answer is gone",
                ));
            }
            RunState::Queued { .. } | RunState::Running(Working::Probing) | RunState::Finished(_) => {}
        }
        News::Changed
    }

    /// Connection trouble is ours, not the task's (E11): a question stays open, a turn is searched for.
    pub(super) fn contact_lost(&mut self, attempt: Attempt, within: Option<Seconds>) -> News {
        if self.run.attempt() != Some(attempt) || self.is_searching() {
            return News::Absorbed;
        }
        match &self.run.state {
            RunState::Running(Working::Active(_)) => {
                self.search(within.unwrap_or(RECOVERY_BOUND));
                News::Changed
            }
            // Nothing is at work that could be searched for too long: a wait ends only with its process (A12).
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                let pause = self.count_loss();
                let turn_id = self.turn_id();
                self.owe_at(self.at.after(pause), Effect::Recover { attempt, turn_id });
                News::Changed
            }
            // A launch is found out by performing it again; a stop has its own deadline.
            RunState::Running(
                Working::Probing | Working::Launching(_) | Working::Stopping(_) | Working::Recovering(_),
            )
            | RunState::Queued { .. }
            | RunState::Finished(_) => News::Absorbed,
        }
    }

    pub(super) fn contact_restored(&mut self, attempt: Attempt, process: &Process) -> News {
        if self.run.attempt() != Some(attempt) {
            return News::Absorbed;
        }
        let found = self.forgive(|effect| matches!(effect, Effect::Recover { .. }));
        match &self.run.state {
            RunState::Running(Working::Recovering(recovering)) => {
                let known = recovering.found(self.at);
                let turn_deadline = recovering.work_left.map(|left| self.at.after(left));
                let process = process.clone();
                let live = match known {
                    Some(known) => Live { process, ..known },
                    None => Live {
                        attempt,
                        process,
                        heard: Position::default(),
                        must_confirm: self.run.has_history,
                        losses: Losses::default(),
                    },
                };
                self.run.state = RunState::Running(Working::Active(Active { live, turn_deadline }));
                let turn = self.turn();
                turn.execution_status = ExecutionStatus::Running;
                turn.runtime_status = RuntimeStatus::Active;
                News::Changed
            }
            // The search was for something that has gone on meanwhile: it is over all the same.
            RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Queued { .. }
            | RunState::Finished(_) => {
                if found {
                    News::Changed
                } else {
                    News::Absorbed
                }
            }
        }
    }

    /// Counts only while the search is on: a search that was made twice may have two ends.
    pub(super) fn recovery_failed(&mut self, attempt: Attempt, reason: &str) -> News {
        if self.run.attempt() != Some(attempt) || !self.is_searching() {
            return News::Absorbed;
        }
        match &self.run.state {
            RunState::Running(Working::Recovering(_)) => {
                self.outcome_unknown(reason);
                News::Changed
            }
            RunState::WaitingUser(Waiting { hold: Hold::Turn { .. }, .. }) if self.voids_requests() => {
                self.end_process();
                self.leave_dead_process();
                self.request_void(reason);
                News::Changed
            }
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                self.fail(Failure::new(FailureCode::InteractionProcessLost, reason));
                News::Changed
            }
            // A held process was given a new turn while it was searched for.
            RunState::Running(Working::Active(_)) => {
                self.outcome_unknown(reason);
                News::Changed
            }
            RunState::Running(Working::Stopping(stopping)) => {
                let stopping = stopping.clone();
                self.stopped_for_good(&stopping);
                News::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(Working::Probing | Working::Launching(_))
            | RunState::Finished(_) => News::Absorbed,
        }
    }

    fn is_searching(&self) -> bool {
        self.run.owed.iter().any(|owed| matches!(owed.effect, Effect::Recover { .. }))
    }

    /// One more loss, and how long to wait before the process is looked for.
    fn count_loss(&mut self) -> Span {
        let Some(live) = self.run.live_mut() else { return Span(0) };
        live.losses.count = live.losses.count.saturating_add(1);
        live.losses.pause()
    }

    /// Looks for the turn, for a bounded time over all searches for this attempt (E8).
    fn search(&mut self, bound: Seconds) {
        let Some(attempt) = self.run.attempt() else { return };
        let pause = self.count_loss();
        let losses = self.run.live().map_or(Losses::default(), |live| live.losses);
        let left = Span::from(bound).less(losses.searched);
        if left == Span(0) || losses.count > MAX_LOSSES {
            return self.outcome_unknown("contact with the engine was lost again and again");
        }
        let work_left = match &self.run.state {
            RunState::Running(Working::Active(active)) => self.work_left(active),
            RunState::Running(_)
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => self.run.settings.turn_timeout_sec.map(Span::from),
        };
        let (live, until, since) = (self.run.live().cloned(), self.at.after(left), Some(self.at));
        self.run.state =
            RunState::Running(Working::Recovering(Recovering { attempt, live, until, work_left, since }));
        let turn = self.turn();
        turn.execution_status = ExecutionStatus::PendingRecovery;
        turn.runtime_status = RuntimeStatus::Lost;
        let turn_id = turn.turn_id;
        self.forgive(|effect| matches!(effect, Effect::Launch { .. }));
        self.owe_at(self.at.after(pause), Effect::Recover { attempt, turn_id });
    }

    /// There is nothing to end: what the state names is dead.
    pub(super) fn leave_dead_process(&mut self) {
        match &mut self.run.state {
            RunState::WaitingUser(waiting) => waiting.hold = Hold::Nothing,
            RunState::Idle { held } => *held = None,
            RunState::Running(working) => *working = Working::Probing,
            RunState::Queued { .. } | RunState::Finished(_) => {}
        }
    }
}

/// How a process ended that had a request open.
fn ended_at_request(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("the engine ended with code {code} while it waited for an answer"),
        Exit::Unseen => String::from("the process that waited for an answer is gone"),
    }
}
