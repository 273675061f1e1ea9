//! Direct access to sessions through their keepers, without a runtime: for commands that perform one operation and exit.
//!
//! A session that is created by a detached runtime belongs to its home, so any later process can use it this way.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use abide_keeper::{
    KeeperError,
    client::{
        CommandEnd, CommandError, EndMode, KeeperConnection, KeeperRequests, OutputConsumer, run_command,
        timeouts::LOOKUP_TIMEOUT_MS,
    },
    protocol::{
        CommandInput, CommandResult, KeeperRefusal, KeeperRequest, KeeperResponse, KeeperStatus, OutputChunk,
        OutputStream, ShellCommand,
    },
};

use crate::{
    call::{CommandOutput, SessionInfo, TerminalSize},
    session::{SessionId, SessionMeta, session_dirs},
};

/// A connection to the keeper of one session.
#[derive(Debug)]
pub struct DirectSession {
    keeper: KeeperConnection,
}

/// A command to run in a session.
#[derive(Debug)]
pub struct DirectCommand {
    pub text: String,
    /// Timeout in milliseconds; None for no timeout.
    pub timeout_ms: Option<u64>,
    pub output: CommandOutput,
}

/// The end of a command.
#[derive(Debug)]
pub struct DirectCommandEnd {
    /// Without output if that was streamed. If [`abide_keeper::protocol::ExecOutcome::lost`] is set, the shell was lost
    /// during the command and the exit code means nothing.
    pub result: CommandResult,
    /// The shell could not be recovered and was replaced.
    pub shell_restarted: bool,
}

/// An event of an attached terminal.
#[derive(Debug, PartialEq, Eq)]
pub enum AttachedEvent {
    Output(Vec<u8>),
    /// The session has ended.
    Ended,
}

#[derive(Debug, thiserror::Error)]
pub enum DirectSessionError {
    #[error("there is no such session")]
    NotFound,
    #[error("several sessions have this name")]
    Ambiguous,
    #[error("{0}")]
    Refused(KeeperRefusal),
    #[error("the session has ended")]
    Ended,
    #[error("cannot write the output")]
    OutputUnwritable(#[source] io::Error),
    #[error(transparent)]
    Keeper(KeeperError),
}

/// Returns the sessions below this directory of keepers that reply.
pub fn list_sessions(keepers: &Path) -> Vec<SessionInfo> {
    connections(keepers).map(|(id, _, status)| session_info(&id, &status)).collect()
}

impl DirectSession {
    /// Finds a session by its id, or by its name if it is unique.
    pub fn find(keepers: &Path, session: &str) -> Result<Self, DirectSessionError> {
        let mut same_name = Vec::new();
        for (id, keeper, status) in connections(keepers) {
            if id == session {
                return Ok(Self { keeper });
            }
            if meta(&status).name.as_deref() == Some(session) {
                same_name.push(keeper);
            }
        }
        match (same_name.pop(), same_name.is_empty()) {
            (Some(keeper), true) => Ok(Self { keeper }),
            (Some(_), false) => Err(DirectSessionError::Ambiguous),
            (None, _) => Err(DirectSessionError::NotFound),
        }
    }

    /// Runs a command to its end, without input. `on_output` gets streamed output.
    pub fn run(
        &mut self,
        command: DirectCommand,
        on_output: &mut dyn FnMut(OutputStream, &[u8]) -> io::Result<()>,
    ) -> Result<DirectCommandEnd, DirectSessionError> {
        let (keep, follow) = command.output.keep_and_follow();
        let command = ShellCommand {
            text: command.text.into_bytes(),
            input: CommandInput::Nothing,
            timeout_ms: command.timeout_ms,
            keep,
            follow,
        };
        match run_command(&mut self.keeper, command, &mut OutputWriter(on_output)) {
            Ok(CommandEnd::Finished { result, shell_restarted, .. }) => {
                Ok(DirectCommandEnd { result, shell_restarted })
            }
            Ok(CommandEnd::Lost { .. }) => Err(DirectSessionError::Ended),
            Err(CommandError::Keeper(error)) => Err(error.into()),
            Err(CommandError::Consumer(error)) => Err(DirectSessionError::OutputUnwritable(error)),
        }
    }

