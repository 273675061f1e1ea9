//! A reply of a model, and the pieces that are shown while it arrives.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::message::ModelToolCall;

/// A complete reply. It has a text, calls or both.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReply {
    pub text: Option<String>,
    /// In the order of the model, each with a name and an id that is unique in this reply. A truncated reply
    /// ([`FinishReason::Length`], [`FinishReason::ContentFilter`]) has only calls with complete arguments.
    pub calls: Vec<ModelToolCall>,
    pub finish_reason: FinishReason,
    /// `None` if the server does not report it.
    pub usage: Option<TokenUsage>,
}

/// The reason why the reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The reply is complete.
    Stop,
    /// The model requests tool calls.
    ToolCalls,
    /// The limit of output tokens was reached. The text may end anywhere.
    Length,
    /// The provider suppressed the rest.
    ContentFilter,
    /// An unknown reason; the reply is complete.
    Other(String),
}

/// Token counts of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    pub input_tokens: u64,
    /// Includes the tokens of the model's reasoning.
    pub output_tokens: u64,
    /// The cached part of the input, if the server reports it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
}

/// A piece of a reply for display. Only the [`ModelReply`] is used for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyDelta<'a> {
    Text(&'a str),
    /// A part of the model's reasoning, if the server sends it.
    Reasoning(&'a str),
    /// A call of this tool begins.
    Call(&'a str),
    /// The attempt failed and is repeated after a wait. All earlier pieces are void.
    Retry {
        attempt: u32,
        max_attempts: u32,
        wait: Duration,
        reason: &'a str,
    },
}

impl TokenUsage {
    /// The sum of input and output tokens.
    pub fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
