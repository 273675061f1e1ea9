//! How the lines of `codex exec --json` look, as far as they are read. What is not named here is skipped unread.

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

/// Something that the agent did or said.
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
