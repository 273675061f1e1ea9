//! Interprets the lines of `gemini -o stream-json`.
//!
//! A turn has succeeded if a `result` reports success and the process exited with 0. The exit code alone is not
//! reliable: it is 0 after SIGTERM and SIGINT, and the last byte of an HTTP status after an error of the model's
//! service. An `error` line does not end the turn, but it can turn a `result` of `success` into a failure. Gemini stops
//! a model that repeats itself or has used up its turns, prints such a line, and then reports success, mostly without
//! an answer (0.61.0).

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

use super::messages::{
    GeminiError, GeminiInitLine, GeminiMessage, GeminiResultLine, GeminiToolResult, GeminiToolUse,
};
use crate::{
    argument,
    failure::{engine_failed, exit_without_result, stderr_tail},
    line_protocol::{FactSink, LineProtocol, append_bounded},
    line_type,
};

/// A process executes only one turn.
const ONLY_TURN: u32 = 1;

/// A login is required.
const AUTH_REQUIRED_EXIT: ExitStatus = ExitStatus::Code(41);
/// The input is invalid; with a session to resume, its id is unknown.
const BAD_INPUT_EXIT: ExitStatus = ExitStatus::Code(42);
/// The directory is not trusted.
const UNTRUSTED_DIR_EXIT: ExitStatus = ExitStatus::Code(55);

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct GeminiReader {
    resumes: bool,
    has_session: bool,
    /// The model's text since its last tool call; at the end, its answer.
    answer: String,
    /// Whether a tool was used since, so that the next text begins a new answer.
    used_tool: bool,
    trouble: Option<String>,
    /// Whether the program stopped the model before it was done.
    was_cut_short: bool,
    verdict: Option<GeminiVerdict>,
}

/// The `error` line for a model that repeats itself. Its severity is only `warning`.
const LOOP_MESSAGE: &str = "Loop detected";

/// The outcome of the turn that the program reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum GeminiVerdict {
    Completed,
    Failed,
}

impl GeminiReader {
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        Self {
            resumes: matches!(context.session, LaunchSession::Resumed(_)),
            has_session: false,
            answer: String::new(),
            used_tool: false,
            trouble: None,
            was_cut_short: false,
            verdict: None,
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        match line_type::of(line)?.as_ref() {
            "init" => {
                let init: GeminiInitLine<'_> = serde_json::from_slice(line).ok()?;
                if !argument::is_valid_session_id(&init.session_id) {
                    return None;
                }
                self.has_session = true;
                let value = init.session_id.into_owned();
                facts.push(FactKind::Session { handle_type: HandleType::SessionId, value });
            }
            "message" => {
                let message: GeminiMessage<'_> = serde_json::from_slice(line).ok()?;
                match message.role.as_ref() {
                    "user" => {}
                    "assistant" => self.on_text(&message.content, facts),
                    _ => return None,
                }
            }
            "tool_use" => {
                let GeminiToolUse { tool_name, parameters } = serde_json::from_slice(line).ok()?;
                self.used_tool = true;
                facts.push(FactKind::Progress(match (parameters.command, parameters.file_path) {
                    (Some(command), _) => format!("runs {command}"),
                    (None, Some(path)) => format!("{} {path}", tool_name.replace('_', " ")),
                    (None, None) => tool_name.replace('_', " "),
                }));
            }
            "tool_result" => {
                let result: GeminiToolResult<'_> = serde_json::from_slice(line).ok()?;
                self.used_tool = true;
                if result.status != "success" {
                    let output = result.output.unwrap_or_default();
                    facts.push(FactKind::Progress(format!("did not work: {output}")));
                }
            }
            "error" => {
                let trouble: GeminiError<'_> = serde_json::from_slice(line).ok()?;
                self.was_cut_short |=
                    trouble.severity.as_deref() == Some("error") || trouble.message.contains(LOOP_MESSAGE);
                self.trouble = Some(trouble.message.clone().into_owned());
                facts.push(FactKind::Warning(trouble.message.into_owned()));
            }
            "result" => {
                let outcome: GeminiResultLine<'_> = serde_json::from_slice(line).ok()?;
                let success = outcome.status == "success";
                self.verdict = Some(if success { GeminiVerdict::Completed } else { GeminiVerdict::Failed });
                if let Some(error) = outcome.error {
                    self.trouble = Some(error.message.into_owned());
                }
                facts.push(FactKind::OutputComplete);
            }
            _ => return None,
        }
        Some(())
    }

    fn on_text(&mut self, words: &str, facts: &mut FactSink) {
        if std::mem::take(&mut self.used_tool) {
            self.answer.clear();
        }
        append_bounded(&mut self.answer, words);
        facts.push(FactKind::Text(words.to_owned()));
    }

    /// Whether a reported success is a failure: the model was stopped early, or there is an error and no answer.
    fn is_false_success(&self) -> bool {
        self.was_cut_short || (self.trouble.is_some() && self.answer.trim().is_empty())
    }

    fn failure(&self, exit: &ProcessExit<'_>) -> RunFailure {
        let stderr_tail = stderr_tail(exit.stderr);
        let refused = !self.has_session;
        match (exit.status, &self.trouble) {
            (BAD_INPUT_EXIT, _) if refused && self.resumes => RunFailure::new(
                FailureCode::SessionResumeFailed,
                format!(
                    "the session could not be resumed: {stderr_tail}\nGemini finds a session only in the directory \
                     where it was begun, and deletes it when it was not used for 30 days; \
                     general.sessionRetention.enabled = false in its settings makes it keep them"
                ),
            ),
            (AUTH_REQUIRED_EXIT, _) if refused => RunFailure::new(
                FailureCode::EngineAuthRequired,
                format!(
                    "gemini wants a login; run `gemini` once, or set GEMINI_API_KEY for it: {stderr_tail}"
                ),
            ),
            (UNTRUSTED_DIR_EXIT, _) if refused => RunFailure::new(
                FailureCode::WorkspaceUnusable,
                format!(
                    "gemini does not trust this directory; run `gemini` in it once and trust it, or put --skip-trust \
                     into engines.gemini.args: {stderr_tail}"
                ),
            ),
            (_, Some(trouble)) => engine_failed(trouble),
            (_, None) => exit_without_result(exit),
        }
    }
}

impl LineProtocol for GeminiReader {
    const VERSION: &'static str = "gemini/1";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        let exited_normally =
            exit.status == ExitStatus::Code(0) || exit.cause == ExitCause::TerminatedAfterOutput;
        match self.verdict {
            Some(GeminiVerdict::Completed)
                if exited_normally && self.has_session && !self.is_false_success() =>
            {
                facts.end_turn_with_answer(ONLY_TURN, &self.answer);
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
