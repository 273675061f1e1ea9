//! A question is answered: by a person, or by its own policy when nobody does.
//!
//! Which reply counts is decided in [`crate::reply::take`], the one door for both. Here is what it then does.

use alloc::{format, string::String, sync::Arc};

use super::{
    AnsweredGate, Cancellation, Hold, News, NextTurn, RunState,
    draft::Draft,
    draft::canceled_by,
    park::{CONTINUE, GIVE_UP, TRY_AGAIN},
};
use crate::{
    approval,
    event::Event,
    failure::{Failure, FailureCode},
    interaction::{Asker, Closing, Interaction, InteractionState, Parked, Purpose, Resolution},
    policy::{self, AutoReason, Decision, MOST_AUTO_DECISIONS_IN_A_ROW},
    refused::Refused,
    reply::{self, Answerer, Reply, Taken},
    settings::ExecutionMode,
    turn::{Cause, ExecutionStatus},
};

impl Draft {
    pub(super) fn reply_arrived(&mut self, reply: &Reply) -> Result<News, Refused> {
        let (at, judges) = (self.at, self.judges_approvals());
        let named = |interaction: &&mut Arc<Interaction>| interaction.interaction_id == reply.interaction_id;
        let Some(interaction) = self.run.interactions.iter_mut().find(named) else {
            return Err(Refused::StaleInteraction { interaction_id: reply.interaction_id });
        };
        let resolution = match reply::take(interaction, reply, at)? {
            Taken::Again => return Ok(News::Absorbed),
            Taken::First(resolution) => resolution,
        };
        let verdict = match judges && interaction.is_approval() {
            true => Some(approval::judge(interaction, reply)?),
            false => None,
        };
        let resolution = Resolution { verdict, ..resolution };
        Arc::make_mut(interaction).state = InteractionState::Answered(resolution);
        let interaction = interaction.clone();
        self.count_decision(&reply.by);
        self.take_down(interaction.interaction_id);
        self.answered(&interaction, reply);
        Ok(News::Changed)
    }

