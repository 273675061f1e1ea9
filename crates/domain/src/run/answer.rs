//! Answers to questions, by a person or by the question's own policy.
//!
//! [`crate::reply::accept`] decides which reply is accepted. This module applies it to the run.

use alloc::{format, string::String, sync::Arc};

use super::{
    AnsweredGate, ApplyOutcome, HeldProcess, NextTurn, RunCancellation, RunState,
    question::{CONTINUE_LABEL, RETRY_LABEL, STOP_LABEL},
    transition::RunTransition,
    transition::canceled_by,
};
use crate::{
    approval,
    event::RunEvent,
    failure::{FailureCode, RunFailure},
    interaction::{
        CloseReason, GatePurpose, Interaction, InteractionOrigin, InteractionResolution, InteractionState,
        RuntimeQuestion,
    },
    policy::{self, AutoDecideReason, MAX_CONSECUTIVE_AUTO_DECISIONS, PolicyDecision},
    refused::RequestRefused,
    reply::{self, InteractionReply, ReplyAcceptance, ReplyAuthor},
    settings::ExecutionMode,
    turn::{ExecutionStatus, TurnTrigger},
};

impl RunTransition {
    pub(super) fn on_reply_arrived(
        &mut self,
        reply: &InteractionReply,
    ) -> Result<ApplyOutcome, RequestRefused> {
        let (at, requires_verdict) = (self.at, self.requires_clear_verdict());
        let is_addressed =
            |interaction: &&mut Arc<Interaction>| interaction.interaction_id == reply.interaction_id;
        let Some(interaction) = self.run.interactions.iter_mut().find(is_addressed) else {
            return Err(RequestRefused::StaleInteraction { interaction_id: reply.interaction_id });
        };
        let resolution = match reply::accept(interaction, reply, at)? {
            ReplyAcceptance::Duplicate => return Ok(ApplyOutcome::Ignored),
            ReplyAcceptance::First(resolution) => resolution,
        };
        let verdict = match requires_verdict && interaction.is_approval() {
            true => Some(approval::parse_reply(interaction, reply)?),
            false => None,
        };
        let resolution = InteractionResolution { verdict, ..resolution };
        Arc::make_mut(interaction).state = InteractionState::Answered(resolution);
        let interaction = interaction.clone();
        self.count_auto_decision(&reply.by);
        self.retract_question(interaction.interaction_id);
        self.apply_answer(&interaction, reply);
        Ok(ApplyOutcome::Changed)
    }

    /// Applies the policy of an unanswered question, which answers it or ends the run (D7).
    pub(super) fn decide_unanswered(&mut self, reason: AutoDecideReason) {
        let Some(interaction) = self.run.interactions.iter().find(|interaction| interaction.is_open()) else {
            return;
        };
        let decision = policy::decide(interaction, reason, self.texts());
        if self.run.consecutive_auto_decisions >= MAX_CONSECUTIVE_AUTO_DECISIONS {
            return self.cancel_by_policy(format!(
                "{MAX_CONSECUTIVE_AUTO_DECISIONS} questions in a row were decided without a person"
            ));
        }
        match decision {
            PolicyDecision::Abort => self.cancel_by_policy(String::from(self.texts().aborted_by_policy)),
            // The answer is a separate event, so that it is journalled and shown (D6).
            PolicyDecision::Answer(auto) if self.auto_replies_are_events() => {
                self.follow_up = Some(RunEvent::ReplyArrived { reply: auto.into_reply() });
            }
            PolicyDecision::Answer(auto) => {
                let result = self.on_reply_arrived(&auto.into_reply());
                debug_assert!(result.is_ok(), "an open question takes the policy's answer");
            }
        }
    }

    fn cancel_by_policy(&mut self, message: String) {
        let reason = RunFailure::new(FailureCode::InteractionAborted, message);
        self.cancel(RunCancellation { reason, by: None }, CloseReason::Aborted);
    }

    fn count_auto_decision(&mut self, by: &ReplyAuthor) {
        match by {
            ReplyAuthor::Person(_) => self.run.consecutive_auto_decisions = 0,
            ReplyAuthor::Policy { .. } => {
                self.run.auto_decision_count += 1;
                self.run.consecutive_auto_decisions += 1;
                self.run.last_auto_decision_at = Some(self.at);
            }
        }
    }

