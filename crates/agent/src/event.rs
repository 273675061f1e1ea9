//! What the journal is made of: seven kinds of events, each with what it says (B9).
//!
//! They hold intents and observations only; pids, pipes and raw output lie in folders that `execution_ref` names (B4).
//! A field that a later version adds is passed over. A kind that is not known here is an error, because what it did to
//! the story cannot be guessed.
//!
//! Not here: how lines are written (`journal`) and what the events add up to (`story`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::model::TokenUsage;

/// One event with its number and time: a line of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentJournalEntry {
    /// From 1, without gaps.
    pub seq: u64,
    /// RFC 3339.
    pub ts: String,
    pub event: AgentEvent,
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    RunStart(RunStart),
    RunEnd(RunEnd),
    UserMessage(UserMessage),
    Thought(ModelThought),
    ActionRequest(ActionRequest),
    ActionResult(ActionResult),
    SystemMessage(SystemMessage),
}

/// A run begins, or goes on with a fresh budget if there was one of that id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStart {
    pub run_id: String,
    /// The folder that defines the agent.
    pub agent: String,
    pub model: String,
}

/// A run is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    pub run_id: String,
    pub status: EndStatus,
    /// Why, unless it was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the model said last, if it was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    pub iterations: u64,
    pub usage: TokenUsage,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EndStatus {
    Completed,
    Failed,
    /// The iterations or tokens that it was given are used up. Not a success.
    BudgetExhausted,
}

/// A person said something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserMessage {
    pub text: String,
}

/// The model said something. So many requests as it says follow at once; see decision 0013.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelThought {
    pub text: Option<String>,
    #[serde(default)]
    pub calls: u64,
    /// Why the model stopped, in its service's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
    /// Whether the usage is a guess of ours, because the server said nothing about it.
    #[serde(default, rename = "usage_estimated", skip_serializing_if = "std::ops::Not::not")]
    pub is_estimated: bool,
}

/// The model wants something done. It is written before it is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionRequest {
    pub action_id: String,
    /// The id by which the model knows the call.
    pub call_id: String,
    pub tool_name: String,
    pub tool_args: Value,
    /// The arguments as the model sent them, if they are no JSON object or have a number that `tool_args` cannot hold
    /// exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_args_raw: Option<String>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionResult {
    pub action_id: String,
    pub status: ActionStatus,
    /// What the model is shown.
    pub observation_content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Where all of it lies, seen from the state folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_event: Option<SessionChange>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionStatus {
    Success,
    Error,
    TimedOut,
    /// Abide was stopped while it ran: it may have been carried out wholly, partly or not at all.
    Unknown,
    /// A person stopped the run while it ran, or before it was begun.
    Interrupted,
}

/// What a result did to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionChange {
    Started,
    Ended,
}

/// Abide itself has something to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemMessage {
    pub level: MessageLevel,
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_event: Option<SessionChange>,
}

/// How much a system message matters. The model is shown what is a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MessageLevel {
    /// For whoever reads the journal.
    Info,
    /// For the model too.
    Warn,
}

impl ModelThought {
    /// Whether the model has given its answer: it said something to the end and wants nothing more done.
    pub fn is_answer(&self) -> bool {
        self.calls == 0 && !self.is_empty() && !self.is_cut() && !self.is_withheld()
    }

    /// Whether the text ends at the length limit of a reply, and not where the model wanted to end it.
    pub fn is_cut(&self) -> bool {
        self.finish.as_deref() == Some("length")
    }

    /// Whether the model's service kept the answer, or the rest of it, to itself.
    pub fn is_withheld(&self) -> bool {
        self.finish.as_deref() == Some("content_filter")
    }

    /// Whether it neither said nor called anything.
    pub fn is_empty(&self) -> bool {
        self.calls == 0 && self.text.as_deref().is_none_or(|text| text.trim().is_empty())
    }
}

impl AgentJournalEntry {
    /// Reads a line.
    pub fn parse(line: &[u8]) -> serde_json::Result<Self> {
        let AgentJournalLine { seq, ts, kind, payload } = serde_json::from_slice(line)?;
        let payload = payload.get();
        let event = match kind {
            EventKind::RunStart => AgentEvent::RunStart(serde_json::from_str(payload)?),
            EventKind::RunEnd => AgentEvent::RunEnd(serde_json::from_str(payload)?),
            EventKind::UserMessage => AgentEvent::UserMessage(serde_json::from_str(payload)?),
            EventKind::Thought => AgentEvent::Thought(serde_json::from_str(payload)?),
            EventKind::ActionRequest => AgentEvent::ActionRequest(RequestLine::parse(payload)?),
            EventKind::ActionResult => AgentEvent::ActionResult(serde_json::from_str(payload)?),
            EventKind::SystemMessage => AgentEvent::SystemMessage(serde_json::from_str(payload)?),
        };
        Ok(Self { seq, ts, event })
    }

