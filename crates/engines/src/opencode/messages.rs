//! The lines of `opencode run --format json`, as far as they are read. Other fields are skipped.

use std::borrow::Cow;

use serde::Deserialize;

/// The common member of all lines; the only one that is read of `step_start` and `reasoning`
#[derive(Debug, Deserialize)]
pub(super) struct SessionLine<'a> {
    #[serde(borrow, rename = "sessionID")]
    pub(super) session_id: Cow<'a, str>,
}

/// A line about a part of a message.
#[derive(Debug, Deserialize)]
pub(super) struct PartLine<'a, P> {
    #[serde(borrow, rename = "sessionID")]
    pub(super) session_id: Cow<'a, str>,
    pub(super) part: P,
}

/// `text`
#[derive(Debug, Deserialize)]
pub(super) struct TextPart<'a> {
    #[serde(borrow, rename = "messageID", default)]
    pub(super) message_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Cow<'a, str>,
}

/// `tool_use`
#[derive(Debug, Deserialize)]
pub(super) struct ToolPart<'a> {
    #[serde(borrow)]
    pub(super) tool: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) state: ToolState<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolState<'a> {
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) title: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) error: Option<Cow<'a, str>>,
}

/// `step_finish`
#[derive(Debug, Deserialize)]
pub(super) struct StepPart<'a> {
    #[serde(borrow, default)]
    pub(super) reason: Cow<'a, str>,
}

/// `error`
#[derive(Debug, Deserialize)]
pub(super) struct ErrorLine<'a> {
    #[serde(borrow, rename = "sessionID")]
    pub(super) session_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) error: OpenCodeError<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OpenCodeError<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) data: Option<OpenCodeErrorData<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OpenCodeErrorData<'a> {
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
    pub(super) status_code: Option<u16>,
}
