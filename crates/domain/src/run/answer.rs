//! Answers to questions, by a person or by the question's own policy.
//!
//! [`crate::reply::take`] decides which reply is accepted. This module applies it to the run.

use alloc::{format, string::String, sync::Arc};

use super::{
    AnsweredGate, ApplyOutcome, HeldProcess, NextTurn, RunCancellation, RunState,
    draft::RunTransition,
    draft::canceled_by,
    park::{CONTINUE, GIVE_UP, TRY_AGAIN},
};
use crate::{
    approval,
    event::RunEvent,
    failure::{FailureCode, RunFailure},
    interaction::{
        CloseReason, GatePurpose, Interaction, InteractionOrigin, InteractionResolution, InteractionState,
        RuntimeQuestion,
    },
    policy::{self, AutoDecideReason, MOST_AUTO_DECISIONS_IN_A_ROW, PolicyDecision},
    refused::RequestRefused,
    reply::{self, InteractionReply, ReplyAcceptance, ReplyAuthor},
    settings::ExecutionMode,
    turn::{ExecutionStatus, TurnTrigger},
};

impl RunTransition {
    pub(super) fn reply_arrived(&mut self, reply: &InteractionReply) -> Result<ApplyOutcome, RequestRefused> {
        let (at, judges) = (self.at, self.judges_approvals());
        let named = |interaction: &&mut Arc<Interaction>| interaction.interaction_id == reply.interaction_id;
        let Some(interaction) = self.run.interactions.iter_mut().find(named) else {
            return Err(RequestRefused::StaleInteraction { interaction_id: reply.interaction_id });
        };
        let resolution = match reply::take(interaction, reply, at)? {
            ReplyAcceptance::Again => return Ok(ApplyOutcome::Absorbed),
            ReplyAcceptance::First(resolution) => resolution,
        };
        let verdict = match judges && interaction.is_approval() {
            true => Some(approval::judge(interaction, reply)?),
            false => None,
        };
        let resolution = InteractionResolution { verdict, ..resolution };
        Arc::make_mut(interaction).state = InteractionState::Answered(resolution);
        let interaction = interaction.clone();
        self.count_decision(&reply.by);
        self.take_down(interaction.interaction_id);
        self.answered(&interaction, reply);
        Ok(ApplyOutcome::Changed)
    }

    /// Applies the policy of an unanswered question, which answers it or ends the run (D7).
    pub(super) fn decide_unanswered(&mut self, reason: AutoDecideReason) {
        let Some(interaction) = self.run.interactions.iter().find(|interaction| interaction.is_open()) else {
            return;
        };
        let decision = policy::decide(interaction, reason);
        if self.run.auto_decisions_in_a_row >= MOST_AUTO_DECISIONS_IN_A_ROW {
            return self.abort(format!(
                "{MOST_AUTO_DECISIONS_IN_A_ROW} questions in a row were decided without a person"
            ));
        }
        match decision {
            PolicyDecision::Abort => {
                self.abort(String::from("nobody answered, and the question's policy is to abort"))
            }
            // The answer is a separate event, so that it is journalled and shown (D6).
            PolicyDecision::Answer(auto) if self.answers_are_events() => {
                self.then = Some(RunEvent::ReplyArrived { reply: auto.into_reply() });
            }
            PolicyDecision::Answer(auto) => {
                let taken = self.reply_arrived(&auto.into_reply());
                debug_assert!(taken.is_ok(), "an open question takes the policy's answer");
            }
        }
    }

    fn abort(&mut self, message: String) {
        let reason = RunFailure::new(FailureCode::InteractionAborted, message);
        self.cancel(RunCancellation { reason, by: None }, CloseReason::Aborted);
    }

    fn count_decision(&mut self, by: &ReplyAuthor) {
        match by {
            ReplyAuthor::Person(_) => self.run.auto_decisions_in_a_row = 0,
            ReplyAuthor::Policy { .. } => {
                self.run.auto_decision_count += 1;
                self.run.auto_decisions_in_a_row += 1;
                self.run.last_auto_decision_at = Some(self.at);
            }
        }
    }

