//! An answer prepared for any protocol: texts and calls with their ids, and token counts.

use serde_json::Value;

use super::{
    answer::{AnswerPart, AnswerUsage},
    received::ReceivedRequest,
    tool,
};

#[derive(Debug)]
pub(super) struct PreparedReply<'a> {
    pub model: &'a str,
    /// The part of the ids that is unique to this reply within a test.
    pub id_suffix: String,
    pub parts: Vec<ReplyPart>,
    pub usage: AnswerUsage,
    /// Replaces the true finish reason.
    pub finish: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReplyPart {
    Text(String),
    Call { id: String, tool: String, args: Value },
}

impl<'a> PreparedReply<'a> {
    pub(super) fn new(
        request: &'a ReceivedRequest,
        port: u16,
        parts: &[AnswerPart],
        usage: Option<AnswerUsage>,
    ) -> Self {
        // The port is part of the mark, because a session may continue with another server.
        let mark = format!("{port}_{}", request.index);
        let mut reply_parts = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let id = format!("call_{mark}_{index}");
            match part {
                AnswerPart::Say(text) => reply_parts.push(ReplyPart::Text(text.clone())),
                AnswerPart::Call { tool, args } => {
                    reply_parts.push(ReplyPart::Call { id, tool: tool.clone(), args: args.clone() });
                }
                AnswerPart::Shell(command) => reply_parts.push(match tool::shell(request, command) {
                    Some((tool, args)) => ReplyPart::Call { id, tool, args },
                    None => ReplyPart::Text(format!("NO SHELL among {}", request.tools.join(", "))),
                }),
            }
        }
        let usage = usage.unwrap_or_else(|| AnswerUsage { input: tokens(&request.raw), output: 10 });
        Self { model: &request.model, id_suffix: mark, parts: reply_parts, usage, finish: None }
    }

    pub(super) fn has_calls(&self) -> bool {
        self.parts.iter().any(|reply_part| matches!(reply_part, ReplyPart::Call { .. }))
    }

    /// Returns all texts, without the calls.
    pub(super) fn text(&self) -> String {
        let text = self.parts.iter().filter_map(|reply_part| match reply_part {
            ReplyPart::Text(text) => Some(text.as_str()),
            ReplyPart::Call { .. } => None,
        });
        text.collect()
    }
}

/// Returns an approximate number of tokens; the same request always has the same number.
pub(super) fn tokens(raw: &Value) -> u64 {
    let bytes = u64::try_from(raw.to_string().len()).unwrap_or(u64::MAX);
    bytes / 4 + 1
}

/// Splits a text into the pieces in which it is streamed: at least 12 bytes each, and about 24 pieces at most.
pub(super) fn chunks(text: &str) -> Vec<&str> {
    let size = (text.len() / 24).max(12);
    let mut chunks = Vec::new();
    let mut rest = text;
    while rest.len() > size {
        let mut cut = size;
        while !rest.is_char_boundary(cut) {
            cut += 1;
        }
        let (chunk, after) = rest.split_at(cut);
        chunks.push(chunk);
        rest = after;
    }
    if !rest.is_empty() {
        chunks.push(rest);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_join_to_the_text_they_were() {
        for text in ["", "a", "hello there, how are you?", "äöü ".repeat(400).as_str()] {
            let chunks = chunks(text);
            assert_eq!(chunks.concat(), text);
            assert!(chunks.len() <= 30);
        }
    }
}