    /// The line, without its end.
    pub fn line(&self) -> serde_json::Result<String> {
        match &self.event {
            AgentEvent::RunStart(payload) => self.written(EventKind::RunStart, payload),
            AgentEvent::RunEnd(payload) => self.written(EventKind::RunEnd, payload),
            AgentEvent::UserMessage(payload) => self.written(EventKind::UserMessage, payload),
            AgentEvent::Thought(payload) => self.written(EventKind::Thought, payload),
            AgentEvent::ActionRequest(payload) => self.written(EventKind::ActionRequest, payload),
            AgentEvent::ActionResult(payload) => self.written(EventKind::ActionResult, payload),
            AgentEvent::SystemMessage(payload) => self.written(EventKind::SystemMessage, payload),
        }
    }

    fn written<T: Serialize>(&self, kind: EventKind, payload: &T) -> serde_json::Result<String> {
        serde_json::to_string(&WrittenLine { seq: self.seq, ts: &self.ts, kind, payload })
    }
}

/// A line as it is read. The payload is read when its kind is known.
#[derive(Deserialize)]
struct AgentJournalLine<'a> {
    seq: u64,
    ts: String,
    #[serde(rename = "type")]
    kind: EventKind,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// The payload of a request. Its arguments are parsed separately: nested in the payload, arguments of the greatest
/// depth that the parser accepts would exceed the parser's limit.
#[derive(Deserialize)]
struct RequestLine<'a> {
    action_id: String,
    call_id: String,
    tool_name: String,
    #[serde(borrow)]
    tool_args: &'a RawValue,
    #[serde(default)]
    tool_args_raw: Option<String>,
}

impl RequestLine<'_> {
    fn parse(payload: &str) -> serde_json::Result<ActionRequest> {
        let RequestLine { action_id, call_id, tool_name, tool_args, tool_args_raw } =
            serde_json::from_str(payload)?;
        let tool_args = serde_json::from_str(tool_args.get())?;
        Ok(ActionRequest { action_id, call_id, tool_name, tool_args, tool_args_raw })
    }
}

/// A line as it is written.
#[derive(Serialize)]
struct WrittenLine<'a, T> {
    seq: u64,
    ts: &'a str,
    #[serde(rename = "type")]
    kind: EventKind,
    payload: &'a T,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum EventKind {
    RunStart,
    RunEnd,
    UserMessage,
    Thought,
    ActionRequest,
    ActionResult,
    SystemMessage,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_line_with_seq_ts_type_and_payload_and_is_read_back_as_it_was() {
        let request = ActionRequest {
            action_id: "act_3_ab12".to_owned(),
            call_id: "call_1".to_owned(),
            tool_name: "read".to_owned(),
            tool_args: json!({ "path": "a\nb" }),
            tool_args_raw: None,
        };
        let ts = "2026-11-16T08:00:00Z".to_owned();
        let entry = AgentJournalEntry { seq: 3, ts, event: AgentEvent::ActionRequest(request) };
        let line = entry.line().unwrap();
        assert_eq!(
            line,
            r#"{"seq":3,"ts":"2026-11-16T08:00:00Z","type":"ACTION_REQUEST","payload":{"action_id":"act_3_ab12","call_id":"call_1","tool_name":"read","tool_args":{"path":"a\nb"}}}"#
        );
        assert_eq!(AgentJournalEntry::parse(line.as_bytes()).unwrap(), entry);
    }

    #[test]
    fn arguments_of_any_depth_that_the_parser_accepts_are_read_back() {
        for depth in [100, 126, 127] {
            let text = format!("{}1{}", "[".repeat(depth - 1), "]".repeat(depth - 1));
            let tool_args = serde_json::from_str(&format!(r#"{{"a":{text}}}"#)).unwrap();
            let request = ActionRequest {
                action_id: "act_1".to_owned(),
                call_id: "c".to_owned(),
                tool_name: "t".to_owned(),
                tool_args,
                tool_args_raw: None,
            };
            let entry =
                AgentJournalEntry { seq: 1, ts: String::new(), event: AgentEvent::ActionRequest(request) };
            assert_eq!(AgentJournalEntry::parse(entry.line().unwrap().as_bytes()).unwrap(), entry, "{depth}");
        }
    }

    #[test]
    fn only_something_said_to_the_end_is_an_answer() {
        let said = |text: &str| ModelThought { text: Some(text.to_owned()), ..ModelThought::default() };
        assert!(said("done").is_answer());
        assert!(!said(" \n").is_answer());
        assert!(!ModelThought { calls: 1, ..said("I will look") }.is_answer());
        assert!(!ModelThought { finish: Some("length".to_owned()), ..said("once upon a") }.is_answer());
    }
}
