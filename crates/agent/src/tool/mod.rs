//! A call's arguments become an invocation, and what came of it a bounded observation.
//!
//! Reading order: what the model asked for ([`arguments`], [`script`], [`invocation`]), how that is
//! carried out once and kept ([`once`], [`execution`], [`recorder`]), and what the model sees of it ([`observation`]).
//! [`workbench`] is the one door for the loop. Not here: programs that stay between calls; those are
//! [`crate::session`].

pub mod arguments;
pub mod bad_call;
pub mod execution;
pub mod invocation;
pub mod observation;
pub mod once;
pub mod recorder;
pub mod script;
pub mod workbench;

pub(crate) mod clock;

pub use arguments::RawArguments;
pub use bad_call::InvalidToolCall;
pub use observation::{ToolCallResult, ToolSessionChange, ToolStatus};
pub use workbench::{FormerSessions, ProgramState, RecoveredCall, ToolError, ToolSetup, ToolWorkbench};
