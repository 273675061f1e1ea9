//! Progress texts about the parts of the model's messages.

use abide_ports::engine::FactKind;

use super::messages::{ClaudeBlock, ClaudeToolInput};
use crate::line_protocol::FactSink;

/// Reports a part of the model's message as progress. Text of subagents is not part of the answer.
pub(super) fn report_block(block: &ClaudeBlock<'_>, by_subagent: bool, facts: &mut FactSink) {
    match (block.kind.as_ref(), block.text.get()) {
        ("text", Some(text)) if !by_subagent => facts.push(FactKind::Text(text.to_owned())),
        ("thinking", _) => facts.push(FactKind::Progress("thinks".to_owned())),
        ("tool_use" | "server_tool_use", _) => {
            facts.push(FactKind::Progress(call_summary(block.name.or_empty(), &block.input)));
        }
        _ => {}
    }
}

pub(super) fn call_summary(tool: &str, input: &ClaudeToolInput<'_>) -> String {
    input.summary().map_or_else(|| tool.to_owned(), |summary| format!("{tool}: {summary}"))
}
