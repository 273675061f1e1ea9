//! Interprets the lines of `gemini -o stream-json`.
//!
//! A turn has succeeded if a `result` reports success and the process exited with 0. The exit code alone is not
//! reliable: it is 0 after SIGTERM and SIGINT, and the last byte of an HTTP status after an error of the model's
//! service. An `error` line does not end the turn, but it can turn a `result` of `success` into a failure. Gemini stops
//! a model that repeats itself or has used up its turns, prints such a line, and then reports success, mostly without
//! an answer (0.61.0).

use abide_domain::{
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
};
use abide_ports::engine::{FactKind, ProcessExit};

use super::messages::{
    GeminiError, GeminiInitLine, GeminiMessage, GeminiResultLine, GeminiToolResult, GeminiToolUse,
};
use crate::{
    failure::{engine_failed, exited_normally, resume_failed, stderr_tail},
    line_protocol::{FactSink, append_bounded},
    line_type,
    one_shot::{OneShotProtocol, OneShotTurn},
};

/// A login is required.
const AUTH_REQUIRED_EXIT: ExitStatus = ExitStatus::Code(41);
/// The input is invalid; with a session to resume, its id is unknown.
const BAD_INPUT_EXIT: ExitStatus = ExitStatus::Code(42);
/// The directory is not trusted.
const UNTRUSTED_DIR_EXIT: ExitStatus = ExitStatus::Code(55);

/// The `error` line for a model that repeats itself. Its severity is only `warning`.
const LOOP_MESSAGE: &str = "Loop detected";

/// The answer is the model's text since its last tool call.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct GeminiReader {
    /// Whether a tool was used since the last text, so that the next text begins a new answer.
    used_tool: bool,
    /// Whether the program stopped the model before it was done.
    was_cut_short: bool,
}

impl GeminiReader {
    fn on_text(&mut self, text: &str, turn: &mut OneShotTurn, facts: &mut FactSink) {
        if std::mem::take(&mut self.used_tool) {
            turn.answer.clear();
        }
        append_bounded(&mut turn.answer, text);
        facts.push(FactKind::Text(text.to_owned()));
    }

    /// Whether a reported success is a failure: the model was stopped early, or there is an error and no answer.
    fn is_false_success(&self, turn: &OneShotTurn) -> bool {
        self.was_cut_short || (turn.failure.is_some() && turn.answer.trim().is_empty())
    }
}

impl OneShotProtocol for GeminiReader {
    const VERSION: &'static str = "gemini/2";

    fn on_line(&mut self, line: &[u8], turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()> {
        match line_type::of(line)?.as_ref() {
            "init" => {
                let init: GeminiInitLine<'_> = serde_json::from_slice(line).ok()?;
                turn.on_session_id(&init.session_id, facts)?;
            }
            "message" => {
                let message: GeminiMessage<'_> = serde_json::from_slice(line).ok()?;
                match message.role.as_ref() {
                    "user" => {}
                    "assistant" => self.on_text(&message.content, turn, facts),
                    _ => return None,
                }
            }
            "tool_use" => {
                let GeminiToolUse { tool_name, parameters } = serde_json::from_slice(line).ok()?;
                self.used_tool = true;
                let (command, path) = (parameters.command.as_deref(), parameters.file_path.as_deref());
                facts.push_tool_call(&tool_name, command, path);
            }
            "tool_result" => {
                let result: GeminiToolResult<'_> = serde_json::from_slice(line).ok()?;
                self.used_tool = true;
                if result.status != "success" {
                    let output = result.output.unwrap_or_default();
                    facts.push(FactKind::Progress(format!("the tool failed: {output}")));
                }
            }
            "error" => {
                let GeminiError { message, severity } = serde_json::from_slice(line).ok()?;
                self.was_cut_short |= severity.as_deref() == Some("error") || message.contains(LOOP_MESSAGE);
                turn.failure = Some(engine_failed(&message));
                facts.push(FactKind::Warning(message.into_owned()));
            }
            "result" => {
                let outcome: GeminiResultLine<'_> = serde_json::from_slice(line).ok()?;
                turn.completed = outcome.status == "success";
                if let Some(error) = outcome.error {
                    turn.failure = Some(engine_failed(&error.message));
                }
                facts.push(FactKind::OutputComplete);
            }
            _ => return None,
        }
        Some(())
    }

    fn is_success(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> bool {
        turn.completed && exited_normally(exit) && turn.session.is_some() && !self.is_false_success(turn)
    }

    fn failure(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> RunFailure {
        let stderr_tail = stderr_tail(exit.stderr);
        let refused = turn.session.is_none();
        match exit.status {
            BAD_INPUT_EXIT if refused && turn.resumes => resume_failed(
                "the session",
                &format!(
                    "{stderr_tail}\nGemini finds a session only in the directory \
                     where it was begun, and deletes it when it was not used for 30 days; \
                     general.sessionRetention.enabled = false in its settings makes it keep them"
                ),
            ),
            AUTH_REQUIRED_EXIT if refused => RunFailure::new(
                FailureCode::EngineAuthRequired,
                format!(
                    "gemini requires a login; run `gemini` once, or set GEMINI_API_KEY for it: {stderr_tail}"
                ),
            ),
            UNTRUSTED_DIR_EXIT if refused => RunFailure::new(
                FailureCode::WorkspaceUnusable,
                format!(
                    "gemini does not trust this directory; run `gemini` in it once and trust it, or put --skip-trust \
                     into engines.gemini.args: {stderr_tail}"
                ),
            ),
            ExitStatus::Code(_) | ExitStatus::Unknown => turn.failure_or_exit(exit),
        }
    }
}
