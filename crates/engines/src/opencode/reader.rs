//! Interprets the lines of `opencode run --format json`.
//!
//! There is no event for the end of a turn. It has succeeded if the last step finished with the reason `stop` *and* the
//! process exited with 0.

use abide_domain::{
    effect::LaunchSession,
    engine::HandleType,
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
};
use abide_ports::engine::{
    EngineSessionStatus, ExitCause, FactKind, InterruptMethod, LaunchContext, ProcessExit, ProcessSignal,
    ShutdownMethod, UnsupportedOperation,
};

use super::native::{ErrorLine, OpenCodeError, PartLine, SessionLine, StepPart, TextPart, ToolPart};
use crate::{
    argument,
    failing::{engine_failed, exit_without_result, exited_voluntarily, stderr_tail},
    kind,
    tongue::{FactSink, LineProtocol, append_bounded},
};

/// A process executes only one turn.
const ONLY_TURN: u32 = 1;

/// Part of the message about a request that would have required a person.
const REFUSED_MESSAGE: &str = "rejected permission";

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct OpenCodeReader {
    resumes: bool,
    session: Option<String>,
    /// The latest message of the agent; at the end, its answer.
    answer: String,
    /// The id of the message in `answer`.
    message: String,
    trouble: Option<RunFailure>,
    /// The state of the last step.
    last_step: OpenCodeStep,
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum OpenCodeStep {
    /// The step is running, or another one follows.
    Open,
    /// The step was the last and succeeded.
    Stopped,
}

impl OpenCodeReader {
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        Self {
            resumes: matches!(context.session, LaunchSession::Resumed(_)),
            session: None,
            answer: String::new(),
            message: String::new(),
            trouble: None,
            last_step: OpenCodeStep::Open,
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        match kind::of(line)?.as_ref() {
            "step_start" => {
                let SessionLine { session_id } = serde_json::from_slice(line).ok()?;
                self.on_session_id(&session_id, facts);
                self.last_step = OpenCodeStep::Open;
                // The program continued, so the earlier error did not end the turn.
                self.trouble = None;
            }
            "text" => {
                let PartLine::<'_, TextPart<'_>> { session_id, part } = serde_json::from_slice(line).ok()?;
                self.on_session_id(&session_id, facts);
                if self.message != part.message_id {
                    self.answer.clear();
                    self.message = part.message_id.into_owned();
                } else if !self.answer.is_empty() {
                    self.answer.push_str("\n\n");
                }
                append_bounded(&mut self.answer, &part.text);
                facts.push(FactKind::Text(part.text.into_owned()));
            }
            "tool_use" => {
                let PartLine::<'_, ToolPart<'_>> { session_id, part } = serde_json::from_slice(line).ok()?;
                self.on_session_id(&session_id, facts);
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
                    self.trouble = Some(RunFailure::new(FailureCode::EngineFailed, message));
                }
            }
            "reasoning" => {
                let SessionLine { session_id } = serde_json::from_slice(line).ok()?;
                self.on_session_id(&session_id, facts);
                facts.push(FactKind::Progress("thinks".to_owned()));
            }
            "step_finish" => {
                let PartLine::<'_, StepPart<'_>> { session_id, part } = serde_json::from_slice(line).ok()?;
                self.on_session_id(&session_id, facts);
                match part.reason.as_ref() {
                    "stop" => {
                        self.last_step = OpenCodeStep::Stopped;
                        facts.push(FactKind::OutputComplete);
                    }
                    "tool-calls" | "unknown" => {}
                    "length" => {
                        let message =
                            "the model reached its limit before it was done; ask for less at a time";
                        self.trouble = Some(RunFailure::new(FailureCode::EngineFailed, message));
                    }
                    other => {
                        let message = format!("the model stopped before it was done: {other}");
                        self.trouble = Some(RunFailure::new(FailureCode::EngineFailed, message));
                    }
                }
            }
            "error" => {
                let ErrorLine { session_id, error } = serde_json::from_slice(line).ok()?;
                self.on_session_id(&session_id, facts);
                self.last_step = OpenCodeStep::Open;
                let failure = failure(&error);
                facts.push(FactKind::Warning(failure.message.clone()));
                self.trouble = Some(failure);
            }
            _ => return None,
        }
        Some(())
    }

    /// Each line names the session; only a new id is reported.
    fn on_session_id(&mut self, session: &str, facts: &mut FactSink) {
        if argument::is_valid_session_id(session) && self.session.as_deref() != Some(session) {
            let value = session.to_owned();
            self.session = Some(value.clone());
            facts.push(FactKind::Session { handle_type: HandleType::SessionId, value });
        }
    }

    fn exit_failure(&self, exit: &ProcessExit<'_>) -> RunFailure {
        match &self.trouble {
            Some(failure) => failure.clone(),
            None if self.resumes && self.session.is_none() && exited_voluntarily(exit) => RunFailure::new(
                FailureCode::SessionResumeFailed,
                format!("the session could not be resumed: {}", stderr_tail(exit.stderr)),
            ),
            None => exit_without_result(exit),
        }
    }
}

fn failure(trouble: &OpenCodeError<'_>) -> RunFailure {
    let name = trouble.name.as_deref().unwrap_or("error");
    let data = trouble.data.as_ref();
    let message = data.and_then(|data| data.message.as_deref()).unwrap_or("no details");
    let mut failure = engine_failed(&format!("{name}: {message}"));
    if data.and_then(|data| data.status_code) == Some(401) || name == "ProviderAuthError" {
        failure.code = FailureCode::EngineAuthRequired;
        failure.message.push_str("; log in with `opencode auth login`");
    }
    failure
}

impl LineProtocol for OpenCodeReader {
    const VERSION: &'static str = "opencode/1";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn end(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        let exited_normally =
            exit.status == ExitStatus::Code(0) || exit.cause == ExitCause::TerminatedAfterOutput;
        match self.last_step {
            OpenCodeStep::Stopped if exited_normally => facts.end_turn_with_answer(ONLY_TURN, &self.answer),
            OpenCodeStep::Stopped | OpenCodeStep::Open if exit.cause == ExitCause::Interrupted => {
                facts.end_turn(ONLY_TURN, TurnOutcome::Interrupted);
            }
            OpenCodeStep::Stopped | OpenCodeStep::Open => {
                facts.end_turn(ONLY_TURN, TurnOutcome::Failed { failure: self.exit_failure(exit) });
            }
        }
    }

    fn status(&self) -> EngineSessionStatus {
        if self.session.is_some() { EngineSessionStatus::Working } else { EngineSessionStatus::Starting }
    }

    fn say(&mut self, _prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Err(UnsupportedOperation::Refused {
            reason: "`opencode run` takes one prompt; hold `opencode acp`".to_owned(),
        })
    }

    fn interrupt(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(ProcessSignal::Terminate)
    }

    fn leave(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
