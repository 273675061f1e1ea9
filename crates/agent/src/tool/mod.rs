//! Executes tool calls: arguments become an invocation, and its result becomes a bounded observation.
//!
//! Reading order: [`arguments`], [`script`] and [`invocation`] (from the call to the command), [`one_shot`], [`execution`]
//! and [`recorder`] (the execution and its records), and [`observation`] (the text for the model). [`workbench`] is the
//! interface for the loop. Programs that run across calls are in [`crate::session`].

pub mod arguments;
pub mod bad_call;
pub mod execution;
pub mod invocation;
pub mod observation;
pub mod one_shot;
pub mod recorder;
pub mod script;
pub mod workbench;

pub(crate) mod clock;

pub use arguments::RawArguments;
pub use bad_call::InvalidToolCall;
pub use observation::{ToolCallResult, ToolSessionChange, ToolStatus};
pub use workbench::{FormerSessions, ProgramState, RecoveredCall, ToolError, ToolSetup, ToolWorkbench};
