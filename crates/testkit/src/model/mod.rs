//! A model that is not one: a server on the loopback interface that real agent programs talk to in tests.
//!
//! It speaks the four wires of today's agent programs, streaming or not, says what a [`ModelScript`] tells it to say, and
//! remembers everything that it heard. It answers at once, costs nothing and never varies, so a test can prove what an
//! agent program sends, repeats, forgets or does after a crash. It owns a thread and a runtime, so tests without async
//! use it as well.
//!
//! Not here: any knowledge of how an agent program is started or configured, and any judgement of what it prints.
//!
//! ```
//! use abide_testkit::model::{Answer, ModelServer, Script};
//!
//! let script = Script::new().when(|heard| heard.asks("list"), Answer::shell("ls"));
//! let server = ModelServer::start(script);
//! assert!(server.url("/v1").starts_with("http://127.0.0.1:"));
//! assert_eq!(server.turns().len(), 0);
//! ```

mod answer;
mod anthropic;
mod chat;
mod errand;
mod form;
mod gate;
mod gemini;
mod heard;
mod json;
mod order;
mod pace;
mod prose;
mod record;
mod reply;
mod responses;
mod script;
mod server;
mod sse;
mod stub;
mod tool;
mod watched;
mod wire;

pub use answer::{AnswerUsage, ScriptedAnswer};
pub use gate::TestGate;
pub use heard::{MessageRole, ReceivedMessage, ReceivedRequest, ReceivedToolCall, ReceivedToolResult};
pub use order::faults;
pub use record::{AnswerEnd, AnswerSource, ModelExchange, OtherRequest};
pub use script::ModelScript;
pub use server::ModelServer;
pub use wire::ModelProtocol;
