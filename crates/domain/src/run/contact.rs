//! A process ends without a word, is out of contact, or is found again.
//!
//! A restart of the daemon is nothing else: what it finds dead or alive comes in through here.

use alloc::format;

use super::{Active, Hold, News, Recovering, RunState, Working, draft::Draft};
use crate::{
    deadline::RECOVERY_BOUND,
    effect::Effect,
    failure::{Failure, FailureCode},
    process::{Attempt, Exit, Live, Position, Process},
    time::Span,
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
                    Exit::Unseen if self.run.abilities.recover => self.search(),
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
    pub(super) fn contact_lost(&mut self, attempt: Attempt) -> News {
        if self.run.attempt() != Some(attempt) || self.is_searching() {
            return News::Absorbed;
        }
        match &self.run.state {
            RunState::Running(Working::Active(_)) => {
                self.search();
                News::Changed
            }
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                let turn_id = self.turn_id();
                self.owe(Effect::Recover { attempt, turn_id });
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
                let known = recovering.live.as_ref();
                let heard = known.map_or(Position::default(), |live| live.heard);
                let must_confirm = known.map_or(self.run.has_history, |live| live.must_confirm);
                let turn_deadline = recovering.work_left.map(|left| self.at.after(left));
                let live = Live { attempt, process: process.clone(), heard, must_confirm };
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

    /// Looks for the turn, for a bounded time (E8).
    fn search(&mut self) {
        let Some(attempt) = self.run.attempt() else { return };
        let work_left = match &self.run.state {
            RunState::Running(Working::Active(active)) => self.work_left(active),
            RunState::Running(_)
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => self.run.settings.turn_timeout_sec.map(Span::from),
        };
        let (live, until) = (self.run.live().cloned(), self.at.plus(RECOVERY_BOUND));
        self.run.state =
            RunState::Running(Working::Recovering(Recovering { attempt, live, until, work_left }));
        let turn = self.turn();
        turn.execution_status = ExecutionStatus::PendingRecovery;
        turn.runtime_status = RuntimeStatus::Lost;
        let turn_id = turn.turn_id;
        self.forgive(|effect| matches!(effect, Effect::Launch { .. }));
        self.owe(Effect::Recover { attempt, turn_id });
    }

    /// There is nothing to end: what the state names is dead.
    fn leave_dead_process(&mut self) {
        match &mut self.run.state {
            RunState::WaitingUser(waiting) => waiting.hold = Hold::Nothing,
            RunState::Idle { held } => *held = None,
            RunState::Running(working) => *working = Working::Probing,
            RunState::Queued { .. } | RunState::Finished(_) => {}
        }
    }
}
