//! What can be asked of a runtime, and what it answers: plain values without any encoding.

use abide_keeper::protocol::OutputStream;

use crate::error::TerminalError;
use crate::room::AnswerPermit;
use crate::screen::ScreenSource;
use crate::session::SessionId;

/// The caller's name for a call.
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
            TerminalError::new(crate::TerminalErrorCode::InvalidParams, format!("{text} is no exec id"))
        })
    }
}

/// A call.
#[derive(Debug)]
pub enum TerminalCall {
    /// A new session.
    Create(CreateSessionRequest),
    /// How one session is.
    Info(SessionId),
    /// How all are.
    List,
    /// The end of a session.
    Destroy {
        /// Which.
        session: SessionId,
        /// At once.
        force: bool,
    },
    /// A command; answered when it has ended.
    Run(ExecRequest),
    /// A command; answered at once, then chunks.
    Stream(ExecRequest),
    /// Text for the running command.
    Input {
        /// Which session.
        session: SessionId,
        /// The text.
        bytes: Vec<u8>,
        /// Nothing more will come.
        eof: bool,
    },
    /// Stop the running command.
    Cancel(SessionId),
    /// What was printed.
    Output(OutputRange),
    /// What the terminal shows.
    Screen(SessionId),
    /// A new size for the terminal.
    Resize(SessionId, TerminalSize),
    /// How the runtime is.
    Stats,
}

