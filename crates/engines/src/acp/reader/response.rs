//! Responses of the agent to the client's requests: handshake, session, settings and prompts.

use std::borrow::Cow;

use abide_domain::{
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
};
use serde_json::value::RawValue;

use super::{AcpPhase, AcpReader};
use crate::{
    acp::{
        messages::{AcpError, PromptResult, parse_part},
        requests,
    },
    failure::engine_failed,
    line_protocol::FactSink,
};

impl AcpReader {
    /// Processes a response to one of our requests.
    pub(super) fn on_response(
        &mut self,
        id: u64,
        answer: Result<Option<&RawValue>, AcpError<'_>>,
        facts: &mut FactSink,
    ) -> Option<()> {
        match (&mut self.phase, id) {
            (AcpPhase::Initializing, requests::INITIALIZE_ID) => match answer {
                Ok(result) => self.on_initialized(&parse_part(result)?, facts),
                Err(error) => self.fail_session(self.failure(&error), facts),
            },
            (AcpPhase::OpeningSession { replays }, requests::OPEN_SESSION_ID) => {
                let replays = *replays;
                match answer {
                    Ok(result) => {
                        self.on_session_opened(&parse_part(result).unwrap_or_default(), replays, facts)
                    }
                    Err(error) => self.fail_session(self.open_failure(&error), facts),
                }
            }
            (AcpPhase::ApplyingSettings(settings, done), id) if id == requests::setting_id(*done) => {
                let wanted = settings.get(*done).and_then(|setting| setting.wanted.clone());
                *done += 1;
                match (answer, wanted) {
                    (Err(error), Some(wanted)) => {
                        let mut failure = self.first_failure(&error);
                        if failure.code != FailureCode::SessionResumeFailed {
                            failure.message = format!("the agent refused the {wanted}: {}", failure.message);
                        }
                        self.fail_session(failure, facts);
                    }
                    (Ok(_), _) | (Err(_), None) => self.send_next_setting_or_prompt(facts),
                }
            }
            (AcpPhase::Ready, id) => {
                let turn = requests::turn_of_prompt_id(id).filter(|turn| *turn > self.ended_turns)?;
                let ending = match answer {
                    Ok(result) => outcome_of_stop_reason(
                        parse_part::<PromptResult<'_>>(result).unwrap_or_default().stop_reason,
                    ),
                    Err(error) if turn == 1 && !self.turn.has_output => {
                        Some(TurnOutcome::Failed { failure: self.first_failure(&error) })
                    }
                    Err(error) => Some(TurnOutcome::Failed { failure: self.failure(&error) }),
                };
                let turn_state = std::mem::take(&mut self.turn);
                self.ended_turns = turn;
                self.gates.clear();
                match ending {
                    Some(ending) => facts.end_turn(turn, ending),
                    None if turn_state.is_broken => {
                        facts.end_turn(
                            turn,
                            TurnOutcome::Failed { failure: engine_failed(turn_state.answer.trim()) },
                        );
                    }
                    None => facts.end_turn_with_answer(turn, &turn_state.answer),
                }
            }
            (
                AcpPhase::Initializing
                | AcpPhase::OpeningSession { .. }
                | AcpPhase::ApplyingSettings(..)
                | AcpPhase::Failed,
                _,
            ) => {
                return None;
            }
        }
        Some(())
    }
}

/// The outcome for a stop reason; `None` if the turn ended with an answer.
fn outcome_of_stop_reason(reason: Option<Cow<'_, str>>) -> Option<TurnOutcome> {
    let message = match reason.as_deref() {
        Some("end_turn") => return None,
        Some("cancelled") => return Some(TurnOutcome::Interrupted),
        Some("refusal") => "the agent refused the request; rephrase it".to_owned(),
        Some("max_tokens") => {
            "the agent reached its limit of tokens before it was done; ask for less at a time".to_owned()
        }
        Some("max_turn_requests") => {
            "the agent reached its limit of model requests before it was done; tell it to continue".to_owned()
        }
        Some(other) => format!("the agent stopped for an unknown reason: {other}"),
        None => "the agent stopped without a reason".to_owned(),
    };
    Some(TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, message) })
}
