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
    launch::KeeperConnection,
    protocol::{
        CommandInput, ExecOutcome, KeeperRefusal, KeeperRequest, KeeperResponse, KeeperStatus, OutputStream,
        ShellCommand, TaggedRequest, TaggedResponse,
    },
};

use crate::{
    call::{CommandExit, ExecId, ExecResult, SessionInfo, SessionState, TerminalSize},
    session::{SessionId, SessionMeta, session_dirs},
};

/// Timeout of a status request. A live keeper replies in less than a millisecond, unless the machine is overloaded.
const STATUS_TIMEOUT_MS: u64 = 2_000;
const RESIZE_TIMEOUT_MS: u64 = 5_000;
/// No timeout.
const NO_TIMEOUT_MS: u64 = u64::MAX / 4_000;

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
    pub output: DirectOutput,
}

/// How the output of a command is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOutput {
    /// Passed on while the command runs.
    Streamed,
    /// Returned with the result: the first bytes of each stream, up to this number.
    Collected { max_bytes: u64 },
}

/// The end of a command.
#[derive(Debug)]
pub struct DirectCommandEnd {
    /// Without output if that was streamed.
    pub result: ExecResult,
    /// The reason if the shell was lost during the command. The exit code means nothing then.
    pub lost: Option<String>,
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
    Keeper(#[from] KeeperError),
}

/// Returns the sessions below this directory of keepers that reply.
pub fn list_sessions(keepers: &Path) -> Vec<SessionInfo> {
    connections(keepers).map(|(id, _, status)| session_info(&id, &status)).collect()
}

impl DirectSession {
    /// Finds a session by its id, or by its name if it is unique.
    pub fn find(keepers: &Path, session: &str) -> Result<Self, DirectSessionError> {
        let mut found = Vec::new();
        for (id, keeper, status) in connections(keepers) {
            if id == session {
                return Ok(Self { keeper });
            }
            if meta(&status).name.as_deref() == Some(session) {
                found.push(keeper);
            }
        }
        match (found.pop(), found.is_empty()) {
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
        const RUN: u64 = 1;
        let (keep, follow) = match command.output {
            DirectOutput::Streamed => (0, true),
            DirectOutput::Collected { max_bytes } => (max_bytes, false),
        };
        let run = ShellCommand {
            text: command.text.into_bytes(),
            input: CommandInput::Nothing,
            timeout_ms: command.timeout_ms,
            keep,
            follow,
        };
        self.send(RUN, KeeperRequest::Run(run))?;
        let mut shell_restarted = false;
        loop {
            let answer = self.keeper.socket.wait::<TaggedResponse>(NO_TIMEOUT_MS)?;
            let answer = answer.ok_or(DirectSessionError::Ended)?;
            match answer.news {
                KeeperResponse::ShellRestarted(_) => shell_restarted = true,
                _ if answer.tag != RUN => {}
                KeeperResponse::Output(output) => {
                    on_output(output.stream, &output.bytes).map_err(DirectSessionError::OutputUnwritable)?;
                }
                KeeperResponse::Ran(ran) => {
                    let outputs = [ran.stdout, ran.stderr];
                    return Ok(command_end(ran.outcome, shell_restarted, outputs, ran.printed));
                }
                KeeperResponse::Ended(outcome) => {
                    return Ok(command_end(outcome, shell_restarted, [vec![], vec![]], [0; 2]));
                }
                KeeperResponse::Refused(refusal) => return Err(DirectSessionError::Refused(refusal)),
                KeeperResponse::Done
                | KeeperResponse::Status(_)
                | KeeperResponse::Started(_)
                | KeeperResponse::Piece(_)
                | KeeperResponse::Exited(_)
                | KeeperResponse::Settled(_) => {}
            }
        }
    }

    /// Ends the session, and waits until its keeper has exited. `force` skips the grace period.
    pub fn end(mut self, force: bool) -> Result<(), DirectSessionError> {
        self.request(KeeperRequest::End { force }, NO_TIMEOUT_MS)?;
        // The keeper process exits last.
        while !self.keeper.socket.is_closed() {
            self.keeper.socket.wait::<TaggedResponse>(STATUS_TIMEOUT_MS)?;
        }
        Ok(())
    }

    /// Attaches to the terminal of the session: sets its size, then reports its whole output. Refused for a session
    /// without a terminal. Then [`DirectSession::next_event`] is called whenever the descriptor is readable.
    pub fn attach(&mut self, size: TerminalSize) -> Result<(), DirectSessionError> {
        let resize = KeeperRequest::Resize { rows: size.rows, cols: size.cols };
        self.request(resize, RESIZE_TIMEOUT_MS)?;
        self.send(2, KeeperRequest::Follow { job: 0, from: [0; 2] })
    }

    /// Changes the size of the terminal, without waiting.
    pub fn resize(&mut self, size: TerminalSize) -> Result<(), DirectSessionError> {
        self.send(3, KeeperRequest::Resize { rows: size.rows, cols: size.cols })
    }

    /// Sends typed bytes, without waiting.
    pub fn send_input(&mut self, bytes: &[u8]) -> Result<(), DirectSessionError> {
        self.send(4, KeeperRequest::Input { bytes: bytes.to_vec(), eof: false })
    }

    /// Returns the next event of an attached terminal; `None` if there is none now.
    pub fn next_event(&mut self) -> Result<Option<AttachedEvent>, DirectSessionError> {
        while let Some(answer) = self.keeper.socket.receive::<TaggedResponse>()? {
            match answer.news {
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
                | KeeperResponse::ShellRestarted(_) => {}
            }
        }
        Ok(self.keeper.socket.is_closed().then_some(AttachedEvent::Ended))
    }

    fn send(&mut self, tag: u64, act: KeeperRequest) -> Result<(), DirectSessionError> {
        Ok(self.keeper.socket.send(&TaggedRequest { tag, act })?)
    }

    /// Sends a request and waits for its reply.
    fn request(&mut self, act: KeeperRequest, timeout_ms: u64) -> Result<(), DirectSessionError> {
        match self.keeper.request(1, act, timeout_ms)? {
            KeeperResponse::Refused(refusal) => Err(DirectSessionError::Refused(refusal)),
            KeeperResponse::Done
            | KeeperResponse::Status(_)
            | KeeperResponse::Started(_)
            | KeeperResponse::Ran(_)
            | KeeperResponse::Output(_)
            | KeeperResponse::Ended(_)
            | KeeperResponse::Piece(_)
            | KeeperResponse::Exited(_)
            | KeeperResponse::Settled(_)
            | KeeperResponse::ShellRestarted(_) => Ok(()),
        }
    }
}

impl AsFd for DirectSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.keeper.socket.as_fd()
    }
}

