//! Interprets the lines of `qwen -o stream-json`.
//!
//! A turn has succeeded if both fields of a `result` report success and the process exited with 0.

use abide_domain::failure::{FailureCode, RunFailure};
use abide_ports::engine::{FactKind, ProcessExit};

use super::messages::{QwenBlock, QwenMessageLine, QwenResultLine, QwenSystemLine};
use crate::{
    failure::{engine_failed, exited_normally, stderr_tail},
    line_protocol::FactSink,
    line_type,
    one_shot::{OneShotProtocol, OneShotTurn},
};

/// Part of the message about an unknown session.
const NO_SUCH_SESSION_MESSAGE: &str = "No saved session found";
/// Part of the message about a missing login.
const NO_LOGIN_MESSAGE: &str = "No auth type is selected";

/// The program needs no state beyond that of the turn.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct QwenReader;

impl OneShotProtocol for QwenReader {
    const VERSION: &'static str = "qwen/2";

    fn on_line(&mut self, line: &[u8], turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()> {
        match line_type::of(line)?.as_ref() {
            "system" => {
                let system: QwenSystemLine<'_> = serde_json::from_slice(line).ok()?;
                if system.subtype != "init" {
                    return None;
                }
                turn.on_session_id(&system.session_id, facts)?;
            }
            "assistant" | "user" => {
                let QwenMessageLine { message, parent_tool_use_id } = serde_json::from_slice(line).ok()?;
                let by_subagent = parent_tool_use_id.is_some();
                for block in message.content {
                    report_block(block, by_subagent, facts);
                }
            }
            "stream_event" => line_type::check_json(line)?,
            "result" => {
                let outcome: QwenResultLine<'_> = serde_json::from_slice(line).ok()?;
                let reports_success = outcome.subtype == "success" && !outcome.is_error;
                turn.completed = reports_success && outcome.result.is_some();
                match outcome.result {
                    Some(answer) if reports_success => turn.answer = answer.into_owned(),
                    Some(error_text) => turn.failure = Some(reported_failure(&error_text)),
                    None => {}
                }
                if let Some(error) = outcome.error {
                    turn.failure = Some(reported_failure(&error.message));
                }
                facts.push(FactKind::OutputComplete);
            }
            _ => return None,
        }
        Some(())
    }

    fn is_success(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> bool {
        turn.completed && exited_normally(exit) && turn.session.is_some()
    }

    fn failure(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> RunFailure {
        let stderr_tail = stderr_tail(exit.stderr);
        let is_session_lost =
            turn.resumes && turn.session.is_none() && stderr_tail.contains(NO_SUCH_SESSION_MESSAGE);
        if turn.failure.is_none() && is_session_lost {
            return RunFailure::new(
                FailureCode::SessionResumeFailed,
                format!(
                    "the session could not be resumed; Qwen finds a session only in the directory where it was \
                     begun: {stderr_tail}"
                ),
            );
        }
        turn.failure_or_exit(exit)
    }
}

/// The failure with the message of a `result`.
fn reported_failure(message: &str) -> RunFailure {
    if message.contains(NO_LOGIN_MESSAGE) {
        let message = format!("qwen requires a login; run `qwen` once and log in: {message}");
        return RunFailure::new(FailureCode::EngineAuthRequired, message);
    }
    engine_failed(message)
}

/// Reports a block of a message. Text of sub-agents is not part of the answer.
fn report_block(block: QwenBlock<'_>, by_subagent: bool, facts: &mut FactSink) {
    match (block.kind.as_ref(), block.text, block.name) {
        ("text", Some(text), _) if !by_subagent => facts.push(FactKind::Text(text.into_owned())),
        ("tool_use", _, Some(tool)) => {
            let (command, path) = (block.input.command.as_deref(), block.input.file_path.as_deref());
            facts.push_tool_call(&tool, command, path);
        }
        ("tool_result", ..) if block.is_error == Some(true) => {
            facts.push(FactKind::Progress("the tool failed".to_owned()));
        }
        _ => {}
    }
}
