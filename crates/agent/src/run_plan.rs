//! Compares a command with the state of the journal. Repeating a command continues the run and adds nothing twice.
//!
//! The decision is pure and precedes all changes, so that a command that is invalid in this state leaves no trace.

use crate::{
    ask_human::HumanQuestion,
    journal_state::{AgentRunState, JournalState},
};

/// The arguments of a command to run the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentRunRequest {
    pub message: Option<String>,
    pub answer: Option<String>,
    /// The answer if the last question is open, and a message otherwise.
    pub answer_or_message: Option<String>,
    /// Starts a completed run again.
    pub restart_completed: bool,
    pub max_iterations: Option<u64>,
    pub human_availability: HumanAvailability,
    pub session_policy: SessionPolicy,
}

/// Whether a person can be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HumanAvailability {
    #[default]
    Available,
    /// No person is available, now or later. The tool `ask_human` is not offered, and the model has to decide by
    /// itself.
    Unavailable,
}

/// The treatment of stateful tools at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionPolicy {
    /// All sessions are ended (B6).
    #[default]
    EndSessions,
    /// Sessions remain for the next message. The caller has to end them eventually.
    KeepSessions,
}

/// The decision about a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentRunPlan {
    pub(crate) start_mode: AgentStartMode,
    /// The answer to the open question.
    pub(crate) answer: Option<String>,
    /// A new message to the run.
    pub(crate) message: Option<String>,
}

/// The start of the run that a command leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentStartMode {
    /// Starts a new run.
    Fresh,
    /// Continues the unfinished run.
    Continue,
    /// Continues a run that failed or exhausted its budget, with a fresh budget.
    Resume { run_id: String },
    /// The run is completed: its recorded answer is returned again.
    ReturnRecorded,
}

/// Decides about a command, or returns the reason why it is invalid in this state. `shown_question` is the question in
/// the question file, if there is one. `last_answer` has the text without tokens, if it is still known.
pub(crate) fn plan_run(
    journal: &JournalState,
    run_request: &AgentRunRequest,
    shown_question: Option<&HumanQuestion>,
    last_answer: Option<&LastAnswer>,
) -> Result<AgentRunPlan, String> {
    let run_request = &resolve_answer_or_message(run_request, journal, shown_question);
    let Some(run) = journal.run() else { return plan_first_run(run_request) };
    let answer = match &run_request.answer {
        Some(answer) => accept_answer(journal, answer, shown_question, last_answer)?,
        None => None,
    };
    let message = run_request.message.clone().filter(|text| !run.has_message(text));
    let start_mode = match &run.end {
        None => AgentStartMode::Continue,
        Some(_) if run.is_completed() => return Ok(plan_after_completion(run, run_request, message)),
        Some(_) => AgentStartMode::Resume { run_id: run.id.clone() },
    };
    Ok(AgentRunPlan { start_mode, answer, message })
}

/// Turns `answer_or_message` into an answer or a message. It is an answer only if the open question was shown.
fn resolve_answer_or_message(
    run_request: &AgentRunRequest,
    journal: &JournalState,
    shown_question: Option<&HumanQuestion>,
) -> AgentRunRequest {
    let mut run_request = run_request.clone();
    if let Some(text) = run_request.answer_or_message.take() {
        let open = journal.open_requests().filter(|request| request.tool_name == crate::ask_human::TOOL_NAME);
        let mut open = open.map(|request| request.action_id.as_str());
        let is_asked = shown_question
            .is_some_and(|shown_question| open.any(|open| open == shown_question.interaction_id));
        *(if is_asked { &mut run_request.answer } else { &mut run_request.message }) = Some(text);
    }
    run_request
}

/// The last answer of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastAnswer {
    Known(String),
    /// The answer was sensitive and has been deleted.
    Deleted,
}

fn plan_first_run(run_request: &AgentRunRequest) -> Result<AgentRunPlan, String> {
    if run_request.answer.is_some() {
        return Err("there is no run here yet, so there is no question to answer".to_owned());
    }
    let Some(message) = run_request.message.clone() else {
        return Err("there is no run here yet; give the task with --message TEXT".to_owned());
    };
    Ok(AgentRunPlan { start_mode: AgentStartMode::Fresh, answer: None, message: Some(message) })
}

