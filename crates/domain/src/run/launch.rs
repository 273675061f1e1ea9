//! Start of a process, its failure, and the first facts of the process.

use alloc::sync::Arc;

use super::{
    ApplyOutcome, LaunchingAttempt, RunState, RunningPhase,
    draft::{LAUNCH_TRIES, RunTransition},
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
const RETRY_PAUSE: Seconds = Seconds(2);

impl RunTransition {
    pub(super) fn attempt_started(&mut self, attempt: Attempt, process: &ProcessBinding) -> ApplyOutcome {
        let is_current = self.run.attempt() == Some(attempt);
        match &self.run.state {
            RunState::Running(RunningPhase::Launching(launching)) if is_current => {
                let must_confirm = launching.must_confirm;
                self.forgive(|effect| matches!(effect, Effect::Launch { .. }));
                let at = self.at;
                let turn = self.turn();
                turn.runtime_status = RuntimeStatus::Active;
                if let Some(record) = turn.attempt_mut(attempt) {
                    (record.process, record.started_at) = (Some(process.clone()), Some(at));
                }
                self.work_on(LiveProcess {
                    attempt,
                    process: process.clone(),
                    heard: OutputPosition::default(),
                    must_confirm,
                    losses: ContactLosses::default(),
                });
                ApplyOutcome::Changed
            }
            // A repeated event.
            RunState::Running(_) | RunState::WaitingUser(_) | RunState::Idle { .. } if is_current => {
                ApplyOutcome::Absorbed
            }
            // The launch was canceled while the process was starting. The termination may have been performed before
            // the process existed, so it is requested again.
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => {
                self.note_start(attempt, process);
                self.end_attempt(attempt);
                ApplyOutcome::Changed
            }
        }
    }

    /// Records the process of an attempt for the ledger.
    fn note_start(&mut self, attempt: Attempt, process: &ProcessBinding) {
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

    pub(super) fn launch_failed(
        &mut self,
        attempt: Attempt,
        failure: &RunFailure,
        retry: LaunchRetry,
    ) -> ApplyOutcome {
        match self.run.state {
            RunState::Running(RunningPhase::Launching(LaunchingAttempt {
                attempt: current, tries, ..
            })) if current == attempt => {
                self.forgive(|effect| matches!(effect, Effect::Launch { .. }));
                // No process was started, so there is no exit code and nothing to terminate.
                let (at, dated) = (self.at, self.corrects_exits());
                let turn = self.turn();
                turn.runtime_status = RuntimeStatus::Ended;
                if let Some(record) = turn.attempt_mut(attempt).filter(|_| dated) {
                    record.ended_at = Some(at);
                }
                self.run.state = RunState::Running(RunningPhase::Probing);
                match retry {
                    LaunchRetry::Later if tries < LAUNCH_TRIES => {
                        let pause = Seconds(RETRY_PAUSE.0 * tries);
                        self.launch(tries + 1, self.at.plus(pause));
                    }
                    LaunchRetry::Later => self.failed_repeatedly(failure, tries),
                    LaunchRetry::Never => self.fail(failure.clone()),
                }
                ApplyOutcome::Changed
            }
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => ApplyOutcome::Absorbed,
        }
    }

    /// A resumed session is accepted only if the announced id equals the requested id (A4).
    pub(super) fn handle_announced(
        &mut self,
        attempt: Attempt,
        position: OutputPosition,
        handle: &EngineSessionHandle,
    ) -> ApplyOutcome {
        if !self.hears(attempt, position) {
            return ApplyOutcome::Absorbed;
        }
        let asked_for =
            self.run.handle.as_ref().filter(|_| self.run.handle_announced || self.run.has_history);
        match asked_for {
            Some(known) if known.handle_value != handle.handle_value => {
                let message = "the engine started another session instead of resuming the one asked for";
                self.fail(RunFailure::new(FailureCode::SessionResumeFailed, message));
            }
            Some(_) => {
                if let Some(live) = self.run.live_mut() {
                    live.must_confirm = false;
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
        self.run.live().is_some_and(|live| live.must_confirm)
    }

    pub(super) fn fail_unconfirmed(&mut self) {
        let message = "the engine did not name the session that it was told to go on with";
        self.fail(RunFailure::new(FailureCode::SessionResumeFailed, message));
    }

    pub(super) fn progressed(&mut self, attempt: Attempt, position: OutputPosition) -> ApplyOutcome {
        if self.hears(attempt, position) { ApplyOutcome::Changed } else { ApplyOutcome::Absorbed }
    }

    /// Whether this is the latest turn and not an earlier one of the same process.
    pub(super) fn is_latest_turn(&self, turn_id: TurnId) -> bool {
        self.run.turns.last().is_some_and(|turn| turn.turn_id == turn_id)
    }

    /// Whether a fact of this attempt at this position is new. If so, the position is recorded as processed.
    pub(super) fn hears(&mut self, attempt: Attempt, position: OutputPosition) -> bool {
        let Some(live) = self.run.live_mut() else { return false };
        if live.attempt != attempt || position <= live.heard {
            return false;
        }
        live.heard = position;
        true
    }
}
