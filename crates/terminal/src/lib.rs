//! Persistent shells on keepers: sessions, commands, the pool.
//!
//! The runtime is one synchronous value, [`Runtime`], that a loop of the caller's choice turns: nothing here blocks,
//! starts a thread or knows an async runtime, except [`Handle`], which turns one on a thread of its own. Commands run
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
    Call, Chunk, Create, Event, ExecId, Execute, Finished, OutputPiece, OutputRange, Reply, RunResult,
    SessionInfo, Size, State, Stats, Ticket,
};
pub use error::{Code, TerminalError};
pub use handle::{Client, Flow, Handle, Listener};
pub use room::AnswerPermit;
pub use runtime::{Config, Limits, Own, Runtime, Wait};
pub use rustix::event::epoll::EventFlags;
pub use screen::{ScreenSource, ScreenText, draw};
pub use session::{SessionId, SessionMeta, session_places};
pub use shell::Shell;
pub use text::{Utf8Pieces, whole_characters};
