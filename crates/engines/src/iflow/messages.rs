//! The `<Execution Info>` block of iFlow, as far as it is read.

use std::borrow::Cow;

use serde::Deserialize;

const BLOCK_BEGIN: &str = "<Execution Info>";
const BLOCK_END: &str = "</Execution Info>";

/// The contents of the block.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ExecutionInfo<'a> {
    #[serde(borrow, rename = "session-id")]
    pub(super) session_id: Option<Cow<'a, str>>,
}

/// Whether a line begins the block.
pub(super) fn begins_block(line: &str) -> bool {
    line.trim_start().starts_with(BLOCK_BEGIN)
}

/// Splits a text into the answer and the block at its end; `None` if there is no complete block.
pub(super) fn split(text: &str) -> Option<(&str, ExecutionInfo<'_>)> {
    // The last one, because an answer may mention such blocks.
    let (before, from) = text.rsplit_once(BLOCK_BEGIN)?;
    let (inside, after) = from.split_once(BLOCK_END)?;
    let info = serde_json::from_str(inside.trim()).ok()?;
    after.trim().is_empty().then_some((before, info))
}
