//! Requests of a person to stop the turn or to end the run.

use alloc::{string::String, sync::Arc};

use super::{
    ApplyOutcome, HeldProcess, RunState, RunningPhase, StopReason, StoppingAttempt,
    transition::{RunTransition, canceled_by},
};
use crate::{
    deadline::STOP_GRACE,
    effect::Effect,
    inbound::{Inbound, InboundStatus},
    interaction::CloseReason,
    process::LiveProcess,
    refused::RequestRefused,
    turn::ExecutionStatus,
};

impl RunTransition {
    pub(super) fn on_interrupt_requested(&mut self, by: &str) -> Result<ApplyOutcome, RequestRefused> {
        match &self.run.state {
            RunState::Running(RunningPhase::Active(active)) => {
                let live = active.live.clone();
                self.stop_turn(live, StopReason::Interrupted, by);
                Ok(ApplyOutcome::Changed)
            }
            // The turn waits inside its process, so its question is closed.
            RunState::WaitingUser(waiting) if matches!(waiting.held_process, HeldProcess::Turn { .. }) => {
                let live = self.run.live().cloned();
                self.run.waiting_gates.clear();
                self.close_questions(CloseReason::Stopped);
                if let Some(live) = live {
                    self.stop_turn(live, StopReason::Interrupted, by);
                }
                Ok(ApplyOutcome::Changed)
            }
            // There is no contact with the process, so it is terminated without an interrupt.
            RunState::Running(
                RunningPhase::Probing | RunningPhase::Launching(_) | RunningPhase::Recovering(_),
            ) => {
                self.cancel_effects(|effect| matches!(effect, Effect::Probe { .. }));
                self.end_process();
                self.finish_interrupted_turn(None, by);
                Ok(ApplyOutcome::Changed)
            }
            RunState::Running(RunningPhase::Stopping(stopping)) => match stopping.reason {
                StopReason::Interrupted | StopReason::Shutdown => Ok(ApplyOutcome::Ignored),
                // Both the old turn and the message that was to replace it are canceled.
                StopReason::Superseded => {
                    let stopping = StoppingAttempt {
                        reason: StopReason::Interrupted,
                        by: String::from(by),
                        ..stopping.clone()
                    };
                    self.run.state = RunState::Running(RunningPhase::Stopping(stopping));
                    let at = self.at;
                    let received = |it: &&mut Arc<Inbound>| it.execution_status == InboundStatus::Received;
                    if let Some(inbound) = self.run.inbox.iter_mut().find(received) {
                        Arc::make_mut(inbound).set_status(InboundStatus::Canceled, at);
                    }
                    Ok(ApplyOutcome::Changed)
                }
            },
            RunState::Queued { .. } | RunState::WaitingUser(_) | RunState::Idle { .. } => {
                Err(RequestRefused::NothingToInterrupt { status: self.run.status() })
            }
            RunState::Finished(_) => Err(RequestRefused::RunFinished { status: self.run.status() }),
        }
    }

    pub(super) fn on_cancel_requested(&mut self, by: &str) -> Result<ApplyOutcome, RequestRefused> {
        match &self.run.state {
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::WaitingUser(_)
            | RunState::Idle { .. } => {
                self.cancel(canceled_by(by), CloseReason::Stopped);
                Ok(ApplyOutcome::Changed)
            }
            RunState::Finished(_) => Err(RequestRefused::RunFinished { status: self.run.status() }),
        }
    }

    /// Asks a running process to stop its turn.
    pub(super) fn stop_turn(&mut self, live: LiveProcess, reason: StopReason, by: &str) {
        let (attempt, terminate_at) = (live.attempt, self.at.add_seconds(STOP_GRACE));
        let turn = self.turn();
        if !turn.execution_status.is_final() {
            turn.execution_status = ExecutionStatus::Running;
        }
        let stopping = StoppingAttempt { live, reason, by: String::from(by), terminate_at };
        self.run.state = RunState::Running(RunningPhase::Stopping(stopping));
        self.request_effect(Effect::Interrupt { attempt });
    }

    /// The process did not stop in time or is dead. It is terminated, and the reason of the stop is handled without it.
    pub(super) fn finish_stop(&mut self, stopping: &StoppingAttempt) {
        self.end_process();
        match stopping.reason {
            StopReason::Interrupted => self.finish_interrupted_turn(None, &stopping.by),
            StopReason::Superseded => self.replace_superseded(None),
            StopReason::Shutdown => self.finish_turn_at_shutdown(None),
        }
    }
}
