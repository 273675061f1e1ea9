//! The lines of `qwen -o stream-json`, as far as they are read. Other fields are skipped.

use std::borrow::Cow;

use serde::Deserialize;

/// `system`
#[derive(Debug, Deserialize)]
pub(super) struct QwenSystemLine<'a> {
    #[serde(borrow)]
    pub(super) subtype: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) session_id: Cow<'a, str>,
}

/// `assistant`, and `user` with results of tools
#[derive(Debug, Deserialize)]
pub(super) struct QwenMessageLine<'a> {
    #[serde(borrow)]
    pub(super) message: QwenMessage<'a>,
    /// Set on lines of a sub-agent.
    #[serde(borrow)]
    pub(super) parent_tool_use_id: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct QwenMessage<'a> {
    #[serde(borrow)]
    pub(super) content: Vec<QwenBlock<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct QwenBlock<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) input: QwenToolInput<'a>,
    pub(super) is_error: Option<bool>,
}

/// The fields of a tool's input that are shown as progress.
#[derive(Debug, Default, Deserialize)]
pub(super) struct QwenToolInput<'a> {
    #[serde(borrow)]
    pub(super) command: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) file_path: Option<Cow<'a, str>>,
}

/// `result`
#[derive(Debug, Deserialize)]
pub(super) struct QwenResultLine<'a> {
    #[serde(borrow)]
    pub(super) subtype: Cow<'a, str>,
    pub(super) is_error: bool,
    #[serde(borrow)]
    pub(super) result: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) error: Option<QwenError<'a>>,
}

/// The error of a failed turn.
#[derive(Debug, Deserialize)]
pub(super) struct QwenError<'a> {
    #[serde(borrow)]
    pub(super) message: Cow<'a, str>,
}
