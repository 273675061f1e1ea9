//! Interprets the lines of `opencode run --format json`.
//!
//! There is no event for the end of a turn. It has succeeded if the last step finished with the reason `stop` *and* the
//! process exited with 0.

use abide_domain::failure::{FailureCode, RunFailure};
use abide_ports::engine::{FactKind, ProcessSignal, UnsupportedOperation};

use super::messages::{ErrorLine, OpenCodeError, PartLine, SessionLine, StepPart, TextPart, ToolPart};
use crate::{
    failure::engine_failed,
    line_protocol::{FactSink, append_bounded},
    line_type,
    one_shot::{OneShotProtocol, OneShotTurn},
};

/// Part of the message about a request that would have required a person.
const REFUSED_MESSAGE: &str = "rejected permission";

/// The answer is the latest message of the agent.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct OpenCodeReader {
    /// The id of the message in the answer.
    message: String,
}

impl OneShotProtocol for OpenCodeReader {
    const VERSION: &'static str = "opencode/2";

    const INTERRUPT_SIGNAL: ProcessSignal = ProcessSignal::Terminate;

    fn on_line(&mut self, line: &[u8], turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()> {
        match line_type::of(line)?.as_ref() {
            "step_start" => {
                let SessionLine { session_id } = serde_json::from_slice(line).ok()?;
                report_session(&session_id, turn, facts);
                turn.completed = false;
                // The program continued, so the earlier error did not end the turn.
                turn.failure = None;
            }
            "text" => {
                let PartLine::<'_, TextPart<'_>> { session_id, part } = serde_json::from_slice(line).ok()?;
                report_session(&session_id, turn, facts);
                if self.message != part.message_id {
                    turn.answer.clear();
                    self.message = part.message_id.into_owned();
                } else if !turn.answer.is_empty() {
                    turn.answer.push_str("\n\n");
                }
                append_bounded(&mut turn.answer, &part.text);
                facts.push(FactKind::Text(part.text.into_owned()));
            }
            "tool_use" => {
                let PartLine::<'_, ToolPart<'_>> { session_id, part } = serde_json::from_slice(line).ok()?;
                report_session(&session_id, turn, facts);
                let title = part.state.title.filter(|title| !title.is_empty()).unwrap_or(part.tool);
                facts.push(FactKind::Progress(match &part.state.error {
                    Some(error) => format!("{title}: {error}"),
                    None => format!("{title}: {}", part.state.status),
                }));
                if let Some(error) = part.state.error {
                    // If no later line succeeds, this error is the cause of the turn's end.
                    let mut message = format!("{title}: {error}");
                    if error.contains(REFUSED_MESSAGE) {
                        message.push_str(
                            " `opencode run` cannot ask a person inside a turn; allow it by the run's sandbox or \
                             in OpenCode's own permissions.",
                        );
                    }
                    turn.failure = Some(RunFailure::new(FailureCode::EngineFailed, message));
                }
            }
            "reasoning" => {
                let SessionLine { session_id } = serde_json::from_slice(line).ok()?;
                report_session(&session_id, turn, facts);
                facts.push(FactKind::Progress("thinks".to_owned()));
            }
            "step_finish" => {
                let PartLine::<'_, StepPart<'_>> { session_id, part } = serde_json::from_slice(line).ok()?;
                report_session(&session_id, turn, facts);
                match part.reason.as_ref() {
                    "stop" => {
                        turn.completed = true;
                        facts.push(FactKind::OutputComplete);
                    }
                    "tool-calls" | "unknown" => {}
                    "length" => {
                        let message =
                            "the model reached its limit before it was done; ask for less at a time";
                        turn.failure = Some(RunFailure::new(FailureCode::EngineFailed, message));
                    }
                    other => {
                        let message = format!("the model stopped before it was done: {other}");
                        turn.failure = Some(RunFailure::new(FailureCode::EngineFailed, message));
                    }
                }
            }
            "error" => {
                let ErrorLine { session_id, error } = serde_json::from_slice(line).ok()?;
                report_session(&session_id, turn, facts);
                turn.completed = false;
                let failure = reported_failure(&error);
                facts.push(FactKind::Warning(failure.message.clone()));
                turn.failure = Some(failure);
            }
            _ => return None,
        }
        Some(())
    }

    fn prompt_refusal() -> UnsupportedOperation {
        UnsupportedOperation::Refused {
            reason: "`opencode run` takes one prompt; hold `opencode acp`".to_owned(),
        }
    }
}

/// Each line names the session; only a new id is reported.
fn report_session(id: &str, turn: &mut OneShotTurn, facts: &mut FactSink) {
    if turn.session.as_deref() != Some(id) {
        // Lines with an invalid id count; only the id is ignored.
        turn.on_session_id(id, facts);
    }
}

fn reported_failure(error: &OpenCodeError<'_>) -> RunFailure {
    let name = error.name.as_deref().unwrap_or("error");
    let data = error.data.as_ref();
    let message = data.and_then(|data| data.message.as_deref()).unwrap_or("no details");
    let mut failure = engine_failed(&format!("{name}: {message}"));
    if data.and_then(|data| data.status_code) == Some(401) || name == "ProviderAuthError" {
        failure.code = FailureCode::EngineAuthRequired;
        failure.message.push_str("; log in with `opencode auth login`");
    }
    failure
}
