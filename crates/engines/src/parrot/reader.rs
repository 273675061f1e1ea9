//! Interprets the lines of a parrot, and writes its input.
//!
//! A process of the resumable form has succeeded if it printed `result` *and* exited with 0. In the sticky form a line
//! ends the turn. Turns are counted by the lines that end them, never by the input.

use std::collections::BTreeSet;

use abide_domain::{
    approval::ApprovalVerdict,
    context::{
        ApprovalContext, ApprovalSubject, ChangeKind, CommandLine, FieldValue, FileChange, RequestField,
    },
    effect::LaunchSession,
    engine::HandleType,
    event::TurnOutcome,
    failure::RunFailure,
    interaction::{DecisionPolicy, GatePurpose, InteractionKind, InteractionOption, Question},
};
use abide_ports::engine::{
    EngineAbility, EngineSessionStatus, ExitCause, FactKind, GateAnswer, InterruptMethod, LaunchContext,
    ProcessExit, ProcessSignal, ShutdownMethod, UnsupportedOperation,
};

use super::{
    ParrotForm,
    messages::{ParrotCommand, ParrotFailureLine, ParrotGateLine, ParrotIdLine, ParrotTextLine},
};
use crate::{
    argument,
    failure::{engine_failed, exit_without_result, exited_normally, resume_failed, stderr_tail},
    json_head::JsonMembers,
    line_protocol::{FactSink, LineProtocol, LongLine},
    line_type, request_fields,
};

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct ParrotReader {
    form: ParrotForm,
    resumes: bool,
    has_session: bool,
    /// Numbers of turns that have begun and ended.
    begun_turns: u32,
    ended_turns: u32,
    /// The outcome of the last turn; in the resumable form, only the printed one.
    last_outcome: Option<ParrotOutcome>,
    gates: BTreeSet<String>,
}

/// The outcome of a turn.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum ParrotOutcome {
    Result(String),
    Failed(String),
    Interrupted,
}

