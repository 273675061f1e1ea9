//! Interprets the lines of `abide agent run --json`.
//!
//! The outcome is printed after all of its events are journalled. It therefore counts whatever the exit status is: the
//! agent would not repeat the work, and its journal must agree with the daemon's. Without an outcome the turn has
//! failed.

use abide_domain::{
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    interaction::{DecisionPolicy, InteractionKind, InteractionOption, Question},
};
use abide_ports::engine::{FactKind, ProcessExit, ProcessSignal};

use super::messages::{
    AgentErrorLine, AgentEventLine, AgentNoticeLine, AgentOutcomeLine, AgentQuestionLine, AgentRequestLine,
    AgentResultLine, AgentSessionLine, AgentThoughtLine,
};
use crate::{
    failure::{engine_failed, exit_without_result, resume_failed, stderr_tail},
    line_protocol::FactSink,
    line_type,
    one_shot::{OneShotProtocol, OneShotTurn},
};

/// Maximum number of characters of a call's arguments in progress texts.
const MAX_ARGUMENT_CHARS: usize = 300;

/// The tool for questions. Its question is reported with the outcome.
const QUESTION_TOOL: &str = "ask_human";

/// The name of the session in messages.
const SESSION: &str = "the agent's session";

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct AbideAgentReader {
    /// The running calls, each with its tool.
    calls: Vec<(String, String)>,
    /// The last text beside calls; before a question, its introduction.
    last_text: String,
    /// The reported outcome, if it is not success.
    outcome: Option<TurnOutcome>,
}

impl AbideAgentReader {
    fn on_thought(&mut self, thought: AgentThoughtLine<'_>, facts: &mut FactSink) {
        let text = thought.text.unwrap_or_default().into_owned();
        if text.trim().is_empty() {
            return self.last_text.clear();
        }
        self.last_text.clone_from(&text);
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

    fn on_tool_result(&mut self, result: &AgentResultLine<'_>, facts: &mut FactSink) {
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

    /// Stores the outcome; `None` if it is unknown.
    fn on_outcome(&mut self, line: AgentOutcomeLine<'_>, turn: &mut OneShotTurn) -> Option<()> {
        let reason = line.reason.unwrap_or_default();
        let failed = |failure| TurnOutcome::Failed { failure };
        let outcome = match line.status.as_ref() {
            "COMPLETED" => {
                turn.answer = line.answer?.into_owned();
                None
            }
            "WAITING" => {
                let question = question(line.question?);
                Some(TurnOutcome::Asked { text: self.last_text.clone(), question })
            }
            "FAILED" => Some(failed(engine_failed(&reason))),
            "BUDGET_EXHAUSTED" => Some(failed(RunFailure::new(
                FailureCode::EngineFailed,
                format!("the agent's budget is exhausted before it was done: {reason}"),
            ))),
            "INTERRUPTED" => Some(TurnOutcome::Interrupted),
            _ => return None,
        };
        turn.completed = outcome.is_none();
        self.outcome = outcome;
        Some(())
    }
}

impl OneShotProtocol for AbideAgentReader {
    const VERSION: &'static str = "native/2";

    // SIGINT makes the agent end the running tool, journal that, and keep its sessions for the next turn.
    const INTERRUPT_SIGNAL: ProcessSignal = ProcessSignal::Interrupt;

    fn on_line(&mut self, line: &[u8], turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()> {
        match line_type::of(line)?.as_ref() {
            "session" => {
                let AgentSessionLine { session_id } = serde_json::from_slice(line).ok()?;
                turn.on_session_id(&session_id, facts)?;
            }
            "RUN_START" | "RUN_END" | "USER_MESSAGE" => line_type::check_json(line)?,
            "THOUGHT" => self.on_thought(payload(line)?, facts),
            "ACTION_REQUEST" => self.on_tool_request(payload(line)?, facts),
            "ACTION_RESULT" => self.on_tool_result(&payload(line)?, facts),
            "SYSTEM_MESSAGE" => {
                let AgentNoticeLine { level, content } = payload(line)?;
                let fact = if level == "WARN" { FactKind::Warning } else { FactKind::Progress };
                facts.push(fact(content.into_owned()));
            }
            "outcome" => {
                self.on_outcome(serde_json::from_slice(line).ok()?, turn)?;
                facts.push(FactKind::OutputComplete);
            }
            _ => return None,
        }
        Some(())
    }

    fn is_success(&self, turn: &OneShotTurn, _exit: &ProcessExit<'_>) -> bool {
        turn.completed
    }

    fn reported_outcome(&mut self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> Option<TurnOutcome> {
        let outcome = self.outcome.take()?;
        // Without a session the answer to a question would have no receiver.
        let is_unanswerable = matches!(outcome, TurnOutcome::Asked { .. }) && turn.session.is_none();
        Some(if is_unanswerable {
            TurnOutcome::Failed { failure: self.failure(turn, exit) }
        } else {
            outcome
        })
    }

    fn failure(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> RunFailure {
        let stderr_tail = stderr_tail(exit.stderr);
        let error_line =
            stderr_tail.lines().rev().find_map(|line| serde_json::from_str::<AgentErrorLine>(line).ok());
        let is_lost = turn.is_session_lost(exit);
        match error_line {
            // The session may exist; the definition of the agent is invalid.
            Some(AgentErrorLine { code, detail }) if code == "BAD_DEFINITION" => {
                RunFailure::new(FailureCode::EngineFailed, detail)
            }
            Some(AgentErrorLine { code, detail }) if code == "KEY_MISSING" => {
                RunFailure::new(FailureCode::EngineAuthRequired, detail)
            }
            Some(AgentErrorLine { detail, .. }) if is_lost => resume_failed(SESSION, &detail),
            None if is_lost => resume_failed(SESSION, &stderr_tail),
            Some(AgentErrorLine { detail, .. }) => engine_failed(&detail),
            None => exit_without_result(exit),
        }
    }
}

/// The payload of a journal event.
fn payload<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Option<T> {
    let AgentEventLine { payload } = serde_json::from_slice(line).ok()?;
    Some(payload)
}

fn question(line: AgentQuestionLine<'_>) -> Question {
    let choice = |label| InteractionOption { label, safe: false };
    Question {
        kind: if line.options.is_empty() { InteractionKind::OpenText } else { InteractionKind::ChooseOne },
        prompt: line.question.into_owned(),
        options: line.options.into_iter().map(choice).collect(),
        ui_hints: line.sensitive.then(|| r#"{"sensitive":true}"#.to_owned()),
        // An engine cannot guess a secret, so the run must not continue without an answer.
        default_decision_policy: if line.sensitive {
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
