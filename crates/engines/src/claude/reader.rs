//! Interprets the lines of Claude Code, and writes its input.
//!
//! In the print form a turn has succeeded if its last `result` is no error *and* the process exited with 0. In the
//! stream form each `result` ends the turn of one prompt, except those with another origin.

use std::borrow::Cow;

use abide_domain::{event::TurnOutcome, settings::ExecutionMode};
use abide_ports::engine::{
    EngineSessionStatus, FactKind, GateAnswer, InterruptMethod, LaunchContext, ProcessExit, ProcessSignal,
    ShutdownMethod, UnsupportedOperation,
};

use super::{
    ClaudeForm,
    gates::ClaudeGates,
    messages::{self, ClaudeMessageLine, ControlCancel, ControlRequest, PermissionDecision},
    outcome::{self, ClaudeOutcome},
    progress::{call_summary, report_block},
};
use crate::{
    json_head::JsonMembers,
    line_protocol::{FactSink, LineProtocol, LongLine},
    line_type,
};

mod system_line;

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct ClaudeReader {
    form: ClaudeForm,
    mode: ExecutionMode,
    session: Option<String>,
    /// Number of turns that have ended.
    ended_turns: u32,
    /// Whether a prompt was sent whose turn has not ended.
    turn_running: bool,
    /// Whether the program has begun a turn without a prompt.
    unprompted_turn: bool,
    /// Whether background tasks are running, so that further results will follow.
    has_background_tasks: bool,
    gates: ClaudeGates,
    /// The latest result of the print form.
    outcome: Option<ClaudeOutcome>,
}

impl ClaudeReader {
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        Self {
            form: ClaudeForm::of(context),
            mode: context.mode,
            session: None,
            ended_turns: 0,
            turn_running: true,
            unprompted_turn: false,
            has_background_tasks: false,
            gates: ClaudeGates::default(),
            outcome: None,
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        let kind = match line_type::leading(line) {
            Some(kind) => Cow::Borrowed(kind),
            None => {
                let result_line: Option<messages::ClaudeResultLine<'_>> = serde_json::from_slice(line).ok();
                if let Some(result) = result_line.filter(|result_line| result_line.kind == "result") {
                    self.on_result(&result, facts);
                    return Some(());
                }
                line_type::of(line)?
            }
        };
        match kind.as_ref() {
            "system" => self.on_system(&serde_json::from_slice(line).ok()?, facts)?,
            "assistant" => {
                let message_line: ClaudeMessageLine<'_> = serde_json::from_slice(line).ok()?;
                let by_subagent = message_line.parent_tool_use_id.get().is_some();
                if !message_line.is_api_error_message && !self.unprompted_turn {
                    message_line
                        .message
                        .content
                        .0
                        .iter()
                        .for_each(|block| report_block(block, by_subagent, facts));
                }
            }
            // Results of tools may be long, and are only needed while requests are open.
            "user" if self.gates.is_empty() => line_type::check_json(line)?,
            "user" => {
                let message_line: ClaudeMessageLine<'_> = serde_json::from_slice(line).ok()?;
                let ended_calls =
                    message_line.message.content.0.iter().filter_map(|block| block.tool_use_id.get());
                ended_calls.for_each(|id| self.gates.remove_by_tool_use(id));
            }
            "result" => self.on_result(&serde_json::from_slice(line).ok()?, facts),
            "control_request" => self.on_control_request(line, facts)?,
            "control_cancel_request" => {
                let cancel: ControlCancel = serde_json::from_slice(line).ok()?;
                if self.gates.withdraw(&cancel.request_id) {
                    facts.push(FactKind::GateWithdrawn { gate_id: cancel.request_id });
                }
            }
            // Echoes of our own lines, and parts of messages that follow completely.
            "control_response" | "command_lifecycle" | "stream_event" | "keep_alive" | "tool_progress" => {}
            _ => return None,
        }
        Some(())
    }