    /// Passes the answer to its target.
    fn answered(&mut self, interaction: &Interaction, reply: &InteractionReply) {
        match &interaction.asker {
            InteractionOrigin::TurnEnd => {
                self.end_turn(ExecutionStatus::Completed);
                self.deliver_text_of(interaction.turn_id);
                self.continue_with(interaction, reply.text.clone());
            }
            InteractionOrigin::Gate { gate, purpose } => {
                let Some(attempt) = self.run.attempt() else { return };
                let permission = match purpose {
                    GatePurpose::Approval => match &interaction.state {
                        InteractionState::Answered(InteractionResolution {
                            verdict: Some(judged), ..
                        }) => Some(*judged),
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
                self.remember_answer(answered);
                self.leave_gate();
            }
            InteractionOrigin::Abide(RuntimeQuestion::Interrupted) => {
                self.continue_with(interaction, reply.text.clone())
            }
            InteractionOrigin::Abide(RuntimeQuestion::OutcomeUnknown) => {
                match reply.text.trim().to_lowercase().as_str() {
                    GIVE_UP => self.given_up(&reply.by),
                    CONTINUE => {
                        let prompt = "Contact was lost during the last turn, so it is not known how much of it was \
                                  done. Look at what is there first, then go on from it.";
                        self.continue_with(interaction, String::from(prompt));
                    }
                    _ => self.continue_with(interaction, reply.text.clone()),
                }
            }
            InteractionOrigin::Abide(RuntimeQuestion::RequestVoid) => {
                let prompt = "The process of the last turn ended while it waited for a request of yours to be \
                              answered. No answer reached it, and nothing was approved. Look at what is there \
                              first, then go on from it, and ask again where you need to.";
                self.go_on_after_loss(interaction, reply, prompt);
            }
            InteractionOrigin::Abide(RuntimeQuestion::StoppedByShutdown) => {
                let prompt = "The last turn was stopped before its end because the machine's agent runtime was \
                              shut down. Look at what is there first, then go on from it.";
                self.go_on_after_loss(interaction, reply, prompt);
            }
            InteractionOrigin::Abide(RuntimeQuestion::FailedRepeatedly) => {
                // No engine has received this prompt, even if the session has history.
                let unheard = self.turn().prompt.clone();
                match reply.text.trim().to_lowercase().as_str() {
                    GIVE_UP => self.given_up(&reply.by),
                    TRY_AGAIN => self.next_turn(interaction, unheard),
                    _ => self.next_turn(interaction, format!("{unheard}\n\n{}", reply.text)),
                }
            }
        }
    }

    /// Applies a person's decision on a turn whose process ended before the turn did.
    fn go_on_after_loss(&mut self, interaction: &Interaction, reply: &InteractionReply, prompt: &str) {
        let text = match reply.text.trim().to_lowercase().as_str() {
            GIVE_UP => return self.given_up(&reply.by),
            CONTINUE => String::from(prompt),
            _ => reply.text.clone(),
        };
        // The task must be repeated if the session ended with its process or was never created.
        let unheard = !self.run.has_history && (self.run.is_sticky() || !self.run.handle_announced);
        let task = self.turn().prompt.clone();
        self.next_turn(interaction, if unheard { format!("{task}\n\n{text}") } else { text });
    }

    /// Ends a turn that was lost or could not be started. A chat continues after it (decision 0009).
    fn given_up(&mut self, by: &ReplyAuthor) {
        let by = match by {
            ReplyAuthor::Person(name) => name.as_str(),
            ReplyAuthor::Policy { .. } => "policy",
        };
        match self.run.settings.execution_mode {
            ExecutionMode::Chat => self.go_on(None),
            ExecutionMode::Auto | ExecutionMode::Interactive => {
                self.cancel(canceled_by(by), CloseReason::Stopped);
            }
        }
    }

    /// Continues with the answer.
    fn continue_with(&mut self, interaction: &Interaction, prompt: String) {
        // If the session was never created, the engine has not received the task. It is sent again with the answer.
        let unheard = !self.run.has_history && !self.run.handle_announced;
        let task = self.turn().prompt.clone();
        self.next_turn(interaction, if unheard { format!("{task}\n\n{prompt}") } else { prompt });
    }

    /// The answer starts the next turn, in the held process or in one that resumes the session.
    fn next_turn(&mut self, interaction: &Interaction, prompt: String) {
        let next = NextTurn { cause: TurnTrigger::Reply(interaction.interaction_id), prompt };
        let held = match &self.run.state {
            RunState::WaitingUser(waiting) => match &waiting.hold {
                HeldProcess::Session(live) => Some(live.clone()),
                HeldProcess::Nothing | HeldProcess::Turn { .. } => None,
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
