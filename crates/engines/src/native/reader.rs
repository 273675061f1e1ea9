//! Interprets the lines of `abide agent run --json`.
//!
//! The outcome is printed after all of its events are journalled. It therefore counts whatever the exit status is: the
//! agent would not repeat the work, and its journal must agree with the daemon's. Without an outcome the turn has
//! failed.

use abide_domain::{
    effect::LaunchSession,
    engine::HandleType,
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    interaction::{DecisionPolicy, InteractionKind, InteractionOption, Question},
};
use abide_ports::engine::{
    EngineSessionStatus, ExitCause, FactKind, InterruptMethod, LaunchContext, ProcessExit, ProcessSignal,
    ShutdownMethod,
};

use super::journal::{
    self, AgentErrorLine, AgentEventLine, AgentNoticeLine, AgentOutcomeLine, AgentQuestionLine,
    AgentRequestLine, AgentThoughtLine,
};
use crate::{
    argument,
    failing::{engine_failed, exit_without_result, exited_voluntarily, stderr_tail},
    kind,
    tongue::{FactSink, LineProtocol},
};

/// A process executes only one turn.
const ONLY_TURN: u32 = 1;

/// Maximum number of characters of a call's arguments in progress texts.
const MAX_ARGUMENT_CHARS: usize = 300;

/// The tool for questions. Its question is reported with the outcome.
const QUESTION_TOOL: &str = "ask_human";

/// The state of the conversation with one process.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct AbideAgentReader {
    resumes: bool,
    has_session: bool,
    /// The running calls, each with its tool.
    calls: Vec<(String, String)>,
    /// The last text beside calls; before a question, its introduction.
    said: String,
    outcome: Option<AbideAgentOutcome>,
}

/// The outcome of the turn that the agent reported.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum AbideAgentOutcome {
    Completed(String),
    Asked(Question),
    Failed(RunFailure),
    Interrupted,
}

