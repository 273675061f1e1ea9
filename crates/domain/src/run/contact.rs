//! A process exits without ending its turn, is out of contact, or is found again.
//!
//! A restart of the daemon uses the same events for the processes that it finds dead or alive.

use alloc::{format, string::String};

use super::{
    ActiveAttempt, ApplyOutcome, HeldProcess, RecoveringAttempt, RunState, RunningPhase, UserWait,
    draft::RunTransition,
};
use crate::{
    deadline::{MAX_LOSSES, RECOVERY_BOUND},
    effect::Effect,
    failure::{FailureCode, RunFailure},
    process::{Attempt, ContactLosses, ExitStatus, LiveProcess, OutputPosition, ProcessBinding},
    time::{Seconds, TimeSpan},
    turn::{ExecutionStatus, RuntimeStatus},
};

impl RunTransition {
    pub(super) fn process_exited(&mut self, attempt: Attempt, exit: ExitStatus) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) {
            // The event is late, but it settles the pending termination.
            return if self.note_exit(attempt, exit) {
                ApplyOutcome::Changed
            } else {
                ApplyOutcome::Absorbed
            };
        }
        self.note_exit(attempt, exit);
        match &self.run.state {
            // An engine with the ability `recover` may still know the outcome of the turn.
            RunState::Running(RunningPhase::Recovering(_)) if self.run.abilities.recover => {
                let turn_id = self.turn_id();
                self.owe(Effect::Recover { attempt, turn_id });
            }
            RunState::Running(
                RunningPhase::Launching(_) | RunningPhase::Active(_) | RunningPhase::Recovering(_),
            ) => match exit {
                ExitStatus::Code(code) => {
                    self.leave_dead_process();
                    let message = format!("the engine ended with code {code} before its turn was over");
                    self.turn_failed(RunFailure::new(FailureCode::EngineFailed, message));
                }
                ExitStatus::Unseen if self.run.abilities.recover => self.search(RECOVERY_BOUND),
                ExitStatus::Unseen => {
                    self.leave_dead_process();
                    self.outcome_unknown("the engine's process is gone and nobody saw how it ended");
                }
            },
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                let stopping = stopping.clone();
                self.leave_dead_process();
                self.stopped_for_good(&stopping);
            }
            // An idle chat whose engine exits successfully has ended and not failed.
            RunState::Idle { .. } if exit == ExitStatus::Code(0) => {
                self.leave_dead_process();
                self.let_go("the chat's engine has ended; start a new one to go on");
            }
            RunState::WaitingUser(UserWait { hold: HeldProcess::Turn { .. }, .. })
                if self.voids_requests() =>
            {
                self.leave_dead_process();
                self.request_void(&ended_at_request(exit));
            }
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                self.leave_dead_process();
                self.fail(RunFailure::new(
                    FailureCode::InteractionProcessLost,
                    "the process that waited for an answer is gone",
                ));
            }
            RunState::Queued { .. } | RunState::Running(RunningPhase::Probing) | RunState::Finished(_) => {}
        }
        ApplyOutcome::Changed
    }

    /// A connection problem is not a failure of the task (E11). A question stays open; a running turn is searched for.
    pub(super) fn contact_lost(&mut self, attempt: Attempt, within: Option<Seconds>) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) || self.is_searching() {
            return ApplyOutcome::Absorbed;
        }
        match &self.run.state {
            RunState::Running(RunningPhase::Active(_)) => {
                self.search(within.unwrap_or(RECOVERY_BOUND));
                ApplyOutcome::Changed
            }
            // No turn is running, so the search needs no time limit. The wait ends only with its process (A12).
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                let pause = self.count_loss();
                let turn_id = self.turn_id();
                self.owe_at(self.at.after(pause), Effect::Recover { attempt, turn_id });
                ApplyOutcome::Changed
            }
            // A launch is recovered by performing it again. A stop has its own deadline.
            RunState::Running(
                RunningPhase::Probing
                | RunningPhase::Launching(_)
                | RunningPhase::Stopping(_)
                | RunningPhase::Recovering(_),
            )
            | RunState::Queued { .. }
            | RunState::Finished(_) => ApplyOutcome::Absorbed,
        }
    }

    pub(super) fn contact_restored(&mut self, attempt: Attempt, process: &ProcessBinding) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) {
            return ApplyOutcome::Absorbed;
        }
        let found = self.forgive(|effect| matches!(effect, Effect::Recover { .. }));
        match &self.run.state {
            RunState::Running(RunningPhase::Recovering(recovering)) => {
                let known = recovering.found(self.at);
                let turn_deadline = recovering.work_left.map(|left| self.at.after(left));
                let process = process.clone();
                let live = match known {
                    Some(known) => LiveProcess { process, ..known },
                    None => LiveProcess {
                        attempt,
                        process,
                        heard: OutputPosition::default(),
                        must_confirm: self.run.has_history,
                        losses: ContactLosses::default(),
                    },
                };
                self.run.state =
                    RunState::Running(RunningPhase::Active(ActiveAttempt { live, turn_deadline }));
                let turn = self.turn();
                turn.execution_status = ExecutionStatus::Running;
                turn.runtime_status = RuntimeStatus::Active;
                ApplyOutcome::Changed
            }
            // The run has continued in the meantime. The search is settled anyway.
            RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Queued { .. }
            | RunState::Finished(_) => {
                if found {
                    ApplyOutcome::Changed
                } else {
                    ApplyOutcome::Absorbed
                }
            }
        }
    }

    /// Ignored if no search is pending, because a repeated search can report its result twice.
    pub(super) fn recovery_failed(&mut self, attempt: Attempt, reason: &str) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) || !self.is_searching() {
            return ApplyOutcome::Absorbed;
        }
        match &self.run.state {
            RunState::Running(RunningPhase::Recovering(_)) => {
                self.outcome_unknown(reason);
                ApplyOutcome::Changed
            }
            RunState::WaitingUser(UserWait { hold: HeldProcess::Turn { .. }, .. })
                if self.voids_requests() =>
            {
                self.end_process();
                self.leave_dead_process();
                self.request_void(reason);
                ApplyOutcome::Changed
            }
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                self.fail(RunFailure::new(FailureCode::InteractionProcessLost, reason));
                ApplyOutcome::Changed
            }
            // The held process was given a new turn during the search.
            RunState::Running(RunningPhase::Active(_)) => {
                self.outcome_unknown(reason);
                ApplyOutcome::Changed
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                let stopping = stopping.clone();
                self.stopped_for_good(&stopping);
                ApplyOutcome::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Finished(_) => ApplyOutcome::Absorbed,
        }
    }

    fn is_searching(&self) -> bool {
        self.run.owed.iter().any(|owed| matches!(owed.effect, Effect::Recover { .. }))
    }

    /// Counts a loss and returns the delay before the search.
    fn count_loss(&mut self) -> TimeSpan {
        let Some(live) = self.run.live_mut() else { return TimeSpan(0) };
        live.losses.count = live.losses.count.saturating_add(1);
        live.losses.pause()
    }

    /// Searches for the turn. The time limit covers all searches for this attempt (E8).
    fn search(&mut self, bound: Seconds) {
        let Some(attempt) = self.run.attempt() else { return };
        let pause = self.count_loss();
        let losses = self.run.live().map_or(ContactLosses::default(), |live| live.losses);
        let left = TimeSpan::from(bound).less(losses.searched);
        if left == TimeSpan(0) || losses.count > MAX_LOSSES {
            return self.outcome_unknown("contact with the engine was lost again and again");
        }
        let work_left = match &self.run.state {
            RunState::Running(RunningPhase::Active(active)) => self.work_left(active),
            RunState::Running(_)
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => self.run.settings.turn_timeout_sec.map(TimeSpan::from),
        };
        let (live, until, since) = (self.run.live().cloned(), self.at.after(left), Some(self.at));
        self.run.state = RunState::Running(RunningPhase::Recovering(RecoveringAttempt {
            attempt,
            live,
            until,
            work_left,
            since,
        }));
        let turn = self.turn();
        turn.execution_status = ExecutionStatus::PendingRecovery;
        turn.runtime_status = RuntimeStatus::Lost;
        let turn_id = turn.turn_id;
        self.forgive(|effect| matches!(effect, Effect::Launch { .. }));
        self.owe_at(self.at.after(pause), Effect::Recover { attempt, turn_id });
    }

    /// Removes the dead process from the state. There is nothing to terminate.
    pub(super) fn leave_dead_process(&mut self) {
        match &mut self.run.state {
            RunState::WaitingUser(waiting) => waiting.hold = HeldProcess::Nothing,
            RunState::Idle { held } => *held = None,
            RunState::Running(working) => *working = RunningPhase::Probing,
            RunState::Queued { .. } | RunState::Finished(_) => {}
        }
    }
}

/// The reason text for a process that exited while a request was open.
fn ended_at_request(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("the engine ended with code {code} while it waited for an answer"),
        ExitStatus::Unseen => String::from("the process that waited for an answer is gone"),
    }
}
