//! Start of a process, its failure, and the first facts of the process.

use alloc::sync::Arc;

use super::{
    ApplyOutcome, LaunchingAttempt, RunState, RunningPhase,
    transition::{MAX_LAUNCHES_PER_TURN, RunTransition},
};
use crate::{
    effect::Effect,
    engine::EngineSessionHandle,
    event::LaunchRetry,
    failure::{FailureCode, RunFailure},
    id::TurnId,
    process::{Attempt, ContactLosses, LiveProcess, OutputPosition, ProcessBinding},
    time::Seconds,
    turn::RuntimeStatus,
};

/// The delay before a retry, multiplied by the number of failed tries.
const LAUNCH_RETRY_DELAY: Seconds = Seconds(2);

impl RunTransition {
    pub(super) fn on_attempt_started(&mut self, attempt: Attempt, process: &ProcessBinding) -> ApplyOutcome {
        let is_current = self.run.attempt() == Some(attempt);
        match &self.run.state {
            RunState::Running(RunningPhase::Launching(launching)) if is_current => {
                let must_confirm_session = launching.must_confirm_session;
                self.cancel_effects(|effect| matches!(effect, Effect::Launch { .. }));
                let at = self.at;
                let turn = self.turn();
                turn.runtime_status = RuntimeStatus::Active;
                if let Some(record) = turn.attempt_mut(attempt) {
                    (record.process, record.started_at) = (Some(process.clone()), Some(at));
                }
                self.run_turn_in(LiveProcess {
                    attempt,
                    process: process.clone(),
                    processed_position: OutputPosition::default(),
                    must_confirm_session,
                    contact_losses: ContactLosses::default(),
                });
                ApplyOutcome::Changed
            }
            // A repeated event.
            RunState::Running(_) | RunState::WaitingUser(_) | RunState::Idle { .. } if is_current => {
                ApplyOutcome::Ignored
            }
            // The launch was canceled while the process was starting. The termination may have been performed before
            // the process existed, so it is requested again.
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => {
                self.record_start(attempt, process);
                self.end_attempt(attempt);
                ApplyOutcome::Changed
            }
        }
    }

    /// Records the process of an attempt for the ledger.
    fn record_start(&mut self, attempt: Attempt, process: &ProcessBinding) {
        if !self.corrects_exits() {
            return;
        }
        let at = self.at;
        for turn in &mut self.run.turns {
            if let Some(record) = Arc::make_mut(turn).attempt_mut(attempt) {
                record.process.get_or_insert_with(|| process.clone());
                record.started_at.get_or_insert(at);
            }
        }
    }

    pub(super) fn on_launch_failed(
        &mut self,
        attempt: Attempt,
        failure: &RunFailure,
        retry: LaunchRetry,
    ) -> ApplyOutcome {
        match self.run.state {
            RunState::Running(RunningPhase::Launching(LaunchingAttempt {
                attempt: current, tries, ..
            })) if current == attempt => {
                self.cancel_effects(|effect| matches!(effect, Effect::Launch { .. }));
                // No process was started, so there is no exit code and nothing to terminate.
                let (at, records_end) = (self.at, self.corrects_exits());
                let turn = self.turn();
                turn.runtime_status = RuntimeStatus::Ended;
                if let Some(record) = turn.attempt_mut(attempt).filter(|_| records_end) {
                    record.ended_at = Some(at);
                }
                self.run.state = RunState::Running(RunningPhase::Probing);
                match retry {
                    LaunchRetry::Later if tries < MAX_LAUNCHES_PER_TURN => {
                        let pause = Seconds(LAUNCH_RETRY_DELAY.0 * tries);
                        self.launch(tries + 1, self.at.add_seconds(pause));
                    }
                    LaunchRetry::Later => self.ask_after_failed_launches(failure, tries),
                    LaunchRetry::Never => self.fail(failure.clone()),
                }
                ApplyOutcome::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => ApplyOutcome::Ignored,
        }
    }

    /// A resumed session is accepted only if the announced id equals the requested id (A4).
    pub(super) fn on_handle_announced(
        &mut self,
        attempt: Attempt,
        position: OutputPosition,
        handle: &EngineSessionHandle,
    ) -> ApplyOutcome {
        if !self.accept_fact(attempt, position) {
            return ApplyOutcome::Ignored;
        }
        let expected = self.run.handle.as_ref().filter(|_| self.run.handle_announced || self.run.has_history);
        match expected {
            Some(expected) if expected.handle_value != handle.handle_value => {
                let message = "the engine started another session instead of resuming the one asked for";
                self.fail(RunFailure::new(FailureCode::SessionResumeFailed, message));
            }
            Some(_) => {
                if let Some(live) = self.run.live_mut() {
                    live.must_confirm_session = false;
                }
            }
            None => {
                let created_at_turn = self.run.turn_index;
                self.run.handle = Some(EngineSessionHandle { created_at_turn, ..handle.clone() });
                self.run.handle_announced = true;
            }
        }
        ApplyOutcome::Changed
    }

    /// Whether the process was told to resume a session and has not confirmed it.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.run.live().is_some_and(|live| live.must_confirm_session)
    }

    pub(super) fn fail_unconfirmed(&mut self) {
        let message = self.texts().session_unconfirmed;
        self.fail(RunFailure::new(FailureCode::SessionResumeFailed, message));
    }

    pub(super) fn on_progressed(&mut self, attempt: Attempt, position: OutputPosition) -> ApplyOutcome {
        if self.accept_fact(attempt, position) { ApplyOutcome::Changed } else { ApplyOutcome::Ignored }
    }

    /// Whether this is the latest turn and not an earlier one of the same process.
    pub(super) fn is_latest_turn(&self, turn_id: TurnId) -> bool {
        self.run.turns.last().is_some_and(|turn| turn.turn_id == turn_id)
    }

    /// Whether a fact of this attempt at this position is new. If so, the position is recorded as processed.
    pub(super) fn accept_fact(&mut self, attempt: Attempt, position: OutputPosition) -> bool {
        let Some(live) = self.run.live_mut() else { return false };
        if live.attempt != attempt || position <= live.processed_position {
            return false;
        }
        live.processed_position = position;
        true
    }
}
