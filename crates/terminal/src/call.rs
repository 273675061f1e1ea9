//! The calls to a runtime and their replies, as plain values without an encoding.

use abide_keeper::protocol::OutputStream;

use crate::error::TerminalError;
use crate::response_budget::AnswerPermit;
use crate::screen::ScreenSource;
use crate::session::SessionId;

/// Identifies a call; chosen by the caller.
pub type CallTicket = u64;

/// The number of a command in its session, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecId(pub u64);

impl std::fmt::Display for ExecId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "e-{}", self.0)
    }
}

impl std::str::FromStr for ExecId {
    type Err = TerminalError;

    fn from_str(text: &str) -> Result<Self, TerminalError> {
        let number = text.strip_prefix("e-").and_then(|number| number.parse().ok());
        number.map(Self).ok_or_else(|| {
            TerminalError::new(crate::TerminalErrorCode::InvalidParams, format!("{text} is not an exec id"))
        })
    }
}

/// A call to the runtime.
#[derive(Debug)]
pub enum TerminalCall {
    Create(CreateSessionRequest),
    /// Returns the state of a session.
    Info(SessionId),
    /// Returns the state of all sessions.
    List,
    /// Ends a session.
    Destroy {
        session: SessionId,
        /// Skips the grace period.
        force: bool,
    },
    /// Runs a command; the reply follows its end.
    Run(ExecRequest),
    /// Runs a command; the reply comes at once, then chunks of output.
    Stream(ExecRequest),
    /// Writes input to the running command.
    Input {
        session: SessionId,
        bytes: Vec<u8>,
        /// Closes the input after these bytes.
        eof: bool,
    },
    /// Stops the running command.
    Cancel(SessionId),
    /// Reads output of a command.
    Output(OutputRange),
    /// Returns the screen of the terminal.
    Screen(SessionId),
    /// Changes the size of the terminal.
    Resize(SessionId, TerminalSize),
    /// Returns statistics of the runtime.
    Stats,
}

impl TerminalCall {
    /// The session of the call; None for calls without an existing session.
    pub(crate) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Info(session)
            | Self::Destroy { session, .. }
            | Self::Input { session, .. }
            | Self::Cancel(session)
            | Self::Screen(session)
            | Self::Resize(session, _) => Some(session),
            Self::Run(execute) | Self::Stream(execute) => Some(&execute.session),
            Self::Output(range) => Some(&range.session),
            Self::Create(_) | Self::List | Self::Stats => None,
        }
    }
}

impl TerminalEvent {
    /// Number of output bytes in the event, for flow control.
    pub fn output_bytes(&self) -> usize {
        match self {
            Self::Chunk(_, ExecChunk::Output { bytes, .. }) => bytes.len(),
            Self::Chunk(_, ExecChunk::Exit(_)) => 0,
            Self::Reply(_, answer) => match &**answer {
                Ok(TerminalReply::CommandFinished(result)) => result.outputs.iter().map(Vec::len).sum(),
                Ok(TerminalReply::Output(piece)) => piece.bytes.len(),
                Ok(TerminalReply::Screen(screen)) => screen.len(),
                Ok(TerminalReply::Sessions(all)) => all.iter().map(SessionInfo::bytes).sum(),
                Ok(
                    TerminalReply::Session(_)
                    | TerminalReply::Destroyed(_)
                    | TerminalReply::StreamStarted(..)
                    | TerminalReply::Done
                    | TerminalReply::Cancelled
                    | TerminalReply::Stats(_),
                )
                | Err(_) => 0,
            },
        }
    }
}

impl TerminalEvent {
    /// The output in the event.
    pub fn outputs(&self) -> [&[u8]; 2] {
        match self {
            Self::Chunk(_, ExecChunk::Output { bytes, .. }) => [bytes, &[]],
            Self::Chunk(_, ExecChunk::Exit(_)) => [&[]; 2],
            Self::Reply(_, answer) => match &**answer {
                Ok(TerminalReply::CommandFinished(ExecResult { outputs: [stdout, stderr], .. })) => {
                    [stdout, stderr]
                }
                Ok(TerminalReply::Output(piece)) => [&piece.bytes, &[]],
                Ok(TerminalReply::Screen(screen)) => [&screen.bytes, &[]],
                Ok(
                    TerminalReply::Sessions(_)
                    | TerminalReply::Session(_)
                    | TerminalReply::Destroyed(_)
                    | TerminalReply::StreamStarted(..)
                    | TerminalReply::Done
                    | TerminalReply::Cancelled
                    | TerminalReply::Stats(_),
                )
                | Err(_) => [&[]; 2],
            },
        }
    }

