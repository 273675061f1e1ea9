//! Shutdown of the daemon, and exits of processes that wait for an answer. The run continues without its process, asks
//! a person whether to continue, or fails.

use alloc::{format, string::String};

use super::{
    ApplyOutcome, HeldProcess, RunState, RunningPhase, StopReason, StoppingAttempt,
    question::{CONTINUE_LABEL, continue_or_stop_question},
    transition::RunTransition,
};
use crate::{
    failure::{FailureCode, RunFailure},
    interaction::{CloseReason, InteractionOrigin, RuntimeQuestion},
    process::LiveProcess,
    settings::ExecutionMode,
    turn::ExecutionStatus,
};

/// The name that is recorded as the requester of stops during a shutdown.
const SHUTDOWN_REQUESTER: &str = "shutdown";

impl RunTransition {
    /// Ignored if no process is held, because such a run waits or continues after the next start. A turn whose process
    /// was not started yet has had no effects, so it is started then.
    pub(super) fn on_shutdown_requested(&mut self) -> ApplyOutcome {
        match &self.run.state {
            RunState::Running(RunningPhase::Active(active)) => {
                let live = active.live.clone();
                self.stop_turn(live, StopReason::Shutdown, SHUTDOWN_REQUESTER);
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => match stopping.reason {
                StopReason::Shutdown => return ApplyOutcome::Ignored,
                StopReason::Interrupted => {
                    let stopping = StoppingAttempt { reason: StopReason::Shutdown, ..stopping.clone() };
                    self.run.state = RunState::Running(RunningPhase::Stopping(stopping));
                }
                // The message that replaces the turn must not start a turn now.
                StopReason::Superseded => {
                    self.end_process();
                    self.finish_turn_at_shutdown(None);
                }
            },
            RunState::Running(RunningPhase::Recovering(_)) => {
                self.end_process();
                self.finish_turn_at_shutdown(None);
            }
            RunState::WaitingUser(waiting) => match &waiting.held_process {
                HeldProcess::None => return ApplyOutcome::Ignored,
                HeldProcess::Turn { .. } if !self.run.is_sticky() => {
                    self.end_process();
                    self.clear_process();
                    self.void_gate_and_ask(
                        &shutdown_failure("the turn waited for an answer when Abide was shut down"),
                        "Abide was shut down while this turn waited for an answer, so that request is void.",
                    );
                }
                HeldProcess::Session(_) | HeldProcess::Turn { .. } => {
                    self.end_process();
                    self.clear_process();
                    self.close_questions(CloseReason::Void);
                    self.fail(shutdown_failure(
                        "the process that waited for an answer was ended by a shutdown",
                    ));
                }
            },
            RunState::Idle { held: Some(_) } => {
                self.fail(shutdown_failure("the process of this chat was ended by a shutdown"));
            }
            RunState::Queued { .. }
            | RunState::Running(RunningPhase::Probing | RunningPhase::Launching(_))
            | RunState::Idle { held: None }
            | RunState::Finished(_) => return ApplyOutcome::Ignored,
        }
        ApplyOutcome::Changed
    }

    /// The turn has stopped because of a shutdown. Its process is ended in both wait modes.
    pub(super) fn finish_turn_at_shutdown(&mut self, live: Option<LiveProcess>) {
        if let Some(live) = live {
            self.end_attempt(live.attempt);
        }
        self.run.state = RunState::Idle { held: None };
        self.end_turn(ExecutionStatus::Interrupted);
        self.suppress_turn();
        let session_lost = self.run.is_sticky() && self.run.has_history;
        match self.run.settings.execution_mode {
            ExecutionMode::Auto => self.fail(shutdown_failure("the turn was stopped by a shutdown")),
            ExecutionMode::Interactive | ExecutionMode::Chat if session_lost => {
                self.fail(shutdown_failure(
                    "the turn and the process of its session were ended by a shutdown",
                ));
            }
            ExecutionMode::Interactive if self.run.next_message().is_none() => {
                let again = match self.run.is_sticky() {
                    true => " Its session ended with its process, so continuing starts the task again.",
                    false => "",
                };
                let prompt = format!(
                    "Abide was shut down, so this turn was stopped before its end.{again} Continue, or stop \
                     here? Any other text is passed on to the engine."
                );
                let question = continue_or_stop_question(prompt, CONTINUE_LABEL);
                self.ask(
                    InteractionOrigin::Abide(RuntimeQuestion::StoppedByShutdown),
                    question,
                    HeldProcess::None,
                );
            }
            ExecutionMode::Interactive | ExecutionMode::Chat => self.continue_or_finish(None),
        }
    }

    /// The process ended while a request inside its turn was open (A10).
    pub(super) fn on_process_lost_at_gate(&mut self, reason: &str) {
        if self.run.is_sticky() {
            return self.fail(RunFailure::new(FailureCode::InteractionProcessLost, reason));
        }
        let failure = RunFailure::new(FailureCode::EngineFailed, reason);
        self.void_gate_and_ask(
            &failure,
            "The engine's process ended while this turn waited for an answer, so that request is void.",
        );
    }

    /// Closes the request as void and asks whether to continue. The state no longer refers to the process.
    fn void_gate_and_ask(&mut self, failure: &RunFailure, explanation: &str) {
        if self.run.settings.execution_mode == ExecutionMode::Auto {
            return self.fail(failure.clone());
        }
        self.run.waiting_gates.clear();
        self.close_questions(CloseReason::Void);
        self.turn().error = Some(failure.clone());
        self.end_turn(ExecutionStatus::Interrupted);
        self.suppress_turn();
        let stop_wording = match self.run.settings.execution_mode {
            ExecutionMode::Auto | ExecutionMode::Interactive => "stop here",
            ExecutionMode::Chat => self.texts().skip_turn,
        };
        let prompt = format!(
            "{explanation} ({}) Continue, or {stop_wording}? Any other text is passed on to the engine.",
            failure.message
        );
        let question = continue_or_stop_question(prompt, CONTINUE_LABEL);
        self.ask(InteractionOrigin::Abide(RuntimeQuestion::RequestVoid), question, HeldProcess::None);
    }
}

fn shutdown_failure(message: &str) -> RunFailure {
    RunFailure::new(FailureCode::StoppedByShutdown, String::from(message))
}