impl ParrotReader {
    pub(super) fn new(form: ParrotForm, context: &LaunchContext<'_>) -> Self {
        Self {
            form,
            resumes: matches!(context.session, LaunchSession::Resumed(_)),
            has_session: false,
            begun_turns: 0,
            ended_turns: 0,
            last_outcome: None,
            gates: BTreeSet::new(),
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        let kind = line_type::of(line)?;
        let fact_kind: Option<fn(String) -> FactKind> = match kind.as_ref() {
            "text" | "output" => Some(FactKind::Text),
            "progress" => Some(FactKind::Progress),
            _ => None,
        };
        let text = match fact_kind {
            Some(_) => Some(parse_text(line)?),
            None => line_type::check_json(line).map(|()| None)?,
        };
        if !matches!(kind.as_ref(), "gate" | "withdrawn") {
            // A parrot prints nothing while a gate is open, so this line shows that the gates are closed.
            self.gates.clear();
        }
        if let (Some(fact_kind), Some(words)) = (fact_kind, text) {
            facts.push(fact_kind(words));
            return Some(());
        }
        match kind.as_ref() {
            "session" => {
                let ParrotIdLine { id } = serde_json::from_slice(line)
                    .ok()
                    .filter(|named: &ParrotIdLine<'_>| argument::is_valid_session_id(&named.id))?;
                self.has_session = true;
                facts.push(FactKind::Session { handle_type: HandleType::SessionId, value: id.into_owned() });
            }
            "turn" => self.begun_turns += 1,
            "gate" => {
                let gate: ParrotGateLine<'_> = serde_json::from_slice(line).ok()?;
                self.gates.insert(gate.id.clone().into_owned());
                let question = approval(&gate);
                facts.push(FactKind::Gate {
                    gate_id: gate.id.into_owned(),
                    purpose: GatePurpose::Approval,
                    question,
                });
            }
            "withdrawn" => {
                let ParrotIdLine { id } = serde_json::from_slice(line).ok()?;
                self.gates.remove(id.as_ref());
                facts.push(FactKind::GateWithdrawn { gate_id: id.into_owned() });
            }
            "result" => self.on_turn_end(ParrotOutcome::Result(parse_text(line)?), facts),
            "failed" => {
                let failed: ParrotFailureLine<'_> = serde_json::from_slice(line).ok()?;
                self.on_turn_end(ParrotOutcome::Failed(failed.message.into_owned()), facts);
            }
            "interrupted" => self.on_turn_end(ParrotOutcome::Interrupted, facts),
            _ => return None,
        }
        Some(())
    }

    fn on_turn_end(&mut self, outcome: ParrotOutcome, facts: &mut FactSink) {
        self.ended_turns += 1;
        match self.form {
            ParrotForm::Resumable => facts.push(FactKind::OutputComplete),
            ParrotForm::Sticky => report_outcome(self.ended_turns, &outcome, facts),
        }
        self.last_outcome = Some(outcome);
    }

    /// The failure of a process that exited with an error.
    fn failure(&self, exit: &ProcessExit<'_>) -> RunFailure {
        if self.resumes && !self.has_session {
            return resume_failed("the session", &stderr_tail(exit.stderr));
        }
        exit_without_result(exit)
    }
}

/// Reports the outcome of a turn.
fn report_outcome(turn: u32, outcome: &ParrotOutcome, facts: &mut FactSink) {
    match outcome {
        ParrotOutcome::Result(text) => facts.end_turn_with_answer(turn, text),
        ParrotOutcome::Failed(message) => {
            facts.end_turn(turn, TurnOutcome::Failed { failure: engine_failed(message) })
        }
        ParrotOutcome::Interrupted => facts.end_turn(turn, TurnOutcome::Interrupted),
    }
}

fn parse_text(line: &[u8]) -> Option<String> {
    let words: ParrotTextLine<'_> = serde_json::from_slice(line).ok()?;
    Some(words.text.into_owned())
}

fn approval(gate: &ParrotGateLine<'_>) -> Question {
    let choice = |label: &str, safe| InteractionOption { label: label.to_owned(), safe };
    let options = vec![choice("Approve", false), choice("Decline", true)];
    if let Some(subject) = gate_subject(gate) {
        return ApprovalContext::new(subject).into_question(options, None);
    }
    Question {
        kind: InteractionKind::Confirm,
        prompt: gate.prompt.clone().into_owned(),
        options,
        ui_hints: None,
        default_decision_policy: DecisionPolicy::SafeDefault,
        context: None,
        hidden: None,
    }
}

/// The subject of a gate, if it has a kind and a command.
fn gate_subject(gate: &ParrotGateLine<'_>) -> Option<ApprovalSubject> {
    let (kind, command) = (gate.kind.as_deref()?, gate.command.as_deref()?);
    let (first, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let text = |name: &str, text: &str| RequestField {
        name: name.to_owned(),
        value: FieldValue::Text(text.to_owned()),
    };
    Some(match kind {
        "command" => ApprovalSubject::Command {
            line: CommandLine::Shell(command.to_owned()),
            cwd: gate.cwd.as_deref().map(str::to_owned),
        },
        "file_change" => ApprovalSubject::FileChange {
            files: vec![FileChange {
                path: first.to_owned(),
                change: ChangeKind::Write,
                diff: request_fields::diff("", rest),
                truncated: false,
            }],
        },
        "tool" => ApprovalSubject::Tool { name: first.to_owned(), input: vec![text("input", rest)] },
        kind => ApprovalSubject::Tool { name: kind.to_owned(), input: vec![text("command", command)] },
    })
}

impl LineProtocol for ParrotReader {
    const VERSION: &'static str = "parrot/2";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn on_long_line(&mut self, line: &LongLine<'_>, facts: &mut FactSink) {
        let Some(members) = JsonMembers::of(line.head) else { return };
        match (members.text("type").as_deref(), members.text("id")) {
            (Some("text" | "output" | "progress" | "session" | "turn" | "withdrawn"), _) => {}
            (Some("gate"), Some(id)) => {
                let text = &LongLine::refusal();
                facts.push(FactKind::WriteStdin(
                    ParrotCommand::Answer { gate: &id, text, approved: false }.line(),
                ));
            }
            (Some("gate"), None) => {
                self.on_turn_end(ParrotOutcome::Failed(line.failure("a request").message), facts)
            }
            // The line may have been the last one of the turn.
            (Some(_) | None, _) => {
                self.on_turn_end(ParrotOutcome::Failed(line.failure("a message").message), facts)
            }
        }
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        let failed = |reader: &Self| TurnOutcome::Failed { failure: reader.failure(exit) };
        match (self.form, &self.last_outcome) {
            (ParrotForm::Resumable, Some(outcome @ ParrotOutcome::Result(_))) if exited_normally(exit) => {
                report_outcome(1, outcome, facts)
            }
            (
                ParrotForm::Resumable,
                Some(outcome @ (ParrotOutcome::Failed(_) | ParrotOutcome::Interrupted)),
            ) => report_outcome(1, outcome, facts),
            (ParrotForm::Resumable, _) if exit.cause == ExitCause::Interrupted => {
                facts.end_turn(1, TurnOutcome::Interrupted)
            }
            (ParrotForm::Resumable, _) => facts.end_turn(1, failed(self)),
            // Between turns there is no turn to end. The keeper reports the exit of the process.
            (ParrotForm::Sticky, _) if self.ended_turns > 0 && self.begun_turns <= self.ended_turns => {}
            (ParrotForm::Sticky, _) if exit.cause == ExitCause::Interrupted => {
                facts.end_turn(self.ended_turns + 1, TurnOutcome::Interrupted);
            }
            (ParrotForm::Sticky, _) => facts.end_turn(self.ended_turns + 1, failed(self)),
        }
    }

    fn status(&self) -> EngineSessionStatus {
        if !self.gates.is_empty() {
            EngineSessionStatus::WaitingForAnswer
        } else if self.ended_turns > 0 && self.ended_turns >= self.begun_turns {
            EngineSessionStatus::BetweenTurns
        } else if self.has_session || self.begun_turns > 0 {
            EngineSessionStatus::Working
        } else {
            EngineSessionStatus::Starting
        }
    }

    fn encode_prompt(&mut self, prompt: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        match self.form {
            ParrotForm::Resumable => {
                Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Hold })
            }
            ParrotForm::Sticky => Ok(ParrotCommand::Prompt { text: prompt }.line()),
        }
    }

    fn encode_answer(&mut self, answer: &GateAnswer<'_>) -> Result<Vec<u8>, UnsupportedOperation> {
        let GateAnswer { gate_id: gate, text, verdict } = *answer;
        if !self.gates.contains(gate) {
            return Err(UnsupportedOperation::Refused { reason: format!("there is no open request {gate}") });
        }
        let approved = verdict == Some(ApprovalVerdict::Approved);
        Ok(ParrotCommand::Answer { gate, text, approved }.line())
    }

    fn encode_steer(&mut self, text: &str) -> Result<Vec<u8>, UnsupportedOperation> {
        Ok(ParrotCommand::Steer { text }.line())
    }

    fn interrupt_method(&mut self) -> InterruptMethod {
        InterruptMethod::Write(ParrotCommand::Interrupt.line())
    }

    fn shutdown_method(&mut self) -> ShutdownMethod {
        match self.form {
            ParrotForm::Resumable => ShutdownMethod::Signal(ProcessSignal::Terminate),
            ParrotForm::Sticky => ShutdownMethod::CloseInput,
        }
    }
}
