//! The calls to a runtime and their results, without an encoding. Values of a keeper keep their types
//! ([`abide_keeper::protocol`]).

use abide_keeper::protocol::{
    CommandResult, ExecOutcome, JobId, JobOutputRange, KeeperStatus, OutputChunk, OutputPage,
};

use crate::error::{TerminalError, TerminalErrorCode};
use crate::response_budget::AnswerPermit;
use crate::screen::ScreenSource;
use crate::session::{SessionId, SessionMeta};
use crate::ticket::{CallId, CallTicket, FailureEvent, TerminalCallResult};

/// The number of a command in its session, from 1, as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecId(pub JobId);

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
            TerminalError::new(TerminalErrorCode::InvalidParams, format!("{text} is not an exec id"))
        })
    }
}

/// A call to the runtime, with the ticket for its result.
#[derive(Debug)]
pub enum TerminalCall {
    Create(CreateSessionRequest, CallTicket<SessionInfo>),
    /// Returns the state of a session.
    Info(SessionId, CallTicket<SessionInfo>),
    /// Returns the state of all sessions.
    List(CallTicket<Vec<SessionInfo>>),
    Destroy {
        session: SessionId,
        /// Skips the grace period.
        force: bool,
        ticket: CallTicket<DestroyedSession>,
    },
    /// Runs a command; the result follows its end.
    Run(ExecRequest, CallTicket<ExecResult>),
    /// Runs a command; the result comes at once, then chunks of output.
    Stream(ExecRequest, CallTicket<StartedStream>),
    /// Writes input to the running command.
    Input {
        session: SessionId,
        bytes: Vec<u8>,
        /// Closes the input after these bytes.
        eof: bool,
        ticket: CallTicket<RequestDone>,
    },
    /// Stops the running command.
    Cancel(SessionId, CallTicket<StopRequested>),
    /// Reads output of a command.
    Output(SessionId, JobOutputRange, CallTicket<OutputPiece>),
    /// Returns the screen of the terminal.
    Screen(SessionId, CallTicket<ScreenSource>),
    /// Changes the size of the terminal.
    Resize(SessionId, TerminalSize, CallTicket<RequestDone>),
    /// Returns statistics of the runtime.
    Stats(CallTicket<RuntimeStats>),
}

impl TerminalCall {
    pub fn id(&self) -> CallId {
        self.id_and_failure().0
    }

    pub(crate) fn id_and_failure(&self) -> (CallId, FailureEvent) {
        match self {
            Self::Create(_, ticket) | Self::Info(_, ticket) => ticket.id_and_failure(),
            Self::List(ticket) => ticket.id_and_failure(),
            Self::Destroy { ticket, .. } => ticket.id_and_failure(),
            Self::Run(_, ticket) => ticket.id_and_failure(),
            Self::Stream(_, ticket) => ticket.id_and_failure(),
            Self::Input { ticket, .. } | Self::Resize(_, _, ticket) => ticket.id_and_failure(),
            Self::Cancel(_, ticket) => ticket.id_and_failure(),
            Self::Output(_, _, ticket) => ticket.id_and_failure(),
            Self::Screen(_, ticket) => ticket.id_and_failure(),
            Self::Stats(ticket) => ticket.id_and_failure(),
        }
    }

    /// The session of the call; None for calls without an existing session.
    pub(crate) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Info(session, _)
            | Self::Destroy { session, .. }
            | Self::Input { session, .. }
            | Self::Cancel(session, _)
            | Self::Output(session, ..)
            | Self::Screen(session, _)
            | Self::Resize(session, ..) => Some(session),
            Self::Run(request, _) | Self::Stream(request, _) => Some(&request.session),
            Self::Create(..) | Self::List(_) | Self::Stats(_) => None,
        }
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
        Err(TerminalError::new(TerminalErrorCode::InvalidParams, message))
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

/// How the output of a command is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutput {
    /// Passed on while the command runs.
    Streamed,
    /// Returned with the result: the first bytes of each stream, up to this number.
    Collected { max_bytes: u64 },
}

impl CommandOutput {
    /// The fields of a request to a keeper.
    pub(crate) fn keep_and_follow(self) -> (u64, bool) {
        match self {
            Self::Streamed => (0, true),
            Self::Collected { max_bytes } => (max_bytes, false),
        }
    }
}

