//! Errands: requests that an agent program makes for a purpose of its own, such as titles, memories and verdicts.
//!
//! Most offer no tools and are known by that. The others are known by how they begin, as real programs were seen to
//! write them; a new kind is one line here, or [`ModelScript::turns_are`](super::ModelScript::turns_are) in the test.

use super::heard::ReceivedRequest;

/// Whether no person and no tool is waiting for the answer.
pub(super) fn is_one(heard: &ReceivedRequest) -> bool {
    let newest = heard.messages.last();
    let told = newest.is_some_and(|message| message.blocks.iter().any(|block| is_order(block)));
    told || (heard.tools.is_empty() && newest.is_none_or(|message| message.tool_results.is_empty()))
}

/// Whether a text sends the model on an errand.
pub(super) fn is_order(block: &str) -> bool {
    ORDERS.iter().any(|order| block.trim_start().starts_with(order))
}

const ORDERS: &[&str] = &[
    // Codex: whether a command may run.
    "The following is the Codex agent history",
    // Qwen: whether a command may run; what to remember; what the person may want to say next.
    "## Pending tool call to classify",
    "Managed memory has",
    "[SUGGESTION MODE",
    // opencode: a title for the conversation.
    "Generate a title for this conversation",
];
