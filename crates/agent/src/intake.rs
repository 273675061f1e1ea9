//! What a command means for the story that there is: the same command again goes on and doubles nothing.
//!
//! A pure decision, made before anything is changed, so that a command that makes no sense leaves no trace.

use crate::{
    human::Question,
    story::{Run, Story},
};

/// What somebody typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub message: Option<String>,
    pub answer: Option<String>,
    /// A run that was completed is done anew.
    pub again: bool,
    pub max_iterations: Option<u64>,
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) begin: Begin,
    /// The answer to the open question.
    pub(crate) answer: Option<String>,
    /// Something new that is said to the run.
    pub(crate) message: Option<String>,
}

/// How it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// A new run.
    Fresh,
    /// The run that is under way goes on.
    GoOn,
    /// A run that failed or used up its budget goes on, with a fresh one.
    Resume { run_id: String },
    /// The run was completed: what it answered is told again.
    Recorded,
}

/// Decides, or says why the command makes no sense here. A question was shown when the file that stands for it is there.
/// The last answer is told as it was meant, where that is still known.
pub(crate) fn plan(
    story: &Story,
    order: &Order,
    shown: Option<&Question>,
    last_answer: Option<&LastAnswer>,
) -> Result<Plan, String> {
    let Some(run) = story.run() else { return first(order) };
    let answer = match &order.answer {
        Some(answer) => meant(story, answer, shown, last_answer)?,
        None => None,
    };
    let message = order.message.clone().filter(|text| !run.was_told(text));
    let begin = match &run.end {
        None => Begin::GoOn,
        Some(_) if run.is_completed() => return Ok(after_completion(run, order, message)),
        Some(_) => Begin::Resume { run_id: run.id.clone() },
    };
    Ok(Plan { begin, answer, message })
}

/// The answer that a person gave last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastAnswer {
    Known(String),
    /// It was sensitive and is forgotten.
    Forgotten,
}

fn first(order: &Order) -> Result<Plan, String> {
    if order.answer.is_some() {
        return Err("there is no run here yet, so there is no question to answer".to_owned());
    }
    let Some(message) = order.message.clone() else {
        return Err("there is no run here yet; say what to do with --message TEXT".to_owned());
    };
    Ok(Plan { begin: Begin::Fresh, answer: None, message: Some(message) })
}

/// Whether an answer is one to the open question, or the one that was given before.
fn meant(
    story: &Story,
    answer: &str,
    shown: Option<&Question>,
    last: Option<&LastAnswer>,
) -> Result<Option<String>, String> {
    let is_repeated = match last {
        Some(LastAnswer::Known(last)) => last == answer,
        Some(LastAnswer::Forgotten) => true,
        None => false,
    };
    match story.open().find(|request| request.tool_name == crate::human::TOOL) {
        // A question that nobody has seen cannot be what the answer is for.
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

fn after_completion(run: &Run, order: &Order, message: Option<String>) -> Plan {
    let message = match (message, order.again) {
        (None, true) => order.message.clone().or_else(|| run.messages.first().cloned()),
        (message, _) => message,
    };
    let begin = if message.is_some() { Begin::Fresh } else { Begin::Recorded };
    Plan { begin, answer: None, message }
}