    /// Passes the answer to its target.
    fn apply_answer(&mut self, interaction: &Interaction, reply: &InteractionReply) {
        match &interaction.origin {
            InteractionOrigin::TurnEnd => {
                self.end_turn(ExecutionStatus::Completed);
                self.deliver_turn_text(interaction.turn_id);
                self.continue_with(interaction, reply.text.clone());
            }
            InteractionOrigin::Gate { gate, purpose } => {
                let Some(attempt) = self.run.attempt() else { return };
                let permission = match purpose {
                    GatePurpose::Approval => match &interaction.state {
                        InteractionState::Answered(InteractionResolution {
                            verdict: Some(verdict), ..
                        }) => Some(*verdict),
                        InteractionState::Answered(_)
                        | InteractionState::Open
                        | InteractionState::Closed { .. } => {
                            Some(approval::lenient_verdict(&interaction.question, reply))
                        }
                    },
                    GatePurpose::Input => None,
                };
                let answered = AnsweredGate {
                    gate: gate.clone(),
                    interaction_id: interaction.interaction_id,
                    text: reply.text.clone(),
                    verdict: permission,
                };
                self.answer_gate(attempt, answered.clone());
                self.record_gate_answer(answered);
                self.open_next_gate_or_resume();
            }
            InteractionOrigin::Abide(RuntimeQuestion::Interrupted) => {
                self.continue_with(interaction, reply.text.clone())
            }
            InteractionOrigin::Abide(RuntimeQuestion::OutcomeUnknown) => {
                match reply.text.trim().to_lowercase().as_str() {
                    STOP_LABEL => self.abandon_turn(&reply.by),
                    CONTINUE_LABEL => {
                        let prompt = String::from(self.texts().continue_after_lost_contact);
                        self.continue_with(interaction, prompt);
                    }
                    _ => self.continue_with(interaction, reply.text.clone()),
                }
            }
            InteractionOrigin::Abide(RuntimeQuestion::RequestVoid) => {
                self.continue_after_loss(interaction, reply, self.texts().continue_after_void_request);
            }
            InteractionOrigin::Abide(RuntimeQuestion::StoppedByShutdown) => {
                self.continue_after_loss(interaction, reply, self.texts().continue_after_shutdown);
            }
            InteractionOrigin::Abide(RuntimeQuestion::FailedRepeatedly) => {
                // No engine has received this prompt, even if the session has history.
                let unsent_prompt = self.turn().prompt.clone();
                match reply.text.trim().to_lowercase().as_str() {
                    STOP_LABEL => self.abandon_turn(&reply.by),
                    RETRY_LABEL => self.next_turn(interaction, unsent_prompt),
                    _ => self.next_turn(interaction, format!("{unsent_prompt}\n\n{}", reply.text)),
                }
            }
        }
    }

    /// Applies a person's decision on a turn whose process ended before the turn did.
    fn continue_after_loss(&mut self, interaction: &Interaction, reply: &InteractionReply, prompt: &str) {
        let text = match reply.text.trim().to_lowercase().as_str() {
            STOP_LABEL => return self.abandon_turn(&reply.by),
            CONTINUE_LABEL => String::from(prompt),
            _ => reply.text.clone(),
        };
        // The task must be repeated if the session ended with its process or was never created.
        let is_task_unsent = !self.run.has_history && (self.run.is_sticky() || !self.run.handle_announced);
        let task = self.turn().prompt.clone();
        self.next_turn(interaction, if is_task_unsent { format!("{task}\n\n{text}") } else { text });
    }

    /// Ends a turn that was lost or could not be started. A chat continues after it (decision 0009).
    fn abandon_turn(&mut self, by: &ReplyAuthor) {
        let by = match by {
            ReplyAuthor::Person(name) => name.as_str(),
            ReplyAuthor::Policy { .. } => "policy",
        };
        match self.run.settings.execution_mode {
            ExecutionMode::Chat => self.continue_or_finish(None),
            ExecutionMode::Auto | ExecutionMode::Interactive => {
                self.cancel(canceled_by(by), CloseReason::Stopped);
            }
        }
    }

    /// Continues with the answer.
    fn continue_with(&mut self, interaction: &Interaction, prompt: String) {
        // If the session was never created, the engine has not received the task. It is sent again with the answer.
        let is_task_unsent = !self.run.has_history && !self.run.handle_announced;
        let task = self.turn().prompt.clone();
        self.next_turn(interaction, if is_task_unsent { format!("{task}\n\n{prompt}") } else { prompt });
    }

    /// The answer starts the next turn, in the held process or in one that resumes the session.
    fn next_turn(&mut self, interaction: &Interaction, prompt: String) {
        let next = NextTurn { trigger: TurnTrigger::Reply(interaction.interaction_id), prompt };
        let held = match &self.run.state {
            RunState::WaitingUser(waiting) => match &waiting.held_process {
                HeldProcess::Session(live) => Some(live.clone()),
                HeldProcess::None | HeldProcess::Turn { .. } => None,
            },
            RunState::Queued { .. }
            | RunState::Running(_)
            | RunState::Idle { .. }
            | RunState::Finished(_) => None,
        };
        match held {
            Some(live) => self.begin_turn(next, Some(live)),
            None => self.queue(next),
        }
    }
}
