//! Side requests: requests that an agent program makes for its own purposes, such as titles, memories and verdicts.
//!
//! Most offer no tools and are recognised by that. The others are recognised by their first words, as observed in real
//! programs. A new kind is one line here, or [`ModelScript::with_turn_filter`](super::ModelScript::with_turn_filter) in the test.

use super::received::ReceivedRequest;

/// Whether the request is a side request and not part of the conversation.
pub(super) fn is_side_request(request: &ReceivedRequest) -> bool {
    let newest = request.messages.last();
    let has_opening =
        newest.is_some_and(|message| message.blocks.iter().any(|block| begins_like_side_request(block)));
    has_opening || (request.tools.is_empty() && newest.is_none_or(|message| message.tool_results.is_empty()))
}

/// Whether a text begins like a side request.
pub(super) fn begins_like_side_request(block: &str) -> bool {
    SIDE_REQUEST_OPENINGS.iter().any(|order| block.trim_start().starts_with(order))
}

const SIDE_REQUEST_OPENINGS: &[&str] = &[
    // Codex: whether a command may run.
    "The following is the Codex agent history",
    // Qwen: whether a command may run, a memory, and a suggestion for the user's next message.
    "## Pending tool call to classify",
    "Managed memory has",
    "[SUGGESTION MODE",
    // opencode: a title for the conversation.
    "Generate a title for this conversation",
];