    /// Attaches the permit for the memory of the output; it is held until the reply is dropped.
    pub(crate) fn attach_permit(&mut self, permit: &mut Option<AnswerPermit>) {
        let Self::Reply(_, answer) = self else { return };
        match &mut **answer {
            Ok(TerminalReply::CommandFinished(result)) => result.permit = permit.take(),
            Ok(TerminalReply::Output(piece)) => piece.permit = permit.take(),
            Ok(TerminalReply::Screen(screen)) => screen.permit = permit.take(),
            Ok(
                TerminalReply::Sessions(_)
                | TerminalReply::Session(_)
                | TerminalReply::Destroyed(_)
                | TerminalReply::StreamStarted(..)
                | TerminalReply::Done
                | TerminalReply::Cancelled
                | TerminalReply::Stats(_),
            )
            | Err(_) => {}
        }
    }
}

/// Approximate size of a session in a list besides its texts, in bytes.
const LISTED_SESSION_BYTES: usize = 512;

impl SessionInfo {
    fn bytes(&self) -> usize {
        let names = self.env_keys.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>();
        LISTED_SESSION_BYTES
            + self.name.as_ref().map_or(0, String::len)
            + self.shell.len()
            + self.cwd.len()
            + names
    }
}

/// The parameters of a new session.
#[derive(Debug, Default)]
pub struct CreateSessionRequest {
    /// The shell; the configured one by default.
    pub shell: Option<String>,
    /// The working directory; that of the runtime by default.
    pub cwd: Option<String>,
    /// Added to the environment of the runtime.
    pub env: Vec<(String, String)>,
    /// A display name.
    pub name: Option<String>,
    /// Size of the terminal; None for pipes.
    pub pty: Option<TerminalSize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Height in lines.
    pub rows: u16,
    /// Width in columns.
    pub cols: u16,
}

impl TerminalSize {
    /// Maximum number of lines and of columns. Drawing a screen of this size takes about 32 MiB.
    pub const MAX_ROWS_OR_COLS: u16 = 1_000;

    /// Returns this size, or an error if it is out of range.
    pub(crate) fn checked(self) -> Result<Self, TerminalError> {
        let allowed = 1..=Self::MAX_ROWS_OR_COLS;
        if allowed.contains(&self.rows) && allowed.contains(&self.cols) {
            return Ok(self);
        }
        let message = format!(
            "a terminal has 1 to {} rows and columns, not {} x {}",
            Self::MAX_ROWS_OR_COLS,
            self.rows,
            self.cols
        );
        Err(TerminalError::new(crate::TerminalErrorCode::InvalidParams, message))
    }

    /// The nearest valid size, for sizes stored before the bound existed.
    pub(crate) fn clamped(self) -> Self {
        Self {
            rows: self.rows.clamp(1, Self::MAX_ROWS_OR_COLS),
            cols: self.cols.clamp(1, Self::MAX_ROWS_OR_COLS),
        }
    }
}

/// A command to run.
#[derive(Debug)]
pub struct ExecRequest {
    pub session: SessionId,
    pub command: String,
    /// Timeout in milliseconds; None for no timeout.
    pub timeout_ms: Option<u64>,
    /// Standard input; end-of-file by default.
    pub stdin: Option<Vec<u8>>,
    /// Variables for this command only.
    pub env: Vec<(String, String)>,
    /// Maximum bytes of each stream in the result.
    pub max_output_bytes: Option<u64>,
}

/// A range of a command's output.
#[derive(Debug)]
pub struct OutputRange {
    pub session: SessionId,
    pub exec: ExecId,
    pub stream: OutputStream,
    pub offset: u64,
    /// Maximum number of bytes, up to a page of 1 MiB.
    pub limit: u64,
}

/// An event of the runtime.
#[derive(Debug)]
pub enum TerminalEvent {
    /// The reply to a call.
    Reply(CallTicket, Box<Result<TerminalReply, TerminalError>>),
    /// Output of a streamed command.
    Chunk(CallTicket, ExecChunk),
}