/// An event of the runtime: the reply to a call, or output of a streamed command.
#[derive(Debug)]
pub enum TerminalEvent {
    Session(CallReply<SessionInfo>),
    Sessions(CallReply<Vec<SessionInfo>>),
    Destroyed(CallReply<DestroyedSession>),
    CommandFinished(CallReply<ExecResult>),
    StreamStarted(CallReply<StartedStream>),
    Done(CallReply<RequestDone>),
    StopRequested(CallReply<StopRequested>),
    Output(CallReply<OutputPiece>),
    Screen(CallReply<ScreenSource>),
    Stats(CallReply<RuntimeStats>),
    Chunk(CallTicket<StartedStream>, ExecChunk),
}

/// The reply to a call.
#[derive(Debug)]
pub struct CallReply<R> {
    pub ticket: CallTicket<R>,
    pub result: Box<Result<R, TerminalError>>,
}

impl<R> CallReply<R> {
    fn success(&self) -> Option<&R> {
        self.result.as_ref().as_ref().ok()
    }

    fn success_mut(&mut self) -> Option<&mut R> {
        self.result.as_mut().as_mut().ok()
    }
}

impl TerminalEvent {
    /// The call that the event belongs to.
    pub fn call_id(&self) -> CallId {
        match self {
            Self::Chunk(ticket, _) => ticket.id(),
            Self::Session(reply) => reply.ticket.id(),
            Self::Sessions(reply) => reply.ticket.id(),
            Self::Destroyed(reply) => reply.ticket.id(),
            Self::CommandFinished(reply) => reply.ticket.id(),
            Self::StreamStarted(reply) => reply.ticket.id(),
            Self::Done(reply) => reply.ticket.id(),
            Self::StopRequested(reply) => reply.ticket.id(),
            Self::Output(reply) => reply.ticket.id(),
            Self::Screen(reply) => reply.ticket.id(),
            Self::Stats(reply) => reply.ticket.id(),
        }
    }

    /// The output in the event.
    pub fn outputs(&self) -> [&[u8]; 2] {
        let outputs = match self {
            Self::Chunk(_, ExecChunk::Output(chunk)) => Some([&chunk.bytes[..], &[]]),
            Self::CommandFinished(reply) => {
                reply.success().map(|run| [&run.result.stdout[..], &run.result.stderr])
            }
            Self::Output(reply) => reply.success().map(|piece| [&piece.page.bytes[..], &[]]),
            Self::Screen(reply) => reply.success().map(|screen| [&screen.bytes[..], &[]]),
            Self::Chunk(_, ExecChunk::Exit(_))
            | Self::Session(_)
            | Self::Sessions(_)
            | Self::Destroyed(_)
            | Self::StreamStarted(_)
            | Self::Done(_)
            | Self::StopRequested(_)
            | Self::Stats(_) => None,
        };
        outputs.unwrap_or_default()
    }

    /// Number of output bytes in the event, for flow control.
    pub fn output_bytes(&self) -> usize {
        if let Self::Sessions(reply) = self {
            return reply.success().map_or(0, |all| all.iter().map(SessionInfo::bytes).sum());
        }
        self.outputs().into_iter().map(<[u8]>::len).sum()
    }

    /// Whether the event is the reply to its call, and not output of a stream.
    pub fn is_reply(&self) -> bool {
        !matches!(self, Self::Chunk(..))
    }

    /// Whether further events of the same call follow.
    pub(crate) fn is_continued(&self) -> bool {
        match self {
            Self::StreamStarted(reply) => reply.result.is_ok(),
            Self::Chunk(_, chunk) => matches!(chunk, ExecChunk::Output(_)),
            Self::Session(_)
            | Self::Sessions(_)
            | Self::Destroyed(_)
            | Self::CommandFinished(_)
            | Self::Done(_)
            | Self::StopRequested(_)
            | Self::Output(_)
            | Self::Screen(_)
            | Self::Stats(_) => false,
        }
    }

