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
    failing::{complaint, engine_failed, left_by_itself, went_silently},
    kind,
    tongue::{FactSink, LineProtocol},
};

/// A process executes only one turn.
const TURN: u32 = 1;

/// Maximum number of characters of a call's arguments in progress texts.
const LONGEST: usize = 300;

/// The tool for questions. Its question is reported with the outcome.
const ASKS: &str = "ask_human";

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
    pub(super) fn new(order: &LaunchContext<'_>) -> Self {
        Self {
            resumes: matches!(order.session, LaunchSession::Resumed(_)),
            has_session: false,
            calls: vec![],
            said: String::new(),
            outcome: None,
        }
    }

    /// Processes a line; `None` if it is unknown.
    fn known(&mut self, line: &[u8], facts: &mut FactSink) -> Option<()> {
        match kind::of(line)?.as_ref() {
            "session" => {
                let session: journal::AgentSessionLine<'_> = serde_json::from_slice(line).ok()?;
                let value = Some(session.session_id.into_owned()).filter(|id| argument::is_session(id))?;
                self.has_session = true;
                facts.say(FactKind::Session { handle_type: HandleType::SessionId, value });
            }
            "RUN_START" | "RUN_END" | "USER_MESSAGE" => kind::is_whole(line)?,
            "THOUGHT" => self.thought(payload(line)?, facts),
            "ACTION_REQUEST" => self.request(payload(line)?, facts),
            "ACTION_RESULT" => self.result(&payload(line)?, facts),
            "SYSTEM_MESSAGE" => {
                let AgentNoticeLine { level, content } = payload(line)?;
                let said = if level == "WARN" { FactKind::Warning } else { FactKind::Progress };
                facts.say(said(content.into_owned()));
            }
            "outcome" => {
                self.outcome = Some(outcome(serde_json::from_slice(line).ok()?)?);
                facts.say(FactKind::Finishing);
            }
            _ => return None,
        }
        Some(())
    }

    fn thought(&mut self, thought: AgentThoughtLine<'_>, facts: &mut FactSink) {
        let text = thought.text.unwrap_or_default().into_owned();
        if text.trim().is_empty() {
            return self.said.clear();
        }
        self.said.clone_from(&text);
        facts.say(if thought.calls == 0 { FactKind::Text(text) } else { FactKind::Progress(text) });
    }

    fn request(&mut self, request: AgentRequestLine<'_>, facts: &mut FactSink) {
        let (action, tool) = (request.action_id.into_owned(), request.tool_name.into_owned());
        if tool != ASKS {
            facts.say(FactKind::Progress(format!("calls {tool} {}", short(request.tool_args.get()))));
        }
        self.calls.push((action, tool));
    }

    fn result(&mut self, result: &journal::AgentResultLine<'_>, facts: &mut FactSink) {
        let at = self.calls.iter().position(|(action, _)| *action == result.action_id);
        let tool = match at.map(|at| self.calls.swap_remove(at).1) {
            Some(tool) if tool == ASKS => return,
            Some(tool) => tool,
            // An earlier process requested the call. The only such call that succeeds is the question, which is now
            // answered.
            None if result.status == "success" => return,
            None => "an earlier call".to_owned(),
        };
        match (result.status.as_ref(), result.exit_code) {
            ("unknown", _) => facts.say(FactKind::Warning(format!("what came of {tool} is unknown"))),
            ("success", None | Some(0)) => facts.say(FactKind::Progress(format!("{tool} is done"))),
            (_, Some(code)) => facts.say(FactKind::Progress(format!("{tool} ended with {code}"))),
            (status, None) => facts.say(FactKind::Progress(format!("{tool}: {}", status.replace('_', " ")))),
        }
    }

    /// The failure of a process that reported no outcome.
    fn failure(&self, departure: &ProcessExit<'_>) -> RunFailure {
        let said = complaint(departure.stderr);
        let trouble = said.lines().rev().find_map(|line| serde_json::from_str::<AgentErrorLine>(line).ok());
        let is_lost = self.resumes && !self.has_session && left_by_itself(departure);
        match trouble {
            // The session may exist; the definition of the agent is invalid.
            Some(AgentErrorLine { code, detail }) if code == "BAD_DEFINITION" => {
                RunFailure::new(FailureCode::EngineFailed, detail)
            }
            Some(AgentErrorLine { code, detail }) if code == "KEY_MISSING" => {
                RunFailure::new(FailureCode::EngineAuthRequired, detail)
            }
            Some(AgentErrorLine { detail, .. }) if is_lost => lost(&detail),
            None if is_lost => lost(&said),
            Some(AgentErrorLine { detail, .. }) => engine_failed(&detail),
            None => went_silently(departure),
        }
    }
}

fn lost(reason: &str) -> RunFailure {
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

fn outcome(end: AgentOutcomeLine<'_>) -> Option<AbideAgentOutcome> {
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

fn short(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

impl LineProtocol for AbideAgentReader {
    const VERSION: &'static str = "native/1";

    fn line(&mut self, line: &[u8], facts: &mut FactSink) {
        if self.known(line, facts).is_none() {
            facts.unknown(line);
        }
    }

    fn end(&mut self, departure: &ProcessExit<'_>, facts: &mut FactSink) {
        match self.outcome.take() {
            Some(AbideAgentOutcome::Completed(answer)) => facts.answered(TURN, &answer),
            Some(AbideAgentOutcome::Asked(question)) if self.has_session => {
                let text = std::mem::take(&mut self.said);
                facts.ended(TURN, TurnOutcome::Asked { text, question });
            }
            Some(AbideAgentOutcome::Failed(failure)) => facts.ended(TURN, TurnOutcome::Failed { failure }),
            Some(AbideAgentOutcome::Interrupted) => facts.ended(TURN, TurnOutcome::Interrupted),
            None if departure.cause == ExitCause::Interrupted => facts.ended(TURN, TurnOutcome::Interrupted),
            Some(AbideAgentOutcome::Asked(_)) | None => {
                facts.ended(TURN, TurnOutcome::Failed { failure: self.failure(departure) });
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
