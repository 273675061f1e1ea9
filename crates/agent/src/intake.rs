//! Compares a command with the state of the journal. Repeating a command continues the run and adds nothing twice.
//!
//! The decision is pure and precedes all changes, so that a command that is invalid in this state leaves no trace.

use crate::{
    human::HumanQuestion,
    story::{AgentRunState, JournalState},
};

/// The arguments of a command to run the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentRunRequest {
    pub message: Option<String>,
    pub answer: Option<String>,
    /// The answer if the last question is open, and a message otherwise.
    pub said: Option<String>,
    /// Starts a completed run again.
    pub again: bool,
    pub max_iterations: Option<u64>,
    pub company: HumanAvailability,
    pub at_end: SessionPolicy,
}

/// Whether a person can be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HumanAvailability {
    #[default]
    Somebody,
    /// No person is available, now or later. The tool `ask_human` is not offered, and the model has to decide by
    /// itself.
    Nobody,
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
    pub(crate) begin: AgentStartMode,
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
    GoOn,
    /// Continues a run that failed or exhausted its budget, with a fresh budget.
    Resume { run_id: String },
    /// The run is completed: its recorded answer is returned again.
    Recorded,
}

/// Decides about a command, or returns the reason why it is invalid in this state. `shown` is the question in the
/// question file, if there is one. `last_answer` has the text without tokens, if it is still known.
pub(crate) fn plan(
    story: &JournalState,
    order: &AgentRunRequest,
    shown: Option<&HumanQuestion>,
    last_answer: Option<&LastAnswer>,
) -> Result<AgentRunPlan, String> {
    let order = &settled(order, story, shown);
    let Some(run) = story.run() else { return first(order) };
    let answer = match &order.answer {
        Some(answer) => meant(story, answer, shown, last_answer)?,
        None => None,
    };
    let message = order.message.clone().filter(|text| !run.was_told(text));
    let begin = match &run.end {
        None => AgentStartMode::GoOn,
        Some(_) if run.is_completed() => return Ok(after_completion(run, order, message)),
        Some(_) => AgentStartMode::Resume { run_id: run.id.clone() },
    };
    Ok(AgentRunPlan { begin, answer, message })
}

/// Turns `said` into an answer or a message. It is an answer only if the open question was shown.
fn settled(order: &AgentRunRequest, story: &JournalState, shown: Option<&HumanQuestion>) -> AgentRunRequest {
    let mut order = order.clone();
    if let Some(said) = order.said.take() {
        let open = story.open().filter(|request| request.tool_name == crate::human::TOOL);
        let mut open = open.map(|request| request.action_id.as_str());
        let is_asked = shown.is_some_and(|shown| open.any(|open| open == shown.interaction_id));
        *(if is_asked { &mut order.answer } else { &mut order.message }) = Some(said);
    }
    order
}

/// The last answer of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastAnswer {
    Known(String),
    /// The answer was sensitive and has been deleted.
    Forgotten,
}

fn first(order: &AgentRunRequest) -> Result<AgentRunPlan, String> {
    if order.answer.is_some() {
        return Err("there is no run here yet, so there is no question to answer".to_owned());
    }
    let Some(message) = order.message.clone() else {
        return Err("there is no run here yet; say what to do with --message TEXT".to_owned());
    };
    Ok(AgentRunPlan { begin: AgentStartMode::Fresh, answer: None, message: Some(message) })
}

/// Whether an answer is for the open question, or repeats the previous answer.
fn meant(
    story: &JournalState,
    answer: &str,
    shown: Option<&HumanQuestion>,
    last: Option<&LastAnswer>,
) -> Result<Option<String>, String> {
    let is_repeated = match last {
        Some(LastAnswer::Known(last)) => last == answer,
        Some(LastAnswer::Forgotten) => true,
        None => false,
    };
    match story.open().find(|request| request.tool_name == crate::human::TOOL) {
        // The open question was not shown yet, so the answer repeats the previous one.
        Some(open) if is_repeated && shown.is_none_or(|shown| shown.interaction_id != open.action_id) => {
            Ok(None)
        }
        Some(_) => Ok(Some(answer.to_owned())),
        None if is_repeated => Ok(None),
        None => Err(match last {
            Some(LastAnswer::Known(_)) => {
                "the question was answered already, with another text; use --message TEXT to say more"
                    .to_owned()
            }
            Some(LastAnswer::Forgotten) | None => {
                "there is no open question to answer; use --message TEXT to say something".to_owned()
            }
        }),
    }
}

fn after_completion(run: &AgentRunState, order: &AgentRunRequest, message: Option<String>) -> AgentRunPlan {
    let message = match (message, order.again) {
        (None, true) => order.message.clone().or_else(|| run.messages.first().cloned()),
        (message, _) => message,
    };
    let begin = if message.is_some() { AgentStartMode::Fresh } else { AgentStartMode::Recorded };
    AgentRunPlan { begin, answer: None, message }
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
    fn asked(questions: u64) -> JournalState {
        let mut story = JournalState::default();
        let mut apply = |event: AgentEvent| story.apply(&event).unwrap();
        let start = RunStart { run_id: "r".to_owned(), agent: String::new(), model: String::new() };
        apply(AgentEvent::RunStart(start));
        apply(AgentEvent::UserMessage(UserMessage { text: "go".to_owned() }));
        for number in 1..=questions {
            apply(AgentEvent::Thought(ModelThought { calls: 1, ..ModelThought::default() }));
            apply(AgentEvent::ActionRequest(ActionRequest {
                action_id: format!("act_{number}"),
                call_id: format!("c{number}"),
                tool_name: crate::human::TOOL.to_owned(),
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
        story
    }

    fn shown(number: u64) -> HumanQuestion {
        let interaction_id = format!("act_{number}");
        HumanQuestion { interaction_id, question: "?".to_owned(), options: Vec::new(), sensitive: false }
    }

    fn answering(text: &str) -> AgentRunRequest {
        AgentRunRequest { answer: Some(text.to_owned()), ..AgentRunRequest::default() }
    }

    #[test]
    fn the_last_answer_again_is_none_to_a_question_that_nobody_has_seen() {
        let (story, last) = (asked(2), LastAnswer::Known("yes".to_owned()));
        let answer = |text: &str, shown: Option<&HumanQuestion>| {
            plan(&story, &answering(text), shown, Some(&last)).unwrap().answer
        };
        assert_eq!(answer("yes", None), None);
        assert_eq!(answer("yes", Some(&shown(1))), None);
        assert_eq!(answer("yes", Some(&shown(2))), Some("yes".to_owned()));
        assert_eq!(answer("no", None), Some("no".to_owned()));
    }

    #[test]
    fn what_was_said_already_is_not_said_again() {
        let story = asked(0);
        let message = |text: &str| {
            let order = AgentRunRequest { message: Some(text.to_owned()), ..AgentRunRequest::default() };
            plan(&story, &order, None, None).unwrap()
        };
        assert_eq!(message("go"), AgentRunPlan { begin: AgentStartMode::GoOn, answer: None, message: None });
        assert_eq!(message("more").message.as_deref(), Some("more"));
    }
}