/// Connects to the keepers of all sessions that reply.
fn connections(keepers: &Path) -> impl Iterator<Item = (String, KeeperConnection, KeeperStatus)> {
    session_dirs(keepers).into_iter().filter_map(|(id, keeper_dir)| {
        let mut keeper = KeeperConnection::attach(keeper_dir).ok()?;
        let status = keeper.status(STATUS_TIMEOUT_MS).ok()?;
        Some((id, keeper, status))
    })
}

fn meta(status: &KeeperStatus) -> SessionMeta {
    serde_json::from_slice(&status.meta).unwrap_or_default()
}

fn session_info(id: &str, status: &KeeperStatus) -> SessionInfo {
    let SessionMeta { name, shell, cwd, env_keys, pty } = meta(status);
    let state = match (&status.exit, &status.running) {
        (Some(_), _) => SessionState::Terminated,
        (None, Some(_)) => SessionState::Running,
        (None, None) => SessionState::Idle,
    };
    SessionInfo {
        session: SessionId::from_text(id),
        name,
        state,
        shell,
        cwd,
        pid: status.child.pid,
        created_at: status.created_at,
        env_keys,
        last_activity_at: status.last_activity_at,
        command_count: status.jobs,
        running: status.running.map(|(job, started_at)| (ExecId(job), started_at)),
        exit_code: status.exit.as_ref().map(|exit| exit.code),
        pty: pty.is_some(),
    }
}

fn command_end(
    outcome: ExecOutcome,
    shell_restarted: bool,
    outputs: [Vec<u8>; 2],
    stream_bytes: [u64; 2],
) -> DirectCommandEnd {
    let exit = CommandExit {
        exit_code: outcome.code,
        duration_us: outcome.duration_us,
        timed_out: outcome.timed_out,
        cancelled: outcome.cancelled,
        shell_restarted,
    };
    let exec = ExecId(outcome.job);
    let result = ExecResult { exec, exit, outputs, stream_bytes, permit: None };
    DirectCommandEnd { result, lost: outcome.lost }
}
