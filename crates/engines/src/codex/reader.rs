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

use super::native::{CodexError, ItemLine, ThreadStarted, TurnFailed};
use crate::{
    argument,
    failing::{complaint, engine_failed, left_by_itself, went_silently},
    kind,
    tongue::{FactSink, LineProtocol},
};

/// A process executes only one turn.
const TURN: u32 = 1;

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
    pub(super) fn new(order: &LaunchContext<'_>) -> Self {
        Self {
            resumes: matches!(order.session, LaunchSession::Resumed(_)),
            has_session: false,
            answer: String::new(),
            trouble: None,
            verdict: None,
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn known(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        let kind = kind::of(line)?;
        match kind.as_ref() {
            "thread.started" => {
                let started: ThreadStarted<'_> = serde_json::from_slice(line).ok()?;
                if !argument::is_session(&started.thread_id) {
                    return None;
                }
                self.has_session = true;
                let value = started.thread_id.into_owned();
                facts.say(FactKind::Session { handle_type: HandleType::SessionId, value });
            }
            "turn.started" => kind::is_whole(line)?,
            "item.started" | "item.updated" | "item.completed" => {
                let ItemLine { item } = serde_json::from_slice(line).ok()?;
                let whole = kind == "item.completed";
                match (item.kind.as_ref(), item.text, item.command) {
                    ("agent_message", Some(text), _) if whole => {
                        self.answer = text.into_owned();
                        facts.say(FactKind::Text(self.answer.clone()));
                    }
                    ("command_execution", _, Some(command)) => {
                        facts.say(FactKind::Progress(match item.exit_code {
                            Some(code) => format!("{command} ended with {code}"),
                            None => format!("runs {command}"),
                        }));
                    }
                    ("error", ..) => {
                        let message = item.message.unwrap_or_default();
                        facts.say(FactKind::Warning(message.into_owned()));
                    }
                    (kind, ..) if whole => facts.say(FactKind::Progress(kind.replace('_', " "))),
                    _ => {}
                }
            }
            "turn.completed" => {
                kind::is_whole(line)?;
                self.verdict = Some(CodexVerdict::Completed);
                facts.say(FactKind::Finishing);
            }
            "turn.failed" => {
                let failed: TurnFailed<'_> = serde_json::from_slice(line).ok()?;
                self.trouble = Some(failed.error.message.into_owned());
                self.verdict = Some(CodexVerdict::Failed);
                facts.say(FactKind::Finishing);
            }
            "error" => {
                let trouble: CodexError<'_> = serde_json::from_slice(line).ok()?;
                self.trouble = Some(trouble.message.into_owned());
                facts.say(FactKind::Warning(self.trouble.clone().unwrap_or_default()));
            }
            _ => return None,
        }
        Some(())
    }

    fn failure(&self, departure: &ProcessExit<'_>) -> RunFailure {
        let said = self.trouble.as_deref();
        match (said, self.resumes && !self.has_session && left_by_itself(departure)) {
            (_, true) => RunFailure::new(
                FailureCode::SessionResumeFailed,
                format!("the thread could not be resumed: {}", complaint(departure.stderr)),
            ),
            (Some(trouble), false) => engine_failed(trouble),
            (None, false) => went_silently(departure),
        }
    }
}

impl LineProtocol for CodexReader {
    const VERSION: &'static str = "codex/1";

    fn line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.known(line, facts).is_none() {
            facts.unknown(line);
        }
    }

    fn end(&mut self, departure: &ProcessExit<'_>, facts: &mut FactSink) {
        let left_well = departure.exit == ExitStatus::Code(0) || departure.cause == ExitCause::Dismissed;
        match self.verdict {
            Some(CodexVerdict::Completed) if left_well => facts.answered(TURN, &self.answer),
            _ if departure.cause == ExitCause::Interrupted => facts.ended(TURN, TurnOutcome::Interrupted),
            _ => facts.ended(TURN, TurnOutcome::Failed { failure: self.failure(departure) }),
        }
    }

    fn status(&self) -> EngineSessionStatus {
        if self.has_session { EngineSessionStatus::Working } else { EngineSessionStatus::Starting }
    }

    fn interrupt(&mut self) -> InterruptMethod {
        // SIGINT makes the program record the interruption in the thread; SIGTERM would leave an unfinished turn.
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn leave(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
