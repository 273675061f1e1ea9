//! End of a turn: an answer, a question, a failure or a stop.

use alloc::string::String;

use super::{
    ApplyOutcome, HeldProcess, RunOutcome, RunState, RunningPhase, StopReason, transition::RunTransition,
};
use crate::{
    delivery::DeliveryContent,
    event::{ProcessAfterTurn, TurnOutcome},
    failure::{FailureCode, RunFailure},
    id::TurnId,
    interaction::{CloseReason, InteractionOrigin, Question},
    process::{Attempt, LiveProcess, OutputPosition},
    settings::ExecutionMode,
    turn::{ExecutionStatus, RuntimeStatus},
};

impl RunTransition {
    pub(super) fn on_turn_ended(
        &mut self,
        (attempt, turn_id): (Attempt, TurnId),
        position: OutputPosition,
        outcome: &TurnOutcome,
        process_after: ProcessAfterTurn,
    ) -> ApplyOutcome {
        // Only an unfinished turn can end. A sticky process between turns has no turn.
        let stop = match &self.run.state {
            RunState::Running(RunningPhase::Active(_) | RunningPhase::Recovering(_)) => None,
            RunState::Running(RunningPhase::Stopping(stopping)) => {
                Some((stopping.reason, stopping.by.clone()))
            }
            RunState::WaitingUser(waiting) if matches!(waiting.held_process, HeldProcess::Turn { .. }) => {
                None
            }
            RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Queued { .. }
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => return ApplyOutcome::Ignored,
        };
        if !self.is_latest_turn(turn_id) || !self.accepts_turn_end(attempt, position) {
            return ApplyOutcome::Ignored;
        }
        if let (RunState::WaitingUser(_), TurnOutcome::Failed { failure }, ProcessAfterTurn::Exited(exit)) =
            (&self.run.state, outcome, process_after)
            && self.voids_requests()
        {
            // The engine did not continue without the answer. Its process exited while it waited (A10).
            self.record_exit(attempt, exit);
            self.clear_process();
            self.on_process_lost_at_gate(&failure.message);
            return ApplyOutcome::Changed;
        }
        // The engine continued without the answer that it had requested.
        self.run.waiting_gates.clear();
        self.close_questions(CloseReason::Withdrawn);
        let unconfirmed = self.is_unconfirmed();
        let live = self.keep_or_end_process(attempt, process_after);
        let by = stop.as_ref().map(|(_, by)| by.clone()).unwrap_or_default();
        let reason = stop.map(|(reason, _)| reason);
        let is_shutdown = reason == Some(StopReason::Shutdown);
        match reason {
            Some(StopReason::Superseded) => self.replace_superseded(live),
            // The turn was superseded before it was interrupted, so its output is ignored.
            Some(StopReason::Interrupted) if !self.has_running_turn() => {
                self.finish_interrupted_turn(live, &by)
            }
            Some(StopReason::Shutdown) if !self.has_running_turn() => self.finish_turn_at_shutdown(live),
            Some(StopReason::Interrupted | StopReason::Shutdown) | None => match outcome {
                // Output of another session than the requested one is not accepted (A4).
                TurnOutcome::Completed { .. } | TurnOutcome::Asked { .. } if unconfirmed => {
                    self.end_kept_process(live);
                    self.fail_unconfirmed();
                }
                TurnOutcome::Completed { text } => self.complete_turn(text, live),
                TurnOutcome::Asked { text, question } => self.ask_at_turn_end(text, question, live),
                TurnOutcome::Failed { failure } => {
                    self.end_kept_process(live);
                    self.fail_turn(failure.clone());
                }
                TurnOutcome::Interrupted if is_shutdown => self.finish_turn_at_shutdown(live),
                TurnOutcome::Interrupted => self.finish_interrupted_turn(live, &by),
            },
        }
        ApplyOutcome::Changed
    }

    /// Like [`RunTransition::accept_fact`], but accepts the end of a turn that was lost before its process was observed.
    fn accepts_turn_end(&mut self, attempt: Attempt, position: OutputPosition) -> bool {
        match &self.run.state {
            RunState::Running(RunningPhase::Recovering(recovering)) if recovering.live.is_none() => {
                recovering.attempt == attempt
            }
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => self.accept_fact(attempt, position),
        }
    }

