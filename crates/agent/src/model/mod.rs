//! What is said to a model and what it says back.
//!
//! Not here: which messages are sent; those are built from the journal.

/// One message of a conversation with the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    System(String),
    User(String),
    Assistant { text: Option<String>, calls: Vec<ToolCall> },
    Tool { call_id: String, text: String },
}

/// A call that the model wants carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON text as the model sent it, maybe broken.
    pub arguments: String,
}
