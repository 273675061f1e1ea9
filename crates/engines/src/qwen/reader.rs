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

use super::messages::{QwenBlock, QwenMessageLine, QwenResultLine, QwenSystemLine};
use crate::{
    argument,
    failure::{engine_failed, exit_without_result, stderr_tail},
    line_protocol::{FactSink, LineProtocol},
    line_type,
};

/// A process executes only one turn.
const ONLY_TURN: u32 = 1;

/// Part of the message about an unknown session.
const NO_SUCH_SESSION_MESSAGE: &str = "No saved session found";
/// Part of the message about a missing login.
const NO_LOGIN_MESSAGE: &str = "No auth type is selected";

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
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        let resumes = matches!(context.session, LaunchSession::Resumed(_));
        Self { resumes, has_session: false, trouble: None, verdict: None }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        match line_type::of(line)?.as_ref() {
            "system" => {
                let system: QwenSystemLine<'_> = serde_json::from_slice(line).ok()?;
                if system.subtype != "init" || !argument::is_valid_session_id(&system.session_id) {
                    return None;
                }
                self.has_session = true;
                let value = system.session_id.into_owned();
                facts.push(FactKind::Session { handle_type: HandleType::SessionId, value });
            }
            "assistant" | "user" => {
                let QwenMessageLine { message, parent_tool_use_id } = serde_json::from_slice(line).ok()?;
                let by_helper = parent_tool_use_id.is_some();
                for block in message.content {
                    report_block(block, by_helper, facts);
                }
            }
            "stream_event" => line_type::check_json(line)?,
            "result" => {
                let outcome: QwenResultLine<'_> = serde_json::from_slice(line).ok()?;
                self.verdict = Some(match outcome.result {
                    Some(answer) if outcome.subtype == "success" && !outcome.is_error => {
                        QwenVerdict::Completed { answer: answer.into_owned() }
                    }
                    Some(error_text) => {
                        self.trouble = Some(error_text.into_owned());
                        QwenVerdict::Failed
                    }
                    None => QwenVerdict::Failed,
                });
                if let Some(error) = outcome.error {
                    self.trouble = Some(error.message.into_owned());
                }
                facts.push(FactKind::OutputComplete);
            }
            _ => return None,
        }
        Some(())
    }

    fn failure(&self, exit: &ProcessExit<'_>) -> RunFailure {
        let stderr_tail = stderr_tail(exit.stderr);
        match &self.trouble {
            None if self.resumes && !self.has_session && stderr_tail.contains(NO_SUCH_SESSION_MESSAGE) => {
                RunFailure::new(
                    FailureCode::SessionResumeFailed,
                    format!(
                        "the session could not be resumed; Qwen finds a session only in the directory where it was \
                     begun: {stderr_tail}"
                    ),
                )
            }
            Some(trouble) if trouble.contains(NO_LOGIN_MESSAGE) => RunFailure::new(
                FailureCode::EngineAuthRequired,
                format!("qwen wants a login; run `qwen` once and log in: {trouble}"),
            ),
            Some(trouble) => engine_failed(trouble),
            None => exit_without_result(exit),
        }
    }
}

/// Reports a block of a message. Text of sub-agents is not part of the answer.
fn report_block(block: QwenBlock<'_>, by_subagent: bool, facts: &mut FactSink) {
    match (block.kind.as_ref(), block.text, block.name) {
        ("text", Some(text), _) if !by_subagent => facts.push(FactKind::Text(text.into_owned())),
        ("tool_use", _, Some(tool)) => {
            facts.push(FactKind::Progress(match (block.input.command, block.input.file_path) {
                (Some(command), _) => format!("runs {command}"),
                (None, Some(path)) => format!("{} {path}", tool.replace('_', " ")),
                (None, None) => tool.replace('_', " "),
            }));
        }
        ("tool_result", ..) if block.is_error == Some(true) => {
            facts.push(FactKind::Progress("that did not work".to_owned()));
        }
        _ => {}
    }
}

impl LineProtocol for QwenReader {
    const VERSION: &'static str = "qwen/1";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        let exited_normally =
            exit.status == ExitStatus::Code(0) || exit.cause == ExitCause::TerminatedAfterOutput;
        match &self.verdict {
            Some(QwenVerdict::Completed { answer }) if exited_normally && self.has_session => {
                facts.end_turn_with_answer(ONLY_TURN, answer);
            }
            _ if exit.cause == ExitCause::Interrupted => facts.end_turn(ONLY_TURN, TurnOutcome::Interrupted),
            _ => facts.end_turn(ONLY_TURN, TurnOutcome::Failed { failure: self.failure(exit) }),
        }
    }

    fn status(&self) -> EngineSessionStatus {
        if self.has_session { EngineSessionStatus::Working } else { EngineSessionStatus::Starting }
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
