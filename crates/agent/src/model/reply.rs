//! What a model answered, and the pieces in which it was told while it came.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::message::ModelToolCall;

/// A whole answer. It says something, or calls something, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReply {
    pub text: Option<String>,
    /// In the order in which the model made them, each with a name and an id that is unique in this answer. An answer
    /// that was cut short ([`FinishReason::Length`], [`FinishReason::ContentFilter`]) has only those whose arguments are whole.
    pub calls: Vec<ModelToolCall>,
    pub finish: FinishReason,
    /// What it has cost, if the server says so.
    pub usage: Option<TokenUsage>,
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It said all that it wanted to say.
    Stop,
    /// It wants something carried out.
    ToolCalls,
    /// The limit of output tokens was reached in the middle. What there is may end anywhere.
    Length,
    /// The provider suppressed the rest.
    ContentFilter,
    /// A reason that is not known here; the answer is whole.
    Other(String),
}

/// Tokens, as counted by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// What was sent.
    pub input_tokens: u64,
    /// What was answered, reasoning included.
    pub output_tokens: u64,
    /// The part of the input that the server had seen before, where it says so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
}

/// Something to show while an answer is under way. None of it counts: only the [`ModelReply`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyDelta<'a> {
    /// More of the text.
    Text(&'a str),
    /// More of what the model thinks to itself, where the server shows it.
    Reasoning(&'a str),
    /// The model begins a call of this tool.
    Call(&'a str),
    /// It did not work and is tried again after a wait; all pieces before this one are void.
    Retry { attempt: u32, of: u32, wait: Duration, why: &'a str },
}

impl TokenUsage {
    /// All tokens of the exchange.
    pub fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