    /// Keeps the process if the session exists only in it, otherwise terminates it.
    fn keep_or_end_process(
        &mut self,
        attempt: Attempt,
        process_after: ProcessAfterTurn,
    ) -> Option<LiveProcess> {
        match process_after {
            ProcessAfterTurn::Exited(exit) => {
                self.record_exit(attempt, exit);
                None
            }
            ProcessAfterTurn::Alive if self.run.is_sticky() => {
                // Pending input of the ended turn is obsolete.
                self.cancel_effects(|effect| effect.attempt() == Some(attempt));
                if self.run.live().is_none() {
                    // The process was lost before it was observed. It cannot be held, so it is terminated.
                    self.end_attempt(attempt);
                }
                self.run.live().cloned()
            }
            ProcessAfterTurn::Alive => {
                // A message that was to be added to the ended turn waits for its own turn.
                self.cancel_effects(|effect| effect.attempt() == Some(attempt));
                self.end_attempt(attempt);
                self.turn().runtime_status = RuntimeStatus::Ended;
                None
            }
        }
    }

    /// Terminates a process that was kept for a next turn which will not start.
    fn end_kept_process(&mut self, live: Option<LiveProcess>) {
        if let Some(live) = live {
            self.end_attempt(live.attempt);
        }
        // The process in the state has been handled.
        self.run.state = RunState::Running(RunningPhase::Probing);
    }

    fn complete_turn(&mut self, text: &str, live: Option<LiveProcess>) {
        self.turn().reply = Some(String::from(text));
        self.run.result = Some(String::from(text));
        self.run.has_history = true;
        self.end_turn(ExecutionStatus::Completed);
        let turn_id = self.turn_id();
        self.deliver(DeliveryContent::Result(turn_id), Some(turn_id));
        let chat = self.run.settings.execution_mode == ExecutionMode::Chat;
        if chat && !self.run.is_sticky() && !self.run.handle_announced {
            // The answer is valid, but the session cannot be continued (A11).
            self.end_kept_process(live);
            return self
                .fail(RunFailure::new(FailureCode::SessionResumeFailed, self.texts().chat_without_session));
        }
        let sticky_chat = self.run.is_sticky() && chat;
        if sticky_chat && live.is_none() && self.run.next_message().is_none() {
            // The engine exited with its answer, so the chat has ended.
            return self.finish(RunOutcome::Succeeded);
        }
        self.continue_or_finish(live);
    }

    /// A failed turn ends its run. A chat that can be resumed continues; the person is informed.
    pub(super) fn fail_turn(&mut self, failure: RunFailure) {
        let chat = self.run.settings.execution_mode == ExecutionMode::Chat;
        let resumes = !self.run.is_sticky() && self.run.handle_announced;
        if !chat || !resumes || failure.code == FailureCode::SessionResumeFailed {
            return self.fail(failure);
        }
        self.close_questions(CloseReason::RunFailed);
        self.turn().error = Some(failure);
        self.end_turn(ExecutionStatus::Failed);
        let turn_id = self.turn_id();
        self.deliver(DeliveryContent::Result(turn_id), Some(turn_id));
        self.continue_or_finish(None);
    }

    /// The handle must be known before the question. A question whose session cannot be resumed is not asked (A11).
    fn ask_at_turn_end(&mut self, text: &str, question: &Question, live: Option<LiveProcess>) {
        let held_process = match (self.run.is_sticky(), live) {
            (true, Some(live)) => HeldProcess::Session(live),
            (true, None) => {
                self.end_kept_process(None);
                return self.fail(RunFailure::new(
                    FailureCode::InteractionProcessLost,
                    "the engine's process ended with its question and cannot be resumed",
                ));
            }
            (false, live) if !self.run.handle_announced => {
                self.end_kept_process(live);
                return self.fail(RunFailure::new(
                    FailureCode::SessionResumeFailed,
                    "the engine asked a question without naming its session, so it could not be resumed",
                ));
            }
            (false, _) => HeldProcess::None,
        };
        self.turn().reply = Some(String::from(text));
        let at = self.at;
        self.turn().result_persisted_at = Some(at);
        self.run.has_history = true;
        self.ask(InteractionOrigin::TurnEnd, question.clone(), held_process);
    }
}