/// Whether an answer is for the open question, or repeats the previous answer.
fn accept_answer(
    journal: &JournalState,
    answer: &str,
    shown_question: Option<&HumanQuestion>,
    last_answer: Option<&LastAnswer>,
) -> Result<Option<String>, String> {
    let is_repeated = match last_answer {
        Some(LastAnswer::Known(last_answer)) => last_answer == answer,
        Some(LastAnswer::Deleted) => true,
        None => false,
    };
    match journal.open_requests().find(|request| request.tool_name == crate::ask_human::TOOL_NAME) {
        // The open question was not shown yet, so the answer repeats the previous one.
        Some(open)
            if is_repeated
                && shown_question
                    .is_none_or(|shown_question| shown_question.interaction_id != open.action_id) =>
        {
            Ok(None)
        }
        Some(_) => Ok(Some(answer.to_owned())),
        None if is_repeated => Ok(None),
        None => Err(match last_answer {
            Some(LastAnswer::Known(_)) => {
                "the question was answered already, with another text; use --message TEXT to add more"
                    .to_owned()
            }
            Some(LastAnswer::Deleted) | None => {
                "there is no open question to answer; use --message TEXT to send a message".to_owned()
            }
        }),
    }
}

fn plan_after_completion(
    run: &AgentRunState,
    run_request: &AgentRunRequest,
    message: Option<String>,
) -> AgentRunPlan {
    let message = match (message, run_request.restart_completed) {
        (None, true) => run_request.message.clone().or_else(|| run.messages.first().cloned()),
        (message, _) => message,
    };
    let begin = if message.is_some() { AgentStartMode::Fresh } else { AgentStartMode::ReturnRecorded };
    AgentRunPlan { start_mode: begin, answer: None, message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::{
        ActionRequest, ActionResult, ActionStatus, AgentEvent, ModelThought, RunStart, UserMessage,
    };

    /// The state of a run with the message `go` and this many questions, of which all but the last are answered with
    /// `yes`.
    fn journal_with_questions(questions: u64) -> JournalState {
        let mut journal = JournalState::default();
        let mut apply = |event: AgentEvent| journal.apply(&event).unwrap();
        let start = RunStart { run_id: "r".to_owned(), agent: String::new(), model: String::new() };
        apply(AgentEvent::RunStart(start));
        apply(AgentEvent::UserMessage(UserMessage { text: "go".to_owned() }));
        for number in 1..=questions {
            apply(AgentEvent::Thought(ModelThought { calls: 1, ..ModelThought::default() }));
            apply(AgentEvent::ActionRequest(ActionRequest {
                action_id: format!("act_{number}"),
                call_id: format!("c{number}"),
                tool_name: crate::ask_human::TOOL_NAME.to_owned(),
                tool_args: json!({ "question": "?" }),
                tool_args_raw: None,
            }));
            if number < questions {
                apply(AgentEvent::ActionResult(ActionResult {
                    action_id: format!("act_{number}"),
                    status: ActionStatus::Success,
                    observation_content: "yes".to_owned(),
                    exit_code: None,
                    execution_ref: None,
                    session_id: None,
                    session_event: None,
                }));
            }
        }
        journal
    }

    fn shown_question(number: u64) -> HumanQuestion {
        let interaction_id = format!("act_{number}");
        HumanQuestion { interaction_id, question: "?".to_owned(), options: Vec::new(), sensitive: false }
    }

    fn answer_request(text: &str) -> AgentRunRequest {
        AgentRunRequest { answer: Some(text.to_owned()), ..AgentRunRequest::default() }
    }

    #[test]
    fn a_repeated_answer_does_not_answer_a_question_that_was_not_shown() {
        let (journal, last) = (journal_with_questions(2), LastAnswer::Known("yes".to_owned()));
        let answer = |text: &str, shown: Option<&HumanQuestion>| {
            plan_run(&journal, &answer_request(text), shown, Some(&last)).unwrap().answer
        };
        assert_eq!(answer("yes", None), None);
        assert_eq!(answer("yes", Some(&shown_question(1))), None);
        assert_eq!(answer("yes", Some(&shown_question(2))), Some("yes".to_owned()));
        assert_eq!(answer("no", None), Some("no".to_owned()));
    }

    #[test]
    fn a_repeated_message_is_not_added_again() {
        let journal = journal_with_questions(0);
        let message = |text: &str| {
            let order = AgentRunRequest { message: Some(text.to_owned()), ..AgentRunRequest::default() };
            plan_run(&journal, &order, None, None).unwrap()
        };
        assert_eq!(
            message("go"),
            AgentRunPlan { start_mode: AgentStartMode::Continue, answer: None, message: None }
        );
        assert_eq!(message("more").message.as_deref(), Some("more"));
    }
}
