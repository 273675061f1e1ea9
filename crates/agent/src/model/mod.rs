//! What is said to a model and what it says back: chat completions on any OpenAI-compatible server.
//!
//! Reading order: [`Message`] and [`Request`] (what is sent), [`Reply`] (what comes back), [`ModelError`] (what goes
//! wrong, by what can be done about it).
//!
//! Not here: which messages are sent; those are built from the journal. And no knowledge of any one provider beyond the
//! habits of servers that call themselves compatible.

mod error;
mod message;
mod reply;
mod request;

pub use error::ModelError;
pub use message::{LONGEST_NAME, Message, ToolCall, is_wire_name};
pub use reply::{Finish, Piece, Reply, Usage};
pub use request::{AskUsage, Request};
