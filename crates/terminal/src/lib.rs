//! Persistent shells on keepers: sessions, commands, the pool.
//!
//! The runtime is one synchronous value, [`TerminalRuntime`], that a loop of the caller's choice turns: nothing here blocks,
//! starts a thread or knows an async runtime, except [`RuntimeHandle`], which turns one on a thread of its own. Commands run
//! and are timed in the keepers, so a runtime that dies loses nothing but its memory.
//!
//! Not here: JSON, transports, and how a process is started.

mod call;
mod clock;
mod dialect;
mod error;
#[cfg(feature = "failpoints")]
pub mod failpoint;
#[cfg(not(feature = "failpoints"))]
mod failpoint;
mod handle;
mod room;
mod runtime;
mod screen;
mod session;
mod shell;
mod text;

pub use abide_keeper::launch::KeeperLauncher;
pub use abide_keeper::protocol::{MAX_PAGE_BYTES, OutputStream};
pub use call::{
    CallTicket, CommandExit, CreateSessionRequest, ExecChunk, ExecId, ExecRequest, ExecResult, OutputPiece,
    OutputRange, RuntimeStats, SessionInfo, SessionState, TerminalCall, TerminalEvent, TerminalReply,
    TerminalSize,
};
pub use error::{TerminalError, TerminalErrorCode};
pub use handle::{ClientFlow, EventListener, RuntimeClient, RuntimeHandle};
pub use room::AnswerPermit;
pub use runtime::{ExternalFd, RuntimeWait, TerminalConfig, TerminalLimits, TerminalRuntime};
pub use rustix::event::epoll::EventFlags;
pub use screen::{ScreenSource, ScreenText, draw};
pub use session::{SessionId, SessionMeta, session_places};
pub use shell::ShellProgram;
pub use text::{Utf8Pieces, whole_characters};
