//! Interprets the lines of `codex exec --json`.
//!
//! A turn has succeeded if `turn.completed` was printed *and* the process exited with 0. Either alone is not enough. A
//! top-level `error` does not end the turn, because the program retries.

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

use super::messages::{CodexError, ItemLine, ThreadStarted, TurnFailed};
use crate::{
    argument,
    failure::{engine_failed, exit_without_result, exited_voluntarily, stderr_tail},
    line_protocol::{FactSink, LineProtocol},
    line_type,
};

/// A process executes only one turn.
const ONLY_TURN: u32 = 1;

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct CodexReader {
    resumes: bool,
    has_session: bool,
    /// The latest message of the agent; at the end, its answer.
    answer: String,
    trouble: Option<String>,
    verdict: Option<CodexVerdict>,
}

/// The outcome of the turn that the program reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum CodexVerdict {
    Completed,
    Failed,
}

impl CodexReader {
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        Self {
            resumes: matches!(context.session, LaunchSession::Resumed(_)),
            has_session: false,
            answer: String::new(),
            trouble: None,
            verdict: None,
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        let kind = line_type::of(line)?;
        match kind.as_ref() {
            "thread.started" => {
                let started: ThreadStarted<'_> = serde_json::from_slice(line).ok()?;
                if !argument::is_valid_session_id(&started.thread_id) {
                    return None;
                }
                self.has_session = true;
                let value = started.thread_id.into_owned();
                facts.push(FactKind::Session { handle_type: HandleType::SessionId, value });
            }
            "turn.started" => line_type::check_json(line)?,
            "item.started" | "item.updated" | "item.completed" => {
                let ItemLine { item } = serde_json::from_slice(line).ok()?;
                let is_completed = kind == "item.completed";
                match (item.kind.as_ref(), item.text, item.command) {
                    ("agent_message", Some(text), _) if is_completed => {
                        self.answer = text.into_owned();
                        facts.push(FactKind::Text(self.answer.clone()));
                    }
                    ("command_execution", _, Some(command)) => {
                        facts.push(FactKind::Progress(match item.exit_code {
                            Some(code) => format!("{command} ended with {code}"),
                            None => format!("runs {command}"),
                        }));
                    }
                    ("error", ..) => {
                        let message = item.message.unwrap_or_default();
                        facts.push(FactKind::Warning(message.into_owned()));
                    }
                    (kind, ..) if is_completed => facts.push(FactKind::Progress(kind.replace('_', " "))),
                    _ => {}
                }
            }
            "turn.completed" => {
                line_type::check_json(line)?;
                self.verdict = Some(CodexVerdict::Completed);
                facts.push(FactKind::OutputComplete);
            }
            "turn.failed" => {
                let failed: TurnFailed<'_> = serde_json::from_slice(line).ok()?;
                self.trouble = Some(failed.error.message.into_owned());
                self.verdict = Some(CodexVerdict::Failed);
                facts.push(FactKind::OutputComplete);
            }
            "error" => {
                let trouble: CodexError<'_> = serde_json::from_slice(line).ok()?;
                self.trouble = Some(trouble.message.into_owned());
                facts.push(FactKind::Warning(self.trouble.clone().unwrap_or_default()));
            }
            _ => return None,
        }
        Some(())
    }

    fn failure(&self, exit: &ProcessExit<'_>) -> RunFailure {
        let reported = self.trouble.as_deref();
        match (reported, self.resumes && !self.has_session && exited_voluntarily(exit)) {
            (_, true) => RunFailure::new(
                FailureCode::SessionResumeFailed,
                format!("the thread could not be resumed: {}", stderr_tail(exit.stderr)),
            ),
            (Some(trouble), false) => engine_failed(trouble),
            (None, false) => exit_without_result(exit),
        }
    }
}

impl LineProtocol for CodexReader {
    const VERSION: &'static str = "codex/1";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        let exited_normally =
            exit.status == ExitStatus::Code(0) || exit.cause == ExitCause::TerminatedAfterOutput;
        match self.verdict {
            Some(CodexVerdict::Completed) if exited_normally => {
                facts.end_turn_with_answer(ONLY_TURN, &self.answer)
            }
            _ if exit.cause == ExitCause::Interrupted => facts.end_turn(ONLY_TURN, TurnOutcome::Interrupted),
            _ => facts.end_turn(ONLY_TURN, TurnOutcome::Failed { failure: self.failure(exit) }),
        }
    }

    fn status(&self) -> EngineSessionStatus {
        if self.has_session { EngineSessionStatus::Working } else { EngineSessionStatus::Starting }
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        // SIGINT makes the program record the interruption in the thread; SIGTERM would leave an unfinished turn.
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