impl AbideAgentReader {
    pub(super) fn new(context: &LaunchContext<'_>) -> Self {
        Self {
            resumes: matches!(context.session, LaunchSession::Resumed(_)),
            has_session: false,
            calls: vec![],
            said: String::new(),
            outcome: None,
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn try_line(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        match kind::of(line)?.as_ref() {
            "session" => {
                let session: journal::AgentSessionLine<'_> = serde_json::from_slice(line).ok()?;
                let value =
                    Some(session.session_id.into_owned()).filter(|id| argument::is_valid_session_id(id))?;
                self.has_session = true;
                facts.push(FactKind::Session { handle_type: HandleType::SessionId, value });
            }
            "RUN_START" | "RUN_END" | "USER_MESSAGE" => kind::check_json(line)?,
            "THOUGHT" => self.on_thought(payload(line)?, facts),
            "ACTION_REQUEST" => self.on_tool_request(payload(line)?, facts),
            "ACTION_RESULT" => self.on_tool_result(&payload(line)?, facts),
            "SYSTEM_MESSAGE" => {
                let AgentNoticeLine { level, content } = payload(line)?;
                let fact = if level == "WARN" { FactKind::Warning } else { FactKind::Progress };
                facts.push(fact(content.into_owned()));
            }
            "outcome" => {
                self.outcome = Some(parse_outcome(serde_json::from_slice(line).ok()?)?);
                facts.push(FactKind::OutputComplete);
            }
            _ => return None,
        }
        Some(())
    }

    fn on_thought(&mut self, thought: AgentThoughtLine<'_>, facts: &mut FactSink) {
        let text = thought.text.unwrap_or_default().into_owned();
        if text.trim().is_empty() {
            return self.said.clear();
        }
        self.said.clone_from(&text);
        facts.push(if thought.calls == 0 { FactKind::Text(text) } else { FactKind::Progress(text) });
    }

    fn on_tool_request(&mut self, request: AgentRequestLine<'_>, facts: &mut FactSink) {
        let (action, tool) = (request.action_id.into_owned(), request.tool_name.into_owned());
        if tool != QUESTION_TOOL {
            facts.push(FactKind::Progress(format!(
                "calls {tool} {}",
                truncate_arguments(request.tool_args.get())
            )));
        }
        self.calls.push((action, tool));
    }

    fn on_tool_result(&mut self, result: &journal::AgentResultLine<'_>, facts: &mut FactSink) {
        let at = self.calls.iter().position(|(action, _)| *action == result.action_id);
        let tool = match at.map(|at| self.calls.swap_remove(at).1) {
            Some(tool) if tool == QUESTION_TOOL => return,
            Some(tool) => tool,
            // An earlier process requested the call. The only such call that succeeds is the question, which is now
            // answered.
            None if result.status == "success" => return,
            None => "an earlier call".to_owned(),
        };
        match (result.status.as_ref(), result.exit_code) {
            ("unknown", _) => facts.push(FactKind::Warning(format!("the outcome of {tool} is unknown"))),
            ("success", None | Some(0)) => facts.push(FactKind::Progress(format!("{tool} is done"))),
            (_, Some(code)) => facts.push(FactKind::Progress(format!("{tool} ended with {code}"))),
            (status, None) => facts.push(FactKind::Progress(format!("{tool}: {}", status.replace('_', " ")))),
        }
    }

    /// The failure of a process that reported no outcome.
    fn failure(&self, exit: &ProcessExit<'_>) -> RunFailure {
        let stderr_tail = stderr_tail(exit.stderr);
        let error_line =
            stderr_tail.lines().rev().find_map(|line| serde_json::from_str::<AgentErrorLine>(line).ok());
        let is_lost = self.resumes && !self.has_session && exited_voluntarily(exit);
        match error_line {
            // The session may exist; the definition of the agent is invalid.
            Some(AgentErrorLine { code, detail }) if code == "BAD_DEFINITION" => {
                RunFailure::new(FailureCode::EngineFailed, detail)
            }
            Some(AgentErrorLine { code, detail }) if code == "KEY_MISSING" => {
                RunFailure::new(FailureCode::EngineAuthRequired, detail)
            }
            Some(AgentErrorLine { detail, .. }) if is_lost => session_lost_failure(&detail),
            None if is_lost => session_lost_failure(&stderr_tail),
            Some(AgentErrorLine { detail, .. }) => engine_failed(&detail),
            None => exit_without_result(exit),
        }
    }
}

fn session_lost_failure(reason: &str) -> RunFailure {
    RunFailure::new(
        FailureCode::SessionResumeFailed,
        format!("the agent's session could not be resumed: {reason}"),
    )
}

/// The payload of a journal event.
fn payload<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Option<T> {
    let AgentEventLine { payload } = serde_json::from_slice(line).ok()?;
    Some(payload)
}

fn parse_outcome(end: AgentOutcomeLine<'_>) -> Option<AbideAgentOutcome> {
    let reason = end.reason.unwrap_or_default();
    Some(match end.status.as_ref() {
        "COMPLETED" => AbideAgentOutcome::Completed(end.answer?.into_owned()),
        "WAITING" => AbideAgentOutcome::Asked(question(end.question?)),
        "FAILED" => AbideAgentOutcome::Failed(engine_failed(&reason)),
        "BUDGET_EXHAUSTED" => AbideAgentOutcome::Failed(RunFailure::new(
            FailureCode::EngineFailed,
            format!("the agent's budget is exhausted before it was done: {reason}"),
        )),
        "INTERRUPTED" => AbideAgentOutcome::Interrupted,
        _ => return None,
    })
}

fn question(asked: AgentQuestionLine<'_>) -> Question {
    let choice = |label| InteractionOption { label, safe: false };
    Question {
        kind: if asked.options.is_empty() { InteractionKind::OpenText } else { InteractionKind::ChooseOne },
        prompt: asked.question.into_owned(),
        options: asked.options.into_iter().map(choice).collect(),
        ui_hints: asked.sensitive.then(|| r#"{"sensitive":true}"#.to_owned()),
        // An engine cannot guess a secret, so the run must not continue without an answer.
        default_decision_policy: if asked.sensitive {
            DecisionPolicy::Abort
        } else {
            DecisionPolicy::EngineJudgement
        },
        context: None,
        hidden: None,
    }
}

fn truncate_arguments(text: &str) -> String {
    match text.char_indices().nth(MAX_ARGUMENT_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

impl LineProtocol for AbideAgentReader {
    const VERSION: &'static str = "native/1";

    fn on_line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.try_line(line, facts).is_none() {
            facts.push_unknown_line(line);
        }
    }

    fn end(&mut self, exit: &ProcessExit<'_>, facts: &mut FactSink) {
        match self.outcome.take() {
            Some(AbideAgentOutcome::Completed(answer)) => facts.end_turn_with_answer(ONLY_TURN, &answer),
            Some(AbideAgentOutcome::Asked(question)) if self.has_session => {
                let text = std::mem::take(&mut self.said);
                facts.end_turn(ONLY_TURN, TurnOutcome::Asked { text, question });
            }
            Some(AbideAgentOutcome::Failed(failure)) => {
                facts.end_turn(ONLY_TURN, TurnOutcome::Failed { failure })
            }
            Some(AbideAgentOutcome::Interrupted) => facts.end_turn(ONLY_TURN, TurnOutcome::Interrupted),
            None if exit.cause == ExitCause::Interrupted => {
                facts.end_turn(ONLY_TURN, TurnOutcome::Interrupted)
            }
            Some(AbideAgentOutcome::Asked(_)) | None => {
                facts.end_turn(ONLY_TURN, TurnOutcome::Failed { failure: self.failure(exit) });
            }
        }
    }

    fn status(&self) -> EngineSessionStatus {
        if self.has_session { EngineSessionStatus::Working } else { EngineSessionStatus::Starting }
    }

    fn interrupt(&mut self) -> InterruptMethod {
        // SIGINT makes the agent end the running tool, journal that, and keep its sessions for the next turn.
        InterruptMethod::Signal(ProcessSignal::Interrupt)
    }

    fn leave(&mut self) -> ShutdownMethod {
        ShutdownMethod::Signal(ProcessSignal::Terminate)
    }
}
