//! The client for chat completions on OpenAI-compatible servers.
//!
//! Reading order: [`ChatMessage`] and [`ModelRequest`] (the request), [`ModelReply`] (the reply), [`ModelError`]
//! (failures, by the possible reaction), [`ModelClient`] (requests with retries); then the parts of the client:
//! `endpoint`, `connect`, `stream_decoder` with `tool_calls`, `refusal`, `retry_policy`.
//!
//! The messages are built from the journal, in `context`. There is no code for a single provider, except for deviations
//! of servers that claim compatibility.

mod client;
mod connect;
mod endpoint;
mod error;
mod json_depth;
mod key;
mod message;
mod refusal;
mod reply;
mod request;
mod retry_policy;
mod stream_decoder;
mod tool_calls;

pub use client::ModelClient;
pub(crate) use endpoint::check as check_base_url;
pub use error::ModelError;
pub use key::ApiKey;
pub use message::{ChatMessage, MAX_TOOL_NAME_CHARS, ModelToolCall, is_wire_name};
pub(crate) use message::{parse_arguments, wire_name};
pub use reply::{FinishReason, ModelReply, ReplyDelta, TokenUsage};
pub use request::ModelRequest;
pub use retry_policy::RetryPolicy;
