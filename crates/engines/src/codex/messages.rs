//! The lines of `codex exec --json`, as far as they are read. Other fields are skipped.

use std::borrow::Cow;

use serde::Deserialize;

/// `thread.started`
#[derive(Debug, Deserialize)]
pub(super) struct ThreadStarted<'a> {
    #[serde(borrow)]
    pub(super) thread_id: Cow<'a, str>,
}

/// `item.started`, `item.updated`, `item.completed`
#[derive(Debug, Deserialize)]
pub(super) struct ItemLine<'a> {
    #[serde(borrow)]
    pub(super) item: CodexItem<'a>,
}

/// An action or a message of the agent.
#[derive(Debug, Deserialize)]
pub(super) struct CodexItem<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) command: Option<Cow<'a, str>>,
    pub(super) exit_code: Option<i32>,
}

/// `error`
#[derive(Debug, Deserialize)]
pub(super) struct CodexError<'a> {
    #[serde(borrow)]
    pub(super) message: Cow<'a, str>,
}

/// `turn.failed`
#[derive(Debug, Deserialize)]
pub(super) struct TurnFailed<'a> {
    #[serde(borrow)]
    pub(super) error: CodexError<'a>,
}
