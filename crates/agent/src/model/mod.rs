//! What is said to a model and what it says back: chat completions on any OpenAI-compatible server.
//!
//! Reading order: [`ChatMessage`] and [`ModelRequest`] (what is sent), [`ModelReply`] (what comes back), [`ModelError`] (what goes
//! wrong, by what can be done about it), [`ModelClient`] (asking, with retries); then how the client does it: `endpoint`,
//! `connect`, `hearing` with `sse` and `calls`, `refusal`, `patience`.
//!
//! Not here: which messages are sent; those are built from the journal. And no knowledge of any one provider beyond the
//! habits of servers that call themselves compatible.

mod calls;
mod client;
mod connect;
mod endpoint;
mod error;
mod hearing;
mod key;
mod message;
mod nesting;
mod patience;
mod refusal;
mod reply;
mod request;
mod sse;

pub use client::ModelClient;
pub(crate) use endpoint::check as check_base_url;
pub use error::ModelError;
pub use key::ApiKey;
pub use message::{ChatMessage, LONGEST_NAME, ModelToolCall, is_wire_name};
pub(crate) use message::{parse_arguments, wire_name};
pub use patience::RetryPolicy;
pub use reply::{FinishReason, ModelReply, ReplyDelta, TokenUsage};
pub use request::ModelRequest;
