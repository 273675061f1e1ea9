//! A process exits without ending its turn, is out of contact, or is found again.
//!
//! A restart of the daemon uses the same events for the processes that it finds dead or alive.

use alloc::{format, string::String};

use super::{
    ActiveAttempt, ApplyOutcome, HeldProcess, RecoveringAttempt, RunState, RunningPhase, UserWait,
    transition::RunTransition,
};
use crate::{
    deadline::{MAX_CONTACT_LOSSES, RECOVERY_TIMEOUT},
    effect::Effect,
    failure::{FailureCode, RunFailure},
    process::{Attempt, ContactLosses, ExitStatus, LiveProcess, OutputPosition, ProcessBinding},
    time::{Seconds, TimeSpan},
    turn::{ExecutionStatus, RuntimeStatus},
};

impl RunTransition {
    pub(super) fn on_process_exited(&mut self, attempt: Attempt, exit: ExitStatus) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) {
            // The event is late, but it settles the pending termination.
            return if self.record_exit(attempt, exit) {
                ApplyOutcome::Changed
            } else {
                ApplyOutcome::Ignored
            };
        }
        self.record_exit(attempt, exit);
        match &self.run.state {
            // An engine with the ability `recover` may still know the outcome of the turn.
            RunState::Running(RunningPhase::Recovering(_)) if self.run.abilities.recover => {
                let turn_id = self.turn_id();
                self.request_effect(Effect::Recover { attempt, turn_id });
            }
            RunState::Running(
                RunningPhase::Launching(_) | RunningPhase::Active(_) | RunningPhase::Recovering(_),
            ) => match exit {
                ExitStatus::Code(code) => {
                    self.clear_process();
                    let message = format!("the engine ended with code {code} before its turn was over");
                    self.fail_turn(RunFailure::new(FailureCode::EngineFailed, message));
                }
                ExitStatus::Unknown if self.run.abilities.recover => self.start_recovery(RECOVERY_TIMEOUT),
                ExitStatus::Unknown => {
                    self.clear_process();
                    self.resolve_unknown_outcome(self.texts().unknown_exit);
                }
            },
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                let stopping = stopping.clone();
                self.clear_process();
                self.finish_stop(&stopping);
            }
            // An idle chat whose engine exits successfully has ended and not failed.
            RunState::Idle { .. } if exit == ExitStatus::Code(0) => {
                self.clear_process();
                self.finish_exited_chat(self.texts().chat_exited);
            }
            RunState::WaitingUser(UserWait { held_process: HeldProcess::Turn { .. }, .. })
                if self.voids_requests() =>
            {
                self.clear_process();
                self.on_process_lost_at_gate(&exit_during_request_message(exit));
            }
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                self.clear_process();
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
    pub(super) fn on_contact_lost(
        &mut self,
        attempt: Attempt,
        search_limit: Option<Seconds>,
    ) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) || self.is_recovering() {
            return ApplyOutcome::Ignored;
        }
        match &self.run.state {
            RunState::Running(RunningPhase::Active(_)) => {
                self.start_recovery(search_limit.unwrap_or(RECOVERY_TIMEOUT));
                ApplyOutcome::Changed
            }
            // No turn is running, so the search needs no time limit. The wait ends only with its process (A12).
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                let pause = self.record_contact_loss();
                let turn_id = self.turn_id();
                self.request_effect_at(self.at.add_span(pause), Effect::Recover { attempt, turn_id });
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
            | RunState::Finished(_) => ApplyOutcome::Ignored,
        }
    }

    pub(super) fn on_contact_restored(&mut self, attempt: Attempt, process: &ProcessBinding) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) {
            return ApplyOutcome::Ignored;
        }
        let was_recovering = self.cancel_effects(|effect| matches!(effect, Effect::Recover { .. }));
        match &self.run.state {
            RunState::Running(RunningPhase::Recovering(recovering)) => {
                let last_known = recovering.recovered_process(self.at);
                let turn_deadline = recovering.remaining_time.map(|time| self.at.add_span(time));
                let process = process.clone();
                let live = match last_known {
                    Some(last_known) => LiveProcess { process, ..last_known },
                    None => LiveProcess {
                        attempt,
                        process,
                        processed_position: OutputPosition::default(),
                        must_confirm_session: self.run.has_history,
                        contact_losses: ContactLosses::default(),
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
                if was_recovering {
                    ApplyOutcome::Changed
                } else {
                    ApplyOutcome::Ignored
                }
            }
        }
    }

    /// Ignored if no search is pending, because a repeated search can report its result twice.
    pub(super) fn on_recovery_failed(&mut self, attempt: Attempt, reason: &str) -> ApplyOutcome {
        if self.run.attempt() != Some(attempt) || !self.is_recovering() {
            return ApplyOutcome::Ignored;
        }
        match &self.run.state {
            RunState::Running(RunningPhase::Recovering(_)) => {
                self.resolve_unknown_outcome(reason);
                ApplyOutcome::Changed
            }
            RunState::WaitingUser(UserWait { held_process: HeldProcess::Turn { .. }, .. })
                if self.voids_requests() =>
            {
                self.end_process();
                self.clear_process();
                self.on_process_lost_at_gate(reason);
                ApplyOutcome::Changed
            }
            RunState::WaitingUser(_) | RunState::Idle { .. } => {
                self.fail(RunFailure::new(FailureCode::InteractionProcessLost, reason));
                ApplyOutcome::Changed
            }
            // The held process was given a new turn during the search.
            RunState::Running(RunningPhase::Active(_)) => {
                self.resolve_unknown_outcome(reason);
                ApplyOutcome::Changed
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                let stopping = stopping.clone();
                self.finish_stop(&stopping);
                ApplyOutcome::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Finished(_) => ApplyOutcome::Ignored,
        }
    }

    fn is_recovering(&self) -> bool {
        self.run.pending_effects.iter().any(|pending| matches!(pending.effect, Effect::Recover { .. }))
    }

    /// Counts a loss and returns the delay before the search.
    fn record_contact_loss(&mut self) -> TimeSpan {
        let Some(live) = self.run.live_mut() else { return TimeSpan(0) };
        live.contact_losses.count = live.contact_losses.count.saturating_add(1);
        live.contact_losses.search_delay()
    }

    /// Searches for the turn. The time limit covers all searches for this attempt (E8).
    fn start_recovery(&mut self, timeout: Seconds) {
        let Some(attempt) = self.run.attempt() else { return };
        let pause = self.record_contact_loss();
        let losses = self.run.live().map_or(ContactLosses::default(), |live| live.contact_losses);
        let remaining = TimeSpan::from(timeout).saturating_sub(losses.search_time);
        if remaining == TimeSpan(0) || losses.count > MAX_CONTACT_LOSSES {
            return self.resolve_unknown_outcome("contact with the engine was lost again and again");
        }
        let remaining_time = match &self.run.state {
            RunState::Running(RunningPhase::Active(active)) => self.remaining_turn_time(active),
            RunState::Running(_)
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => self.run.settings.turn_timeout_sec.map(TimeSpan::from),
        };
        let (live, search_deadline, since) =
            (self.run.live().cloned(), self.at.add_span(remaining), Some(self.at));
        self.run.state = RunState::Running(RunningPhase::Recovering(RecoveringAttempt {
            attempt,
            live,
            search_deadline,
            remaining_time,
            since,
        }));
        let turn = self.turn();
        turn.execution_status = ExecutionStatus::PendingRecovery;
        turn.runtime_status = RuntimeStatus::Lost;
        let turn_id = turn.turn_id;
        self.cancel_effects(|effect| matches!(effect, Effect::Launch { .. }));
        self.request_effect_at(self.at.add_span(pause), Effect::Recover { attempt, turn_id });
    }

    /// Removes the dead process from the state. There is nothing to terminate.
    pub(super) fn clear_process(&mut self) {
        match &mut self.run.state {
            RunState::WaitingUser(waiting) => waiting.held_process = HeldProcess::None,
            RunState::Idle { held } => *held = None,
            RunState::Running(working) => *working = RunningPhase::Probing,
            RunState::Queued { .. } | RunState::Finished(_) => {}
        }
    }
}

/// The reason text for a process that exited while a request was open.
fn exit_during_request_message(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("the engine ended with code {code} while it waited for an answer"),
        ExitStatus::Unknown => String::from("the process that waited for an answer is gone"),
    }
}
