//! The lines of `abide agent run --json`, as far as they are read: session, journal events and outcome. Other fields
//! are skipped.

use std::borrow::Cow;

use serde::Deserialize;

/// `session`
#[derive(Debug, Deserialize)]
pub(super) struct AgentSessionLine<'a> {
    #[serde(borrow)]
    pub(super) session_id: Cow<'a, str>,
}

/// An event of the journal.
#[derive(Debug, Deserialize)]
pub(super) struct AgentEventLine<T> {
    pub(super) payload: T,
}

/// `THOUGHT`
#[derive(Debug, Deserialize)]
pub(super) struct AgentThoughtLine<'a> {
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) calls: u64,
}

/// `ACTION_REQUEST`
#[derive(Debug, Deserialize)]
pub(super) struct AgentRequestLine<'a> {
    #[serde(borrow)]
    pub(super) action_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) tool_args: &'a serde_json::value::RawValue,
}

/// `ACTION_RESULT`
#[derive(Debug, Deserialize)]
pub(super) struct AgentResultLine<'a> {
    #[serde(borrow)]
    pub(super) action_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
    pub(super) exit_code: Option<i32>,
}

/// `SYSTEM_MESSAGE`
#[derive(Debug, Deserialize)]
pub(super) struct AgentNoticeLine<'a> {
    #[serde(borrow)]
    pub(super) level: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Cow<'a, str>,
}

/// `outcome`, the last line.
#[derive(Debug, Deserialize)]
pub(super) struct AgentOutcomeLine<'a> {
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) answer: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) reason: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) question: Option<AgentQuestionLine<'a>>,
}

/// The question to the person.
#[derive(Debug, Deserialize)]
pub(super) struct AgentQuestionLine<'a> {
    #[serde(borrow)]
    pub(super) question: Cow<'a, str>,
    #[serde(default)]
    pub(super) options: Vec<String>,
    #[serde(default)]
    pub(super) sensitive: bool,
}

/// The error on standard error if the agent could not start.
#[derive(Debug, Deserialize)]
pub(super) struct AgentErrorLine {
    pub(super) code: String,
    pub(super) detail: String,
}