    /// Attaches the permit for the memory of the output; it is held until the reply is dropped.
    pub(crate) fn attach_permit(&mut self, permit: &mut Option<AnswerPermit>) {
        let holder = match self {
            Self::CommandFinished(reply) => reply.success_mut().map(|run| &mut run.permit),
            Self::Output(reply) => reply.success_mut().map(|piece| &mut piece.permit),
            Self::Screen(reply) => reply.success_mut().map(|screen| &mut screen.permit),
            Self::Session(_)
            | Self::Sessions(_)
            | Self::Destroyed(_)
            | Self::StreamStarted(_)
            | Self::Done(_)
            | Self::StopRequested(_)
            | Self::Stats(_)
            | Self::Chunk(..) => None,
        };
        if let Some(holder) = holder {
            *holder = permit.take();
        }
    }
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
    pub state: SessionState,
    pub meta: SessionMeta,
    pub pid: u32,
    pub created_at: u64,
    pub last_activity_at: u64,
    /// Number of commands so far.
    pub command_count: u64,
    /// The running command and its start time.
    pub running: Option<(JobId, u64)>,
    /// Set if the shell has exited.
    pub exit_code: Option<i32>,
}

/// Approximate size of a session in a list besides its texts, in bytes.
const LISTED_SESSION_BYTES: usize = 512;

impl SessionInfo {
    /// A session that is being created.
    pub(crate) fn new(session: SessionId, meta: SessionMeta, now: u64) -> Self {
        Self {
            session,
            state: SessionState::Creating,
            meta,
            pid: 0,
            created_at: now,
            last_activity_at: now,
            command_count: 0,
            running: None,
            exit_code: None,
        }
    }

    /// Updates the session from the keeper's status.
    pub(crate) fn update(&mut self, status: &KeeperStatus) {
        self.pid = status.child.pid;
        self.created_at = status.created_at;
        self.last_activity_at = status.last_activity_at;
        self.command_count = status.jobs;
        self.running = status.running;
        self.exit_code = status.exit.as_ref().map(|exit| exit.code);
        self.state = match (&status.exit, &status.running) {
            (Some(_), _) => SessionState::Terminated,
            (None, Some(_)) => SessionState::Running,
            (None, None) => SessionState::Idle,
        };
    }

    fn bytes(&self) -> usize {
        let SessionMeta { name, shell, cwd, env_keys, pty: _ } = &self.meta;
        let names = env_keys.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>();
        LISTED_SESSION_BYTES + name.as_ref().map_or(0, String::len) + shell.len() + cwd.len() + names
    }
}

/// The end of a command that is known.
#[derive(Debug, Clone)]
pub struct CommandExit {
    pub outcome: ExecOutcome,
    /// The shell was replaced because it could not be recovered from this command or the one before. Variables,
    /// functions and options are those of a new session.
    pub shell_restarted: bool,
}

#[derive(Debug)]
pub struct ExecResult {
    pub result: CommandResult,
    /// See [`CommandExit::shell_restarted`].
    pub shell_restarted: bool,
    /// Holds the memory of the output until it is dropped.
    pub(crate) permit: Option<AnswerPermit>,
}

/// A streamed command that has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedStream {
    pub session: SessionId,
    pub exec: ExecId,
}

/// A part of a streamed command's output.
#[derive(Debug)]
pub enum ExecChunk {
    Output(OutputChunk),
    /// The last chunk: the exit of the command, or an error if it is unknown.
    Exit(Result<CommandExit, TerminalError>),
}

/// A range of output.
#[derive(Debug)]
pub struct OutputPiece {
    pub page: OutputPage,
    /// Holds the memory of the output until it is dropped.
    pub(crate) permit: Option<AnswerPermit>,
}

/// A session that has ended, or ended before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestroyedSession(pub SessionId);

/// The keeper has carried out the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestDone;

/// The keeper has begun to stop the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopRequested;

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

/// Pairs results with the events that deliver them.
macro_rules! call_results {
    ($($event:ident: $result:ty,)*) => {$(
        impl TerminalCallResult for $result {
            fn event(reply: CallReply<Self>) -> TerminalEvent {
                TerminalEvent::$event(reply)
            }

            fn from_event(event: TerminalEvent) -> Option<Result<Self, TerminalError>> {
                if let TerminalEvent::$event(reply) = event { Some(*reply.result) } else { None }
            }
        }
    )*};
}

call_results! {
    Session: SessionInfo,
    Sessions: Vec<SessionInfo>,
    Destroyed: DestroyedSession,
    CommandFinished: ExecResult,
    StreamStarted: StartedStream,
    Done: RequestDone,
    StopRequested: StopRequested,
    Output: OutputPiece,
    Screen: ScreenSource,
    Stats: RuntimeStats,
}
