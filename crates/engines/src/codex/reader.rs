//! Interprets the lines of `codex exec --json`.
//!
//! A turn has succeeded if `turn.completed` was printed *and* the process exited with 0. Either alone is not enough. A
//! top-level `error` does not end the turn, because the program retries.

use abide_domain::failure::RunFailure;
use abide_ports::engine::{FactKind, ProcessExit, ProcessSignal};

use super::messages::{CodexError, ItemLine, ThreadStarted, TurnFailed};
use crate::{
    failure::{engine_failed, resume_failed, stderr_tail},
    line_protocol::FactSink,
    line_type,
    one_shot::{OneShotProtocol, OneShotTurn},
};

/// The program needs no state beyond that of the turn.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct CodexReader;

impl OneShotProtocol for CodexReader {
    const VERSION: &'static str = "codex/2";

    // SIGINT makes the program record the interruption in the thread; SIGTERM would leave an unfinished turn.
    const INTERRUPT_SIGNAL: ProcessSignal = ProcessSignal::Interrupt;

    fn on_line(&mut self, line: &[u8], turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()> {
        let kind = line_type::of(line)?;
        match kind.as_ref() {
            "thread.started" => {
                let started: ThreadStarted<'_> = serde_json::from_slice(line).ok()?;
                turn.on_session_id(&started.thread_id, facts)?;
            }
            "turn.started" => line_type::check_json(line)?,
            "item.started" | "item.updated" | "item.completed" => {
                let ItemLine { item } = serde_json::from_slice(line).ok()?;
                let is_completed = kind == "item.completed";
                match (item.kind.as_ref(), item.text, item.command) {
                    ("agent_message", Some(text), _) if is_completed => {
                        turn.answer = text.into_owned();
                        facts.push(FactKind::Text(turn.answer.clone()));
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
                turn.completed = true;
                facts.push(FactKind::OutputComplete);
            }
            "turn.failed" => {
                let failed: TurnFailed<'_> = serde_json::from_slice(line).ok()?;
                turn.failure = Some(engine_failed(&failed.error.message));
                turn.completed = false;
                facts.push(FactKind::OutputComplete);
            }
            "error" => {
                let CodexError { message } = serde_json::from_slice(line).ok()?;
                turn.failure = Some(engine_failed(&message));
                facts.push(FactKind::Warning(message.into_owned()));
            }
            _ => return None,
        }
        Some(())
    }

    fn failure(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> RunFailure {
        if turn.is_session_lost(exit) {
            return resume_failed("the thread", &stderr_tail(exit.stderr));
        }
        turn.failure_or_exit(exit)
    }
}