impl TerminalCall {
    /// The session that it is about, if there is one yet.
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
    /// How many bytes of output it carries, for flow control.
    pub fn output_bytes(&self) -> usize {
        match self {
            Self::Chunk(_, ExecChunk::Output { bytes, .. }) => bytes.len(),
            Self::Chunk(_, ExecChunk::Exit(_)) => 0,
            Self::Reply(_, answer) => match &**answer {
                Ok(TerminalReply::Ran(result)) => result.kept.iter().map(Vec::len).sum(),
                Ok(TerminalReply::Output(piece)) => piece.bytes.len(),
                Ok(TerminalReply::Screen(screen)) => screen.len(),
                Ok(TerminalReply::Sessions(all)) => all.len() * SESSION_BYTES,
                Ok(
                    TerminalReply::Session(_)
                    | TerminalReply::Destroyed(_)
                    | TerminalReply::Streaming(..)
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
    /// The output that it carries.
    pub fn outputs(&self) -> [&[u8]; 2] {
        match self {
            Self::Chunk(_, ExecChunk::Output { bytes, .. }) => [bytes, &[]],
            Self::Chunk(_, ExecChunk::Exit(_)) => [&[]; 2],
            Self::Reply(_, answer) => match &**answer {
                Ok(TerminalReply::Ran(ExecResult { kept: [stdout, stderr], .. })) => [stdout, stderr],
                Ok(TerminalReply::Output(piece)) => [&piece.bytes, &[]],
                Ok(TerminalReply::Screen(screen)) => [&screen.bytes, &[]],
                Ok(
                    TerminalReply::Sessions(_)
                    | TerminalReply::Session(_)
                    | TerminalReply::Destroyed(_)
                    | TerminalReply::Streaming(..)
                    | TerminalReply::Done
                    | TerminalReply::Cancelled
                    | TerminalReply::Stats(_),
                )
                | Err(_) => [&[]; 2],
            },
        }
    }

    /// Keeps the room of its output until it is dropped, if it has any.
    pub(crate) fn keep(&mut self, permit: &mut Option<AnswerPermit>) {
        let Self::Reply(_, answer) = self else { return };
        match &mut **answer {
            Ok(TerminalReply::Ran(result)) => result.room = permit.take(),
            Ok(TerminalReply::Output(piece)) => piece.room = permit.take(),
            Ok(TerminalReply::Screen(screen)) => screen.room = permit.take(),
            Ok(
                TerminalReply::Sessions(_)
                | TerminalReply::Session(_)
                | TerminalReply::Destroyed(_)
                | TerminalReply::Streaming(..)
                | TerminalReply::Done
                | TerminalReply::Cancelled
                | TerminalReply::Stats(_),
            )
            | Err(_) => {}
        }
    }
}

/// About how many bytes a session takes in a list.
const SESSION_BYTES: usize = 512;

/// A new session.
#[derive(Debug, Default)]
pub struct CreateSessionRequest {
    /// The shell; the configured one if none is given.
    pub shell: Option<String>,
    /// The working directory; the runtime's if none is given.
    pub cwd: Option<String>,
    /// On top of the runtime's environment.
    pub env: Vec<(String, String)>,
    /// For people.
    pub name: Option<String>,
    /// A terminal instead of pipes.
    pub pty: Option<TerminalSize>,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Height in lines.
    pub rows: u16,
    /// Width in columns.
    pub cols: u16,
}

impl TerminalSize {
    /// The most lines, and the most columns. A screen of this size takes about 32 MiB to draw.
    pub const MOST: u16 = 1_000;

    /// This size, if a terminal may have it.
    pub(crate) fn checked(self) -> Result<Self, TerminalError> {
        let allowed = 1..=Self::MOST;
        if allowed.contains(&self.rows) && allowed.contains(&self.cols) {
            return Ok(self);
        }
        let message =
            format!("a terminal has 1 to {} rows and columns, not {} x {}", Self::MOST, self.rows, self.cols);
        Err(TerminalError::new(crate::TerminalErrorCode::InvalidParams, message))
    }

    /// The nearest size that a terminal may have; for sizes that were stored before there was a bound.
    pub(crate) fn bounded(self) -> Self {
        Self { rows: self.rows.clamp(1, Self::MOST), cols: self.cols.clamp(1, Self::MOST) }
    }
}

/// A command.
#[derive(Debug)]
pub struct ExecRequest {
    /// Where.
    pub session: SessionId,
    /// The text.
    pub command: String,
    /// When it is stopped.
    pub timeout_ms: Option<u64>,
    /// What it reads.
    pub stdin: Option<Vec<u8>>,
    /// Variables for this command only.
    pub env: Vec<(String, String)>,
    /// How much of each stream the result carries.
    pub max_output_bytes: Option<u64>,
}

/// A stretch of what a command printed.
#[derive(Debug)]
pub struct OutputRange {
    /// Which session.
    pub session: SessionId,
    /// Which command.
    pub exec: ExecId,
    /// Which stream.
    pub stream: OutputStream,
    /// From which byte.
    pub offset: u64,
    /// How many bytes at most; never more than a page of 1 MiB.
    pub limit: u64,
}

/// What a runtime says.
#[derive(Debug)]
pub enum TerminalEvent {
    /// The answer to a call.
    Reply(CallTicket, Box<Result<TerminalReply, TerminalError>>),
    /// Output of a streamed command.
    Chunk(CallTicket, ExecChunk),
}

/// The answer to a call.
#[derive(Debug)]
pub enum TerminalReply {
    /// To create and info.
    Session(SessionInfo),
    /// To list.
    Sessions(Vec<SessionInfo>),
    /// To destroy.
    Destroyed(SessionId),
    /// To run.
    Ran(ExecResult),
    /// To stream.
    Streaming(SessionId, ExecId),
    /// To input and resize.
    Done,
    /// To cancel.
    Cancelled,
    /// To output.
    Output(OutputPiece),
    /// To screen.
    Screen(ScreenSource),
    /// To stats.
    Stats(RuntimeStats),
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// Its shell has not answered yet.
    Creating,
    /// It takes a command.
    Idle,
    /// A command runs.
    Running,
    /// It has ended.
    Terminated,
}

impl SessionState {
    /// As it is written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Idle => "IDLE",
            Self::Running => "RUNNING",
            Self::Terminated => "TERMINATED",
        }
    }
}

/// How a session is. Times are microseconds since the epoch.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// Its id.
    pub session: SessionId,
    /// Its name.
    pub name: Option<String>,
    /// Its state.
    pub state: SessionState,
    /// Its shell.
    pub shell: String,
    /// Where it began.
    pub cwd: String,
    /// The shell's pid.
    pub pid: u32,
    /// When it began.
    pub created_at: u64,
    /// The names of the variables that were set for it, never their values.
    pub env_keys: Vec<String>,
    /// When it last did something.
    pub last_activity_at: u64,
    /// How many commands it was given.
    pub command_count: u64,
    /// The running command and when it began.
    pub running: Option<(ExecId, u64)>,
    /// How the shell ended, if it has.
    pub exit_code: Option<i32>,
    /// Whether it has a terminal.
    pub pty: bool,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct CommandExit {
    /// Exit code, 128 + n for death by signal n.
    pub exit_code: i32,
    /// How long it took.
    pub duration_us: u64,
    /// Its time was over.
    pub timed_out: bool,
    /// Somebody stopped it.
    pub cancelled: bool,
    /// The shell was replaced by a new one, because it could not be called back from this command or the one before:
    /// variables, functions and options are those of a new session.
    pub shell_restarted: bool,
}

/// The result of a command.
#[derive(Debug)]
pub struct ExecResult {
    /// Which command.
    pub exec: ExecId,
    /// How it ended.
    pub finished: CommandExit,
    /// The first bytes of its output: stdout, stderr.
    pub kept: [Vec<u8>; 2],
    /// How many bytes each stream had.
    pub printed: [u64; 2],
    /// The room that its bytes take in the runtime until it is dropped.
    pub room: Option<AnswerPermit>,
}

/// A piece of a streamed command's output.
#[derive(Debug)]
pub enum ExecChunk {
    /// Bytes.
    Output {
        /// Which stream.
        stream: OutputStream,
        /// Where in it.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The last: how it ended, or why that is not known.
    Exit(Result<CommandExit, TerminalError>),
}

/// A stretch of output, and how it stands in the whole.
#[derive(Debug)]
pub struct OutputPiece {
    /// Where the bytes begin; later than asked if those before were dropped.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How many bytes the stream has had so far.
    pub printed: u64,
    /// How many of its first bytes are no longer kept.
    pub dropped: u64,
    /// How the command ended, if it has.
    pub finished: Option<CommandExit>,
    /// The room that its bytes take in the runtime until it is dropped.
    pub room: Option<AnswerPermit>,
}

/// How the runtime is.
#[derive(Debug, Clone)]
pub struct RuntimeStats {
    /// Living sessions.
    pub sessions: usize,
    /// Those in which a command runs.
    pub running: usize,
    /// Ended ones that are still remembered.
    pub terminated: usize,
    /// The most that may live.
    pub max_sessions: usize,
    /// Commands given since the runtime began.
    pub commands: u64,
    /// Sessions found again at the start.
    pub adopted: u64,
}