    /// Nobody answered: the question's policy does, or ends the run (D7).
    pub(super) fn decide_unanswered(&mut self, reason: AutoReason) {
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
            Decision::Abort => {
                self.abort(String::from("nobody answered, and the question's policy is to abort"))
            }
            // The answer is an event of its own, so that it is journalled and shown (D6).
            Decision::Answer(auto) if self.answers_are_events() => {
                self.then = Some(Event::ReplyArrived { reply: auto.into_reply() });
            }
            Decision::Answer(auto) => {
                let taken = self.reply_arrived(&auto.into_reply());
                debug_assert!(taken.is_ok(), "an open question takes the policy's answer");
            }
        }
    }

    fn abort(&mut self, message: String) {
        let reason = Failure::new(FailureCode::InteractionAborted, message);
        self.cancel(Cancellation { reason, by: None }, Closing::Aborted);
    }

    fn count_decision(&mut self, by: &Answerer) {
        match by {
            Answerer::Person(_) => self.run.auto_decisions_in_a_row = 0,
            Answerer::Policy { .. } => {
                self.run.auto_decision_count += 1;
                self.run.auto_decisions_in_a_row += 1;
                self.run.last_auto_decision_at = Some(self.at);
            }
        }
    }

    /// Brings the answer to where it was wanted.
    fn answered(&mut self, interaction: &Interaction, reply: &Reply) {
        match &interaction.asker {
            Asker::TurnEnd => {
                self.end_turn(ExecutionStatus::Completed);
                self.deliver_text_of(interaction.turn_id);
                self.continue_with(interaction, reply.text.clone());
            }
            Asker::Gate { gate, purpose } => {
                let Some(attempt) = self.run.attempt() else { return };
                let permission = match purpose {
                    Purpose::Approval => match &interaction.state {
                        InteractionState::Answered(Resolution { verdict: Some(judged), .. }) => Some(*judged),
                        InteractionState::Answered(_)
                        | InteractionState::Open
                        | InteractionState::Closed { .. } => {
                            Some(approval::lenient_verdict(&interaction.question, reply))
                        }
                    },
                    Purpose::Input => None,
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
            Asker::Abide(Parked::Interrupted) => self.continue_with(interaction, reply.text.clone()),
            Asker::Abide(Parked::OutcomeUnknown) => match reply.text.trim().to_lowercase().as_str() {
                GIVE_UP => self.given_up(&reply.by),
                CONTINUE => {
                    let prompt = "Contact was lost during the last turn, so it is not known how much of it was \
                                  done. Look at what is there first, then go on from it.";
                    self.continue_with(interaction, String::from(prompt));
                }
                _ => self.continue_with(interaction, reply.text.clone()),
            },
            Asker::Abide(Parked::RequestVoid) => {
                let prompt = "The process of the last turn ended while it waited for a request of yours to be \
                              answered. No answer reached it, and nothing was approved. Look at what is there \
                              first, then go on from it, and ask again where you need to.";
                self.go_on_after_loss(interaction, reply, prompt);
            }
            Asker::Abide(Parked::StoppedByShutdown) => {
                let prompt = "The last turn was stopped before its end because the machine's agent runtime was \
                              shut down. Look at what is there first, then go on from it.";
                self.go_on_after_loss(interaction, reply, prompt);
            }
            Asker::Abide(Parked::FailedRepeatedly) => {
                // No engine has heard this prompt, whatever else the session holds.
                let unheard = self.turn().prompt.clone();
                match reply.text.trim().to_lowercase().as_str() {
                    GIVE_UP => self.given_up(&reply.by),
                    TRY_AGAIN => self.next_turn(interaction, unheard),
                    _ => self.next_turn(interaction, format!("{unheard}\n\n{}", reply.text)),
                }
            }
        }
    }

    /// A person decides about a turn whose process ended in the middle of it.
    fn go_on_after_loss(&mut self, interaction: &Interaction, reply: &Reply, prompt: &str) {
        let text = match reply.text.trim().to_lowercase().as_str() {
            GIVE_UP => return self.given_up(&reply.by),
            CONTINUE => String::from(prompt),
            _ => reply.text.clone(),
        };
        // A session that lived in the process that ended, or never came to be, has not heard the task.
        let unheard = !self.run.has_history && (self.run.is_sticky() || !self.run.handle_announced);
        let task = self.turn().prompt.clone();
        self.next_turn(interaction, if unheard { format!("{task}\n\n{text}") } else { text });
    }

    /// A turn that was lost or could not be started is left at that. A chat outlives it (decision 0009).
    fn given_up(&mut self, by: &Answerer) {
        let by = match by {
            Answerer::Person(name) => name.as_str(),
            Answerer::Policy { .. } => "policy",
        };
        match self.run.settings.execution_mode {
            ExecutionMode::Chat => self.go_on(None),
            ExecutionMode::Auto | ExecutionMode::Interactive => {
                self.cancel(canceled_by(by), Closing::Stopped);
            }
        }
    }

    /// Goes on with the answer.
    fn continue_with(&mut self, interaction: &Interaction, prompt: String) {
        // A session that never came to be has not heard the task: it is told again, with the answer.
        let unheard = !self.run.has_history && !self.run.handle_announced;
        let task = self.turn().prompt.clone();
        self.next_turn(interaction, if unheard { format!("{task}\n\n{prompt}") } else { prompt });
    }

    /// The answer starts the next turn: in the process that is held, or in one that resumes the session.
    fn next_turn(&mut self, interaction: &Interaction, prompt: String) {
        let next = NextTurn { cause: Cause::Reply(interaction.interaction_id), prompt };
        let held = match &self.run.state {
            RunState::WaitingUser(waiting) => match &waiting.hold {
                Hold::Session(live) => Some(live.clone()),
                Hold::Nothing | Hold::Turn { .. } => None,
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
