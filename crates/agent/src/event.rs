//! The seven kinds of events in the journal, and their payloads (B9).
//!
//! Events hold intents and observations only. Pids, pipes and raw output are in folders that `execution_ref` names
//! (B4). Unknown fields are ignored, so that later versions can add some. An unknown kind is an error, because its
//! effect on the run's state cannot be guessed.
//!
//! Writing lines is in `journal`, and the fold of the events is in `journal_state`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::model::TokenUsage;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentJournalEntry {
    /// Starts at 1, without gaps.
    pub seq: u64,
    /// RFC 3339.
    pub ts: String,
    pub event: AgentEvent,
}

/// Tagged by its kind on the line; the payload follows.
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

/// Starts a run. If a run of this id exists, it continues with a fresh budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStart {
    pub run_id: String,
    /// Path of the folder that defines the agent.
    pub agent: String,
    pub model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    pub run_id: String,
    pub status: EndStatus,
    /// Present unless the status is `COMPLETED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The final answer of the model. Present if the status is `COMPLETED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    pub iterations: u64,
    pub usage: TokenUsage,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EndStatus {
    Completed,
    Failed,
    /// The limit of iterations or tokens was reached. This is not a success.
    BudgetExhausted,
}

/// A message of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserMessage {
    pub text: String,
}

/// A reply of the model. It is followed by exactly `calls` requests, which are written in the same append; see decision
/// 0013.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelThought {
    pub text: Option<String>,
    #[serde(default)]
    pub calls: u64,
    /// The finish reason, as the model's service spells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
    /// Whether the usage was estimated here because the server did not report it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage_estimated: bool,
}

/// A tool call of the model. It is journalled before it is executed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionRequest {
    pub action_id: String,
    /// The id that the model gave to the call.
    pub call_id: String,
    pub tool_name: String,
    pub tool_args: Value,
    /// The arguments as the model sent them. Present if they are not a JSON object, or contain a number that
    /// `tool_args` cannot hold exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_args_raw: Option<String>,
}

/// The result of an [`ActionRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionResult {
    pub action_id: String,
    pub status: ActionStatus,
    /// The text that the model receives.
    pub observation_content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Folder with the complete output, relative to the state folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_event: Option<SessionChange>,
}

/// The status of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionStatus {
    Success,
    Error,
    TimedOut,
    /// Abide was stopped during the call. It may have been executed completely, partly or not at all.
    Unknown,
    /// A person stopped the run during the call or before it began.
    Interrupted,
}

/// The effect of a result on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionChange {
    Started,
    Ended,
}

/// A notice of Abide itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemMessage {
    pub level: MessageLevel,
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_event: Option<SessionChange>,
}

/// Severity of a system message. Only warnings are sent to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MessageLevel {
    /// For readers of the journal only.
    Info,
    /// Also sent to the model.
    Warn,
}

impl ModelThought {
    /// Whether this is the final answer: complete text and no calls.
    pub fn is_answer(&self) -> bool {
        self.calls == 0 && !self.is_empty() && !self.is_truncated() && !self.is_filtered()
    }

    /// Whether the text was truncated at the length limit of a reply.
    pub fn is_truncated(&self) -> bool {
        self.finish.as_deref() == Some("length")
    }

    /// Whether the content filter of the model's service removed the reply or the rest of it.
    pub fn is_filtered(&self) -> bool {
        self.finish.as_deref() == Some("content_filter")
    }

    /// Whether the reply has neither text nor calls.
    pub fn is_empty(&self) -> bool {
        self.calls == 0 && self.text.as_deref().is_none_or(|text| text.trim().is_empty())
    }
}

impl AgentJournalEntry {
    /// Parses a line of the journal.
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

    /// The line, without a newline.
    pub fn to_line(&self) -> serde_json::Result<String> {
        match &self.event {
            AgentEvent::RunStart(payload) => self.serialize_line(EventKind::RunStart, payload),
            AgentEvent::RunEnd(payload) => self.serialize_line(EventKind::RunEnd, payload),
            AgentEvent::UserMessage(payload) => self.serialize_line(EventKind::UserMessage, payload),
            AgentEvent::Thought(payload) => self.serialize_line(EventKind::Thought, payload),
            AgentEvent::ActionRequest(payload) => self.serialize_line(EventKind::ActionRequest, payload),
            AgentEvent::ActionResult(payload) => self.serialize_line(EventKind::ActionResult, payload),
            AgentEvent::SystemMessage(payload) => self.serialize_line(EventKind::SystemMessage, payload),
        }
    }

    fn serialize_line<T: Serialize>(&self, kind: EventKind, payload: &T) -> serde_json::Result<String> {
        serde_json::to_string(&WrittenLine { seq: self.seq, ts: &self.ts, kind, payload })
    }
}

/// A line during parsing. The payload is parsed after its kind is known.
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

/// A line during serialisation.
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
        let line = entry.to_line().unwrap();
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
            assert_eq!(
                AgentJournalEntry::parse(entry.to_line().unwrap().as_bytes()).unwrap(),
                entry,
                "{depth}"
            );
        }
    }

    #[test]
    fn only_a_complete_reply_is_an_answer() {
        let thought = |text: &str| ModelThought { text: Some(text.to_owned()), ..ModelThought::default() };
        assert!(thought("done").is_answer());
        assert!(!thought(" \n").is_answer());
        assert!(!ModelThought { calls: 1, ..thought("I will look") }.is_answer());
        assert!(!ModelThought { finish: Some("length".to_owned()), ..thought("once upon a") }.is_answer());
    }
}
