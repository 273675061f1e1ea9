//! Interprets the lines of `qwen -o stream-json`.
//!
//! A turn has succeeded if both fields of a `result` report success and the process exited with 0.

use abide_domain::{
    effect::LaunchSession,
    engine::HandleType,
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
};
use abide_ports::engine::{
    EngineSessionStatus, ExitCause, FactKind, InterruptMethod, LaunchContext, ProcessExit, ProcessSignal,
    ShutdownMethod,
};

use super::native::{QwenBlock, QwenMessageLine, QwenResultLine, QwenSystemLine};
use crate::{
    argument,
    failing::{complaint, engine_failed, went_silently},
    kind,
    tongue::{FactSink, LineProtocol},
};

/// A process executes only one turn.
const TURN: u32 = 1;

/// Part of the message about an unknown session.
const NO_SUCH_SESSION: &str = "No saved session found";
/// Part of the message about a missing login.
const NO_LOGIN: &str = "No auth type is selected";

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct QwenReader {
    resumes: bool,
    has_session: bool,
    trouble: Option<String>,
    verdict: Option<QwenVerdict>,
}

/// The outcome of the turn that the program reported.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum QwenVerdict {
    Completed { answer: String },
    Failed,
}

impl QwenReader {
    pub(super) fn new(order: &LaunchContext<'_>) -> Self {
        let resumes = matches!(order.session, LaunchSession::Resumed(_));
        Self { resumes, has_session: false, trouble: None, verdict: None }
    }

    /// Processes a line; `None` if it is unknown.
    fn known(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        match kind::of(line)?.as_ref() {
            "system" => {
                let system: QwenSystemLine<'_> = serde_json::from_slice(line).ok()?;
                if system.subtype != "init" || !argument::is_session(&system.session_id) {
                    return None;
                }
                self.has_session = true;
                let value = system.session_id.into_owned();
                facts.say(FactKind::Session { handle_type: HandleType::SessionId, value });
            }
            "assistant" | "user" => {
                let QwenMessageLine { message, parent_tool_use_id } = serde_json::from_slice(line).ok()?;
                let by_helper = parent_tool_use_id.is_some();
                for block in message.content {
                    heard(block, by_helper, facts);
                }
            }
            "stream_event" => kind::is_whole(line)?,
            "result" => {
                let outcome: QwenResultLine<'_> = serde_json::from_slice(line).ok()?;
                self.verdict = Some(match outcome.result {
                    Some(answer) if outcome.subtype == "success" && !outcome.is_error => {
                        QwenVerdict::Completed { answer: answer.into_owned() }
                    }
                    Some(complaint) => {
                        self.trouble = Some(complaint.into_owned());
                        QwenVerdict::Failed
                    }
                    None => QwenVerdict::Failed,
                });
                if let Some(error) = outcome.error {
                    self.trouble = Some(error.message.into_owned());
                }
                facts.say(FactKind::Finishing);
            }
            _ => return None,
        }
        Some(())
    }

    fn failure(&self, departure: &ProcessExit<'_>) -> RunFailure {
        let complaint = complaint(departure.stderr);
        match &self.trouble {
            None if self.resumes && !self.has_session && complaint.contains(NO_SUCH_SESSION) => {
                RunFailure::new(
                    FailureCode::SessionResumeFailed,
                    format!(
                        "the session could not be resumed; Qwen finds a session only in the directory where it was \
                     begun: {complaint}"
                    ),
                )
            }
            Some(trouble) if trouble.contains(NO_LOGIN) => RunFailure::new(
                FailureCode::EngineAuthRequired,
                format!("qwen wants a login; run `qwen` once and log in: {trouble}"),
            ),
            Some(trouble) => engine_failed(trouble),
            None => went_silently(departure),
        }
    }
}

/// Reports a block of a message. Text of sub-agents is not part of the answer.
fn heard(block: QwenBlock<'_>, by_helper: bool, facts: &mut FactSink) {
    match (block.kind.as_ref(), block.text, block.name) {
        ("text", Some(text), _) if !by_helper => facts.say(FactKind::Text(text.into_owned())),
        ("tool_use", _, Some(tool)) => {
            facts.say(FactKind::Progress(match (block.input.command, block.input.file_path) {
                (Some(command), _) => format!("runs {command}"),
                (None, Some(path)) => format!("{} {path}", tool.replace('_', " ")),
                (None, None) => tool.replace('_', " "),
            }));
        }
        ("tool_result", ..) if block.is_error == Some(true) => {
            facts.say(FactKind::Progress("that did not work".to_owned()));
        }
        _ => {}
    }
}

impl LineProtocol for QwenReader {
    const VERSION: &'static str = "qwen/1";

    fn line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.known(line, facts).is_none() {
            facts.unknown(line);
        }
    }

    fn end(&mut self, departure: &ProcessExit<'_>, facts: &mut FactSink) {
        let left_well = departure.exit == ExitStatus::Code(0) || departure.cause == ExitCause::Dismissed;
        match &self.verdict {
            Some(QwenVerdict::Completed { answer }) if left_well && self.has_session => {
                facts.answered(TURN, answer);
            }
            _ if departure.cause == ExitCause::Interrupted => facts.ended(TURN, TurnOutcome::Interrupted),
            _ => facts.ended(TURN, TurnOutcome::Failed { failure: self.failure(departure) }),
        }
    }

    fn status(&self) -> EngineSessionStatus {
        if self.has_session { EngineSessionStatus::Working } else { EngineSessionStatus::Starting }
    }

    fn interrupt(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn leave(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