/// The reply to a call.
#[derive(Debug)]
pub enum TerminalReply {
    /// Reply to [`TerminalCall::Create`] and [`TerminalCall::Info`].
    Session(SessionInfo),
    /// Reply to [`TerminalCall::List`].
    Sessions(Vec<SessionInfo>),
    /// Reply to [`TerminalCall::Destroy`].
    Destroyed(SessionId),
    /// Reply to [`TerminalCall::Run`].
    CommandFinished(ExecResult),
    /// Reply to [`TerminalCall::Stream`].
    StreamStarted(SessionId, ExecId),
    /// Reply to [`TerminalCall::Input`] and [`TerminalCall::Resize`].
    Done,
    /// Reply to [`TerminalCall::Cancel`].
    Cancelled,
    /// Reply to [`TerminalCall::Output`].
    Output(OutputPiece),
    /// Reply to [`TerminalCall::Screen`].
    Screen(ScreenSource),
    /// Reply to [`TerminalCall::Stats`].
    Stats(RuntimeStats),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// The shell has not reported yet.
    Creating,
    /// Ready for a command.
    Idle,
    /// A command is running.
    Running,
    /// The session has ended.
    Terminated,
}

impl SessionState {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Idle => "IDLE",
            Self::Running => "RUNNING",
            Self::Terminated => "TERMINATED",
        }
    }
}

/// The state of a session. Times are microseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    pub session: SessionId,
    pub name: Option<String>,
    pub state: SessionState,
    pub shell: String,
    /// The initial working directory.
    pub cwd: String,
    /// The shell's pid.
    pub pid: u32,
    pub created_at: u64,
    /// The names of the variables set for the session, without their values.
    pub env_keys: Vec<String>,
    pub last_activity_at: u64,
    /// Number of commands so far.
    pub command_count: u64,
    /// The running command and its start time.
    pub running: Option<(ExecId, u64)>,
    /// Set if the shell has exited.
    pub exit_code: Option<i32>,
    /// Whether the session has a terminal.
    pub pty: bool,
}

/// The end of a command: exit code, duration and the reason of a stop.
#[derive(Debug, Clone)]
pub struct CommandExit {
    /// Exit code; 128 + n for a death by signal n.
    pub exit_code: i32,
    pub duration_us: u64,
    /// The command was stopped by its timeout.
    pub timed_out: bool,
    /// The command was stopped by a request.
    pub cancelled: bool,
    /// The shell was replaced because it could not be recovered from this command or the one before. Variables,
    /// functions and options are those of a new session.
    pub shell_restarted: bool,
}

#[derive(Debug)]
pub struct ExecResult {
    pub exec: ExecId,
    pub exit: CommandExit,
    /// The first bytes of stdout and stderr.
    pub outputs: [Vec<u8>; 2],
    /// Total length of each stream, in bytes.
    pub stream_bytes: [u64; 2],
    /// Holds the memory of the output until it is dropped.
    pub permit: Option<AnswerPermit>,
}

/// A part of a streamed command's output.
#[derive(Debug)]
pub enum ExecChunk {
    /// Bytes of a stream.
    Output {
        stream: OutputStream,
        /// Offset of the first byte in the stream.
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The last chunk: the exit of the command, or an error if it is unknown.
    Exit(Result<CommandExit, TerminalError>),
}

/// A range of output, and its position in the stream.
#[derive(Debug)]
pub struct OutputPiece {
    /// Offset of the first byte. Larger than requested if earlier bytes have been dropped.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Length of the stream so far, in bytes.
    pub stream_bytes: u64,
    /// Number of dropped bytes at the start of the stream.
    pub dropped_bytes: u64,
    /// Set if the command has ended.
    pub exit: Option<CommandExit>,
    /// Holds the memory of the output until it is dropped.
    pub permit: Option<AnswerPermit>,
}

/// Statistics of the runtime.
#[derive(Debug, Clone)]
pub struct RuntimeStats {
    /// Number of living sessions.
    pub sessions: usize,
    /// Number of sessions with a running command.
    pub running: usize,
    /// Number of ended sessions that are still known.
    pub terminated: usize,
    /// Maximum number of living sessions.
    pub max_sessions: usize,
    /// Number of commands since the start of the runtime.
    pub commands: u64,
    /// Number of sessions adopted from dead runtimes.
    pub adopted: u64,
}
