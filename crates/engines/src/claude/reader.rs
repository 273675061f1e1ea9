//! Interprets the lines of Claude Code, and writes its input.
//!
//! In the print form a turn has succeeded if its last `result` is no error *and* the process exited with 0. In the
//! stream form each `result` ends the turn of one prompt, except those with another origin.

use std::borrow::Cow;

use abide_domain::{
    engine::HandleType,
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
    settings::ExecutionMode,
};
use abide_ports::engine::{
    EngineSessionStatus, ExitCause, FactKind, GateAnswer, InterruptMethod, LaunchContext, ProcessExit,
    ProcessSignal, ShutdownMethod, UnsupportedOperation,
};

use super::{
    ClaudeForm,
    gates::ClaudeGates,
    messages::{
        self, ClaudeBlock, ClaudeMessageLine, ClaudeSystemLine, ControlCancel, ControlRequest,
        PermissionDecision,
    },
    outcome::{self, ClaudeOutcome},
};
use crate::{
    argument,
    failure::exited_normally,
    json_head::JsonMembers,
    line_protocol::{FactSink, LineProtocol, LongLine},
    line_type,
};

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

    fn on_system(&mut self, system: &ClaudeSystemLine<'_>, facts: &mut FactSink) -> Option<()> {
        match system.subtype.or_empty() {
            "init" => {
                let id = system.session_id.get().filter(|id| argument::is_valid_session_id(id))?;
                self.turn_running |= !self.unprompted_turn;
                // The session is announced in each turn; only a new id is reported.
                if self.session.as_deref() != Some(id) {
                    self.session = Some(id.to_owned());
                    let value = id.to_owned();
                    facts.push(FactKind::Session { handle_type: HandleType::SessionId, value });
                }
            }
            "api_retry" => {
                let status = system.error_status.map_or_else(String::new, |status| format!(" {status}"));
                facts.push(FactKind::Warning(format!(
                    "the model's service failed ({}{status}); retry {} of {}",
                    system.error.get().unwrap_or("unknown"),
                    system.attempt.unwrap_or_default(),
                    system.max_retries.unwrap_or_default(),
                )));
            }
            "permission_denied" => {
                let (tool, message) = (system.tool_name.or_empty(), system.message.or_empty());
                facts.push(FactKind::Progress(format!("{tool} was refused: {message}")));
            }
            "informational" => facts.push(FactKind::Warning(system.content.or_empty().to_owned())),
            "task_started" | "task_progress" if !self.unprompted_turn => {
                if let Some(description) = system.description.get() {
                    facts.push(FactKind::Progress(description.to_owned()));
                }
            }
            "task_notification" => {
                self.unprompted_turn |= matches!(self.form, ClaudeForm::Stream { .. }) && !self.turn_running
            }
            "background_tasks_changed" => self.has_background_tasks = !system.tasks.is_empty(),
            "compact_boundary" => facts.push(FactKind::Progress("summarised the conversation".to_owned())),
            "status" | "task_started" | "task_progress" | "task_updated" | "hook_started"
            | "hook_progress" | "hook_response" => {}
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

/// Reports a part of the model's message as progress. Text of subagents is not part of the answer.
fn report_block(block: &ClaudeBlock<'_>, by_subagent: bool, facts: &mut FactSink) {
    match (block.kind.as_ref(), block.text.get()) {
        ("text", Some(text)) if !by_subagent => facts.push(FactKind::Text(text.to_owned())),
        ("thinking", _) => facts.push(FactKind::Progress("thinks".to_owned())),
        ("tool_use" | "server_tool_use", _) => {
            facts.push(FactKind::Progress(call_summary(block.name.or_empty(), &block.input)));
        }
        _ => {}
    }
}

fn call_summary(tool: &str, input: &messages::ClaudeToolInput<'_>) -> String {
    input.summary().map_or_else(|| tool.to_owned(), |summary| format!("{tool}: {summary}"))
}

/// The outcome of a turn in the print form.
fn print_outcome(outcome: Option<ClaudeOutcome>, exit: &ProcessExit<'_>) -> Result<String, TurnOutcome> {
    match outcome {
        Some(ClaudeOutcome::Answered(text)) if exited_normally(exit) => Ok(text),
        Some(ClaudeOutcome::Stopped) => Err(TurnOutcome::Interrupted),
        _ if exit.cause == ExitCause::Interrupted => Err(TurnOutcome::Interrupted),
        Some(ClaudeOutcome::Answered(_)) => {
            let exit_text = match exit.status {
                ExitStatus::Code(code) => format!("exited with code {code}"),
                ExitStatus::Unknown => "is gone".to_owned(),
            };
            let message =
                format!("the engine printed an answer but {exit_text}, so the answer may be incomplete");
            Err(TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, message) })
        }
        Some(ClaudeOutcome::Failed(failure)) => Err(TurnOutcome::Failed { failure }),
        None => Err(TurnOutcome::Failed { failure: outcome::failure_from_exit(exit) }),
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
            match print_outcome(self.outcome.take(), exit) {
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
mod tests {
    use abide_domain::{approval::ApprovalVerdict, effect::LaunchSession, engine::ProfileKind};
    use abide_ports::engine::{Engine, EngineFact, EngineInstallation, ProcessInterpreter};

    use super::*;
    use crate::{claude::ENGINE, test_context::launch_context};

    const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s1"}"#;
    const BASH: &str = r#"{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1"}}"#;
    const DONE: &str = r#"{"is_error":false,"result":"done","type":"result"}"#;

    fn interpreter() -> Box<dyn ProcessInterpreter> {
        let installation = EngineInstallation::for_program("claude");
        ENGINE.interpreter(&LaunchContext {
            kind: ProfileKind::StickyProcess,
            mode: ExecutionMode::Chat,
            ..launch_context(&installation, &LaunchSession::New)
        })
    }

    fn feed_lines(interpreter: &mut dyn ProcessInterpreter, lines: &[&str]) -> Vec<FactKind> {
        let bytes: String = lines.iter().map(|line| format!("{line}\n")).collect();
        interpreter.feed(bytes.as_bytes()).into_iter().map(|EngineFact { kind: what, .. }| what).collect()
    }

    fn written_text(what: Option<&FactKind>) -> String {
        match what {
            Some(FactKind::WriteStdin(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{other:?} is no order to write"),
        }
    }

    #[test]
    fn an_unknown_request_is_refused_and_the_turn_continues() {
        let odd = r#"{"type":"control_request","request_id":"r9","request":{"subtype":"hook_callback"}}"#;
        let facts = feed_lines(&mut *interpreter(), &[INIT, odd]);
        let refused = r#"{"type":"control_response","response":{"subtype":"error","request_id":"r9","error":"hook_callback is not supported by this client"}}"#;
        assert_eq!(written_text(facts.get(1)).trim_end(), refused);
        assert_eq!(facts.get(2), Some(&FactKind::UnknownLine(odd.to_owned())));
    }

    #[test]
    fn a_turn_without_a_prompt_gets_no_permission() {
        let notified = r#"{"type":"system","subtype":"task_notification"}"#;
        let foreign =
            r#"{"is_error":false,"result":"mine","origin":{"kind":"task-notification"},"type":"result"}"#;
        let mut interpreter = interpreter();
        let facts = feed_lines(&mut *interpreter, &[INIT, DONE, notified, INIT, BASH, foreign]);
        assert_eq!(facts.len(), 3, "a session, an end and an answer: {facts:?}");
        assert!(written_text(facts.last()).contains(r#""behavior":"deny""#), "{facts:?}");
        assert_eq!(interpreter.status(), EngineSessionStatus::BetweenTurns);
        let ended = feed_lines(&mut *interpreter, &[INIT, DONE]);
        assert!(matches!(ended.as_slice(), [FactKind::TurnEnded { turn: 2, .. }]), "{ended:?}");
    }

    #[test]
    fn a_reader_that_never_saw_the_answer_can_still_give_it() {
        let (mut first, mut second) = (interpreter(), interpreter());
        let answer = GateAnswer { gate_id: "r1", text: "yes", verdict: Some(ApprovalVerdict::Approved) };
        assert_eq!(feed_lines(&mut *first, &[INIT, BASH]), feed_lines(&mut *second, &[INIT, BASH]));
        assert_eq!(first.status(), EngineSessionStatus::WaitingForAnswer);
        assert_eq!(first.encode_answer(&answer), second.encode_answer(&answer));
        assert_eq!(first.status(), EngineSessionStatus::Working);
        let result = r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1"}]}}"#;
        assert_eq!(feed_lines(&mut *first, &[result]), []);
        assert!(first.encode_answer(&answer).is_err(), "the call is over");
    }

    #[test]
    fn text_of_a_subagent_is_not_the_answer() {
        let sub = r#"{"type":"assistant","parent_tool_use_id":"t1","message":{"content":[{"type":"text","text":"sub"}]}}"#;
        assert_eq!(feed_lines(&mut *interpreter(), &[INIT, sub]).len(), 1);
    }

    /// A line of more than 16 MiB with this beginning.
    fn long(head: &str) -> String {
        format!("{head}{}", "x".repeat(17 << 20))
    }

    /// Issue 14: a turn must not wait forever because a line is too long.
    #[test]
    fn a_request_that_is_too_long_is_refused_under_its_id() {
        let asked = long(r#"{"type":"control_request","request_id":"r7","request":{"input":""#);
        let facts = feed_lines(&mut *interpreter(), &[INIT, &asked]);
        let [_, FactKind::Warning(warning), answer] = facts.as_slice() else { panic!("{facts:?}") };
        assert!(warning.contains("too long"), "{warning}");
        let answer = written_text(Some(answer));
        assert!(answer.contains(r#""subtype":"error","request_id":"r7""#) && answer.contains("16 MiB"));
    }

    #[test]
    fn a_turn_fails_that_cannot_be_understood_without_a_line_that_is_too_long() {
        let result = r#"{"type":"result","is_error":false,"result":""#;
        let nameless = r#"{"type":"control_request","request":{"input":""#;
        for head in [result, nameless, r#"{"is_error":false,"result":""#] {
            let mut interpreter = interpreter();
            let facts = feed_lines(&mut *interpreter, &[INIT, &long(head), DONE]);
            let ended: Vec<_> =
                facts.iter().filter(|what| matches!(what, FactKind::TurnEnded { .. })).collect();
            let Some(FactKind::TurnEnded { turn: 1, outcome: TurnOutcome::Failed { failure } }) =
                ended.first()
            else {
                panic!("{head}: {ended:?}")
            };
            assert!(failure.message.contains("claude") && failure.message.contains("16 MiB"), "{failure:?}");
        }
        for harmless in [r#"{"type":"user","message":{"content":""#, r#"{"type":"stream_event","x":""#, "x"] {
            let facts = feed_lines(&mut *interpreter(), &[INIT, &long(harmless), DONE]);
            let ended = facts.last();
            let is_answer = matches!(
                ended,
                Some(FactKind::TurnEnded { turn: 1, outcome: TurnOutcome::Completed { .. } })
            );
            assert!(is_answer, "{harmless}: {ended:?}");
        }
    }

    #[test]
    fn an_odd_field_does_not_cost_the_line() {
        let odd = r#"{"type":"assistant","parent_tool_use_id":null,"message":{"content":[{"type":"tool_use","name":"mcp","input":{"query":{"a":[1]},"path":7,"url":"u"}}]}}"#;
        assert_eq!(feed_lines(&mut *interpreter(), &[odd]), [FactKind::Progress("mcp: u".to_owned())]);
    }
}
