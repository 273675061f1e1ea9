//! A scripted model server on the loopback interface, to which real agent programs connect in tests.
//!
//! It supports four protocols of current agent programs, with and without streaming, answers as a [`ModelScript`]
//! specifies, and records each request. It is fast, free and deterministic, so a test can prove which content an agent
//! program sends, repeats or loses after a crash. It has its own thread and runtime, so that tests without async can
//! use it.
//!
//! The start and configuration of agent programs and the interpretation of their output are elsewhere.
//!
//! ```
//! use abide_testkit::model::{ModelScript, ModelServer, ScriptedAnswer};
//!
//! let script = ModelScript::new().when(|request| request.prompt_contains("list"), ScriptedAnswer::shell("ls"));
//! let server = ModelServer::start(script);
//! assert!(server.url("/v1").starts_with("http://127.0.0.1:"));
//! assert_eq!(server.turns().len(), 0);
//! ```

mod agent;
mod answer;
mod answer_pace;
mod anthropic;
mod chat;
mod default_answer;
mod gate;
mod gemini;
mod json;
mod message_order;
mod received;
mod record;
mod reply;
mod request_rules;
mod responses;
mod script;
mod server;
mod side_request;
mod sse;
mod tool;
mod user_text;
mod watched_value;
mod wire;

pub use agent::write_agent;
pub use answer::{AnswerUsage, ScriptedAnswer};
pub use gate::TestGate;
pub use message_order::faults;
pub use received::{MessageRole, ReceivedMessage, ReceivedRequest, ReceivedToolCall, ReceivedToolResult};
pub use record::{AnswerEnd, AnswerSource, ModelExchange, OtherRequest};
pub use script::ModelScript;
pub use server::ModelServer;
pub use wire::ModelProtocol;