    /// Ends the session, and waits until its keeper has exited. `force` skips the grace period.
    pub fn end(mut self, force: bool) -> Result<(), DirectSessionError> {
        self.keeper.end(if force { EndMode::Forced } else { EndMode::Graceful })?;
        Ok(())
    }

    /// Attaches to the terminal of the session: sets its size, then reports its whole output. Refused for a session
    /// without a terminal. Then [`DirectSession::next_event`] is called whenever the descriptor is readable.
    pub fn attach(&mut self, size: TerminalSize) -> Result<(), DirectSessionError> {
        KeeperRequests::resize(&mut self.keeper, size.rows, size.cols)?;
        self.send(KeeperRequest::Follow { job: 0, from: [0; 2] })
    }

    /// Changes the size of the terminal, without waiting.
    pub fn resize(&mut self, size: TerminalSize) -> Result<(), DirectSessionError> {
        self.send(KeeperRequest::Resize { rows: size.rows, cols: size.cols })
    }

    /// Sends typed bytes, without waiting.
    pub fn send_input(&mut self, bytes: &[u8]) -> Result<(), DirectSessionError> {
        self.send(KeeperRequest::Input { bytes: bytes.to_vec(), eof: false })
    }

    /// Returns the next event of an attached terminal; `None` if there is none now.
    pub fn next_event(&mut self) -> Result<Option<AttachedEvent>, DirectSessionError> {
        loop {
            let response = match self.keeper.available_response() {
                Ok(Some(response)) => response,
                Ok(None) => return Ok(None),
                Err(KeeperError::NoKeeper { .. }) => return Ok(Some(AttachedEvent::Ended)),
                Err(error) => return Err(error.into()),
            };
            match response.news {
                KeeperResponse::Output(output) => return Ok(Some(AttachedEvent::Output(output.bytes))),
                KeeperResponse::Exited(_) | KeeperResponse::Ended(_) => {
                    return Ok(Some(AttachedEvent::Ended));
                }
                KeeperResponse::Done
                | KeeperResponse::Refused(_)
                | KeeperResponse::Status(_)
                | KeeperResponse::Started(_)
                | KeeperResponse::Ran(_)
                | KeeperResponse::Piece(_)
                | KeeperResponse::Settled(_)
                | KeeperResponse::Written { .. }
                | KeeperResponse::ShellRestarted(_)
                | KeeperResponse::ChildResumed(_) => {}
            }
        }
    }

    fn send(&mut self, request: KeeperRequest) -> Result<(), DirectSessionError> {
        self.keeper.send(request)?;
        Ok(())
    }
}

/// Passes the output of a command on.
struct OutputWriter<'a>(&'a mut dyn FnMut(OutputStream, &[u8]) -> io::Result<()>);

impl OutputConsumer for OutputWriter<'_> {
    type Error = io::Error;

    fn output(&mut self, chunk: &OutputChunk, _lost_bytes: u64) -> io::Result<()> {
        (self.0)(chunk.stream, &chunk.bytes)
    }
}

impl From<KeeperError> for DirectSessionError {
    fn from(error: KeeperError) -> Self {
        match error {
            KeeperError::Refused(refusal) => Self::Refused(refusal),
            other @ (KeeperError::NoKeeper { .. }
            | KeeperError::Unresponsive { .. }
            | KeeperError::Protocol(_)
            | KeeperError::System { .. }) => Self::Keeper(other),
        }
    }
}

impl AsFd for DirectSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.keeper.as_fd()
    }
}

/// Connects to the keepers of all sessions that reply.
fn connections(keepers: &Path) -> impl Iterator<Item = (String, KeeperConnection, KeeperStatus)> {
    session_dirs(keepers).into_iter().filter_map(|(id, keeper_dir)| {
        let mut keeper = KeeperConnection::attach(keeper_dir).ok()?;
        let status = keeper.status(LOOKUP_TIMEOUT_MS).ok()?;
        Some((id, keeper, status))
    })
}

fn meta(status: &KeeperStatus) -> SessionMeta {
    serde_json::from_slice(&status.meta).unwrap_or_default()
}

fn session_info(id: &str, status: &KeeperStatus) -> SessionInfo {
    let mut info = SessionInfo::new(SessionId::from_text(id), meta(status), status.created_at);
    info.update(status);
    info
}
