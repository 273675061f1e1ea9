//! Persistent shells on keepers: sessions, commands, the pool.
//!
//! The runtime is one synchronous value, [`TerminalRuntime`], driven by a loop of the caller. It does not block, start
//! threads or use an async runtime. [`RuntimeHandle`] drives one on a thread of its own. Commands run in the keepers,
//! which also enforce their timeouts. So the death of a runtime loses only its memory.
//!
//! JSON and transports are in other crates; processes are started by the keeper crate.

mod call;
mod clock;
mod dialect;
pub mod direct;
mod error;
mod handle;
mod response_budget;
mod runtime;
mod screen;
mod session;
mod shell;
mod text;
mod ticket;

pub use abide_keeper::launch::KeeperLauncher;
pub use abide_keeper::protocol::{
    CommandResult, ExecOutcome, JobOutputRange, MAX_PAGE_BYTES, OutputChunk, OutputPage, OutputStream,
};
pub use call::{
    CallReply, CommandExit, CommandOutput, CreateSessionRequest, DestroyedSession, ExecChunk, ExecId,
    ExecRequest, ExecResult, OutputPiece, RequestDone, RuntimeStats, SessionInfo, SessionState,
    StartedStream, StopRequested, TerminalCall, TerminalEvent, TerminalSize,
};
pub use error::{TerminalError, TerminalErrorCode};
pub use handle::{ClientFlow, EventListener, RuntimeClient, RuntimeHandle};
pub use response_budget::AnswerPermit;
pub use runtime::{ExternalFd, MAX_META_BYTES, RuntimeWait, TerminalConfig, TerminalLimits, TerminalRuntime};
pub use rustix::event::epoll::EventFlags;
pub use screen::{ScreenSource, ScreenText, draw};
pub use session::{SessionId, SessionMeta, session_dirs};
pub use shell::ShellProgram;
pub use text::{Utf8Pieces, complete_utf8_prefix};
pub use ticket::{CallId, CallTicket, TerminalCallResult};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct TerminalReadme;
