//! The lines of `gemini -o stream-json`, as far as they are read. Other fields are skipped.

use std::borrow::Cow;

use serde::Deserialize;

/// `init`
#[derive(Debug, Deserialize)]
pub(super) struct GeminiInitLine<'a> {
    #[serde(borrow)]
    pub(super) session_id: Cow<'a, str>,
}

/// `message` of the person or the model; the model's text arrives in chunks.
#[derive(Debug, Deserialize)]
pub(super) struct GeminiMessage<'a> {
    #[serde(borrow)]
    pub(super) role: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: Cow<'a, str>,
}

/// `tool_use`
#[derive(Debug, Deserialize)]
pub(super) struct GeminiToolUse<'a> {
    #[serde(borrow)]
    pub(super) tool_name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) parameters: GeminiToolParameters<'a>,
}

/// The tool parameters that are shown as progress.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GeminiToolParameters<'a> {
    #[serde(borrow)]
    pub(super) command: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) file_path: Option<Cow<'a, str>>,
}

/// `tool_result`
#[derive(Debug, Deserialize)]
pub(super) struct GeminiToolResult<'a> {
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) output: Option<Cow<'a, str>>,
}

/// `error`, and the error in `result`
#[derive(Debug, Deserialize)]
pub(super) struct GeminiError<'a> {
    #[serde(borrow)]
    pub(super) message: Cow<'a, str>,
    /// `warning` or `error`; only in `error` lines.
    #[serde(borrow)]
    pub(super) severity: Option<Cow<'a, str>>,
}

/// `result`
#[derive(Debug, Deserialize)]
pub(super) struct GeminiResultLine<'a> {
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) error: Option<GeminiError<'a>>,
}