    fn on_result(&mut self, line: &messages::ClaudeResultLine<'_>, facts: &mut FactSink) {
        let ours =
            line.origin.as_ref().and_then(|origin| origin.kind.get()).is_none_or(|kind| kind == "human");
        if ours && self.mode == ExecutionMode::Auto && !line.permission_denials.is_empty() {
            let denied = line
                .permission_denials
                .iter()
                .map(|denial| call_summary(denial.tool_name.or_empty(), &denial.tool_input));
            let denied: Vec<String> = denied.collect();
            facts.push(FactKind::Warning(format!(
                "refused: a run in auto mode does not ask, and its sandbox does not allow this: {}",
                denied.join("; ")
            )));
        }
        let outcome = outcome::from_result(line);
        match self.form {
            ClaudeForm::Print => {
                self.outcome = Some(outcome);
                if !self.has_background_tasks {
                    facts.push(FactKind::OutputComplete);
                }
            }
            ClaudeForm::Stream { .. } => {
                self.unprompted_turn = false;
                self.gates.clear();
                // A prompt that arrived in the meantime begins its own turn; the first one was sent at the start.
                self.turn_running &= self.ended_turns == 0;
                if ours {
                    self.turn_running = false;
                    self.ended_turns += 1;
                    match outcome {
                        ClaudeOutcome::Answered(text) => facts.end_turn_with_answer(self.ended_turns, &text),
                        ClaudeOutcome::Stopped => facts.end_turn(self.ended_turns, TurnOutcome::Interrupted),
                        ClaudeOutcome::Failed(failure) => {
                            facts.end_turn(self.ended_turns, TurnOutcome::Failed { failure })
                        }
                    }
                }
            }
        }
    }

    fn on_control_request(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        if self.form == ClaudeForm::Print {
            return None;
        }
        let control: ControlRequest = serde_json::from_slice(line).ok()?;
        let id = control.request_id.as_str();
        if control.request.subtype != "can_use_tool" {
            // Unsupported. Without a response the turn would wait forever.
            let error = format!("{} is not supported by this client", control.request.subtype);
            facts.push(FactKind::WriteStdin(messages::error_response(id, &error)));
            return None;
        }
        if self.unprompted_turn || !self.turn_running || self.session.is_none() {
            let message = "No turn is running for which a person could be asked.";
            facts.push(FactKind::WriteStdin(messages::permission_response(
                id,
                &PermissionDecision::Deny { message },
            )));
            return Some(());
        }
        facts.push(self.gates.raise(control));
        Some(())
    }
}

impl LineProtocol for ClaudeReader {
    const VERSION: &'static str = "claude/2";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn on_long_line(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        let Some(members) = JsonMembers::of(line.head) else { return };
        let kind = members.text("type");
        let failure = match (kind.as_deref(), self.form) {
            (Some("control_request"), ClaudeForm::Stream { .. }) => match members.text("request_id") {
                Some(id) => {
                    return facts
                        .push(FactKind::WriteStdin(messages::error_response(&id, &LongLine::refusal())));
                }
                None => line.failure("a request"),
            },
            (Some("result"), _) => line.failure("its answer"),
            // Some versions put the type at the end of the result.
            (None, _) => line.failure("a message"),
            // All other lines are informational or are repeated later.
            (Some(_), _) => return,
        };
        match self.form {
            ClaudeForm::Print => self.outcome = Some(ClaudeOutcome::Failed(failure)),
            ClaudeForm::Stream { .. } if self.turn_running && !self.unprompted_turn => {
                self.gates.clear();
                self.turn_running = false;
                self.ended_turns += 1;
                facts.end_turn(self.ended_turns, TurnOutcome::Failed { failure });
            }
            ClaudeForm::Stream { .. } => {}
        }
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        if self.turn_running {
            let turn = self.ended_turns + 1;
            match outcome::of_print_form(self.outcome.take(), exit) {
                Ok(text) => facts.end_turn_with_answer(turn, &text),
                Err(ending) => facts.end_turn(turn, ending),
            }
        }
    }

    fn status(&self) -> EngineSessionStatus {
        match self.session {
            None => EngineSessionStatus::Starting,
            Some(_) if self.gates.any_open() => EngineSessionStatus::WaitingForAnswer,
            Some(_) if self.turn_running => EngineSessionStatus::Working,
            Some(_) => EngineSessionStatus::BetweenTurns,
        }
    }

    fn encode_prompt(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        match self.form {
            ClaudeForm::Print => Err(UnsupportedOperation::Refused {
                reason: "this process was started for one turn".to_owned(),
            }),
            ClaudeForm::Stream { .. } => {
                self.turn_running = true;
                Ok(messages::prompt_line(prompt))
            }
        }
    }

    fn encode_answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        self.gates.answer(answer)
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        match self.form {
            // SIGINT makes the program record the interruption in the session; SIGTERM would leave an unfinished turn.
            ClaudeForm::Print => InterruptMethod::Signal(ProcessSignal::Interrupt),
            ClaudeForm::Stream { .. } => InterruptMethod::Write(messages::interrupt_request(&format!(
                "interrupt-{}",
                self.ended_turns + 1
            ))),
        }
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        match self.form {
            ClaudeForm::Print => ShutdownMethod::Signal(ProcessSignal::Terminate),
            ClaudeForm::Stream { .. } => ShutdownMethod::CloseInput,
        }
    }
}

#[cfg(test)]
mod tests;
