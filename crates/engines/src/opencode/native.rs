//! How the lines of `opencode run --format json` look, as far as they are read. What is not named here is skipped
//! unread.

use std::borrow::Cow;

use serde::Deserialize;

/// What every line has.
#[derive(Debug, Deserialize)]
pub(super) struct Head<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, rename = "sessionID")]
    pub(super) session_id: Cow<'a, str>,
}

/// `text`
#[derive(Debug, Deserialize)]
pub(super) struct TextLine<'a> {
    #[serde(borrow)]
    pub(super) part: TextPart<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TextPart<'a> {
    #[serde(borrow, rename = "messageID", default)]
    pub(super) message_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) text: Cow<'a, str>,
}

/// `tool_use`
#[derive(Debug, Deserialize)]
pub(super) struct ToolLine<'a> {
    #[serde(borrow)]
    pub(super) part: ToolPart<'a>,
}

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
pub(super) struct StepLine<'a> {
    #[serde(borrow)]
    pub(super) part: StepPart<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StepPart<'a> {
    #[serde(borrow, default)]
    pub(super) reason: Cow<'a, str>,
}

/// `error`
#[derive(Debug, Deserialize)]
pub(super) struct ErrorLine<'a> {
    #[serde(borrow)]
    pub(super) error: Trouble<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Trouble<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) data: Option<TroubleData<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TroubleData<'a> {
    #[serde(borrow)]
    pub(super) message: Option<Cow<'a, str>>,
    pub(super) status_code: Option<u16>,
}
