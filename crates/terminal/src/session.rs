//! A session in its runtime: its keeper, the pending replies, and the last known state.

use std::collections::BTreeMap;
use std::path::Path;

use abide_keeper::client::{FIRST_RESPONSE_TAG, KeeperConnection, timeouts::END_TIMEOUT_MS};
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::protocol::{
    CommandResult, ExecOutcome, JobId, JobOutputRange, KeeperRequest, KeeperResponse, KeeperStatus,
    MAX_PAGE_BYTES, OutputPage, OutputStream, RequestTag, TaggedResponse,
};
use serde::{Deserialize, Serialize};

use crate::call::{
    CallTicket, CommandExit, ExecChunk, ExecId, ExecResult, OutputPiece, SessionInfo, SessionState,
    TerminalEvent, TerminalReply, TerminalSize,
};
use crate::clock::{boottime_millis, unix_micros};
use crate::error::{TerminalError, TerminalErrorCode};
use crate::response_budget::AnswerPermit;
use crate::screen::ScreenSource;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(String);

/// Maximum length of an id, in bytes. Random ids have eight.
const MAX_ID_BYTES: usize = 64;

impl SessionId {
    /// A random id: `s-` and six letters or digits.
    pub(crate) fn random() -> Self {
        Self(format!("s-{}", abide_os::random::name(6)))
    }

    /// An id from a client or a directory name. Longer text than any id is truncated; it identifies no session.
    pub fn from_text(text: &str) -> Self {
        Self(text.get(..text.floor_char_boundary(MAX_ID_BYTES)).unwrap_or_default().to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The directories of sessions among all keepers, selected by their names. Others, such as the keepers of runs, are
/// never read or swept.
pub fn session_dirs(keepers: &Path) -> Vec<(String, KeeperDir)> {
    KeeperDir::list(keepers).into_iter().filter(|(name, _)| name.starts_with("s-")).collect()
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Data about a session that its keeper stores for the next runtime.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SessionMeta {
    /// A display name.
    pub name: Option<String>,
    pub shell: String,
    /// The initial working directory.
    pub cwd: String,
    /// The names of the variables set for the session.
    pub env_keys: Vec<String>,
    /// Rows and columns of the terminal; None for pipes.
    pub pty: Option<(u16, u16)>,
}

/// A session and its pending replies.
#[derive(Debug)]
pub(crate) struct RuntimeSession {
    pub(crate) id: SessionId,
    pub(crate) meta: SessionMeta,
    pub(crate) keeper: Option<KeeperConnection>,
    pub(crate) watches_writable: bool,
    /// The keeper has confirmed the end of the session.
    pub(crate) end_confirmed: bool,
    pub(crate) creation_failed: bool,
    pub(crate) pending_replies: BTreeMap<RequestTag, PendingReply>,
    /// The permit of a partly read response.
    pub(crate) permit: Option<AnswerPermit>,
    /// When the keeper was first told to end, in milliseconds of [`boottime_millis`].
    pub(crate) ending_since: Option<u64>,
    state: SessionState,
    pid: u32,
    created_at: u64,
    pub(crate) last_activity_at: u64,
    command_count: u64,
    running_job: Option<(JobId, u64)>,
    exit_code: Option<i32>,
    /// The shell was replaced, and no result has reported it yet.
    shell_restarted: bool,
}

/// The call that waits for a keeper's response, and how the response is translated.
#[derive(Debug)]
pub(crate) enum PendingReply {
    Create(CallTicket),
    Info(CallTicket),
    Destroy(CallTicket),
    Run(CallTicket),
    Stream(CallTicket),
    Done(CallTicket),
    Cancel(CallTicket),
    Output(CallTicket),
    /// Asks for the length of a terminal's output, before its end is read.
    ScreenEnd(CallTicket),
    Screen(CallTicket),
    /// A command of an earlier runtime. No call waits for it.
    Inherited,
    /// No call waits for the response.
    Housekeeping,
}

impl PendingReply {
    fn ticket(&self) -> Option<CallTicket> {
        match self {
            Self::Create(ticket) | Self::Info(ticket) | Self::Destroy(ticket) | Self::Run(ticket) => {
                Some(*ticket)
            }
            Self::Stream(ticket) | Self::Done(ticket) | Self::Cancel(ticket) => Some(*ticket),
            Self::Output(ticket) | Self::ScreenEnd(ticket) | Self::Screen(ticket) => Some(*ticket),
            Self::Inherited | Self::Housekeeping => None,
        }
    }
}

impl RuntimeSession {
    pub(crate) fn new(id: SessionId, meta: SessionMeta, keeper: KeeperConnection) -> Self {
        let now = unix_micros();
        Self {
            id,
            meta,
            keeper: Some(keeper),
            watches_writable: false,
            end_confirmed: false,
            creation_failed: false,
            pending_replies: BTreeMap::new(),
            permit: None,
            ending_since: None,
            state: SessionState::Creating,
            pid: 0,
            created_at: now,
            last_activity_at: now,
            command_count: 0,
            running_job: None,
            exit_code: None,
            shell_restarted: false,
        }
    }

    pub(crate) fn state(&self) -> SessionState {
        if self.state == SessionState::Idle && self.running_job.is_some() {
            SessionState::Running
        } else {
            self.state
        }
    }

    pub(crate) fn info(&self) -> SessionInfo {
        SessionInfo {
            session: self.id.clone(),
            name: self.meta.name.clone(),
            state: self.state(),
            shell: self.meta.shell.clone(),
            cwd: self.meta.cwd.clone(),
            pid: self.pid,
            created_at: self.created_at,
            env_keys: self.meta.env_keys.clone(),
            last_activity_at: self.last_activity_at,
            command_count: self.command_count,
            running: self.running_job.map(|(job, at)| (ExecId(job), at)),
            exit_code: self.exit_code,
            pty: self.meta.pty.is_some(),
        }
    }

    /// Waits for the first response of a new keeper.
    pub(crate) fn expect_status(&mut self, ticket: CallTicket) {
        self.pending_replies.insert(FIRST_RESPONSE_TAG, PendingReply::Create(ticket));
    }

    /// Sends a request and registers its pending reply.
    pub(crate) fn send_request(
        &mut self,
        request: KeeperRequest,
        pending_reply: PendingReply,
    ) -> Result<(), TerminalError> {
        let gone = || {
            TerminalError::new(TerminalErrorCode::SessionTerminated, format!("session {} has ended", self.id))
        };
        let keeper = self.keeper.as_mut().ok_or_else(gone)?;
        if matches!(request, KeeperRequest::Run(_)) {
            self.last_activity_at = unix_micros();
        }
        if let KeeperRequest::End { .. } | KeeperRequest::EndExcept { .. } | KeeperRequest::Interrupt =
            request
        {
            // A command may have stopped the keeper of its session (SECURITY 10).
            keeper.resume();
        }
        if let KeeperRequest::End { .. } | KeeperRequest::EndExcept { .. } = request {
            self.ending_since.get_or_insert(boottime_millis());
        }
        // If the keeper has exited, the closed connection is about to be detected, and then all pending calls fail.
        let tag = keeper.send(request).map_err(|_| {
            TerminalError::new(TerminalErrorCode::InvalidParams, "the request is too large for a keeper")
        })?;
        self.pending_replies.insert(tag, pending_reply);
        Ok(())
    }

    /// The directory of a keeper that owes a response.
    pub(crate) fn awaited_keeper_dir(&self) -> Option<&KeeperDir> {
        let keeper = self.keeper.as_ref().filter(|_| !self.pending_replies.is_empty())?;
        Some(&keeper.keeper_dir)
    }

    /// The directory of a keeper that was told to end and exceeded the time limit.
    pub(crate) fn overdue_keeper_dir(&self) -> Option<KeeperDir> {
        let waited = boottime_millis().saturating_sub(self.ending_since?);
        let keeper = self.keeper.as_ref().filter(|_| waited > END_TIMEOUT_MS)?;
        Some(keeper.keeper_dir.clone())
    }

    /// Processes a response of the keeper; appends events for the callers.
    pub(crate) fn handle_response(&mut self, response: TaggedResponse, out: &mut Vec<TerminalEvent>) {
        let TaggedResponse { tag, news } = response;
        if let KeeperResponse::Exited(exit) = &news {
            self.exit_code = Some(exit.code);
            self.state = SessionState::Terminated;
            self.running_job = None;
            self.last_activity_at = unix_micros();
        }
        if let KeeperResponse::ShellRestarted(shell) = &news {
            self.pid = shell.pid;
            self.shell_restarted = true;
        }
        match (self.pending_replies.get(&tag), news) {
            (Some(PendingReply::Stream(ticket)), KeeperResponse::Started(job)) => {
                let ticket = *ticket;
                self.record_started(job);
                out.push(reply(ticket, Ok(TerminalReply::StreamStarted(self.id.clone(), ExecId(job)))));
            }
            (Some(PendingReply::Stream(ticket)), KeeperResponse::Output(output)) => {
                let chunk =
                    ExecChunk::Output { stream: output.stream, offset: output.offset, bytes: output.bytes };
                out.push(TerminalEvent::Chunk(*ticket, chunk));
            }
            // The reply follows when the keeper's connection has closed.
            (Some(PendingReply::Destroy(_)), KeeperResponse::Done) => {
                self.state = SessionState::Terminated;
                self.running_job = None;
                self.end_confirmed = true;
            }
            (Some(_), news) => {
                if let Some(waiting) = self.pending_replies.remove(&tag) {
                    self.complete_call(waiting, news, out);
                }
            }
            (None, _) => {}
        }
    }

    fn record_started(&mut self, job: JobId) {
        self.command_count = self.command_count.max(job);
        self.running_job = Some((job, unix_micros()));
    }

    fn complete_call(
        &mut self,
        pending_reply: PendingReply,
        response: KeeperResponse,
        out: &mut Vec<TerminalEvent>,
    ) {
        let ticket = pending_reply.ticket();
        let answer = match (pending_reply, response) {
            (PendingReply::Stream(ticket), KeeperResponse::Ended(outcome)) => {
                let finished = self.record_command_exit(&outcome);
                return out.push(TerminalEvent::Chunk(ticket, ExecChunk::Exit(finished)));
            }
            (pending_reply, KeeperResponse::Refused(refusal)) => {
                let mut error = TerminalError::from_refusal(&refusal);
                if matches!(pending_reply, PendingReply::Create(_)) {
                    self.creation_failed = true;
                    if error.code == TerminalErrorCode::Internal {
                        error.code = TerminalErrorCode::ShellFailed;
                    }
                }
                Err(error)
            }
            (PendingReply::Create(_) | PendingReply::Info(_), KeeperResponse::Status(status)) => {
                self.update_from_status(&status);
                Ok(TerminalReply::Session(self.info()))
            }
            (PendingReply::Run(_), KeeperResponse::Ran(ran)) => {
                self.finish_run(*ran).map(TerminalReply::CommandFinished)
            }
            (PendingReply::Cancel(_), KeeperResponse::Done) => Ok(TerminalReply::Cancelled),
            (PendingReply::Done(_), KeeperResponse::Done) => Ok(TerminalReply::Done),
            (PendingReply::Output(_), KeeperResponse::Piece(piece)) => {
                Ok(TerminalReply::Output(output_piece(piece)))
            }
            (PendingReply::ScreenEnd(ticket), KeeperResponse::Piece(piece)) => {
                let offset = piece.printed.saturating_sub(MAX_PAGE_BYTES);
                let range =
                    JobOutputRange { job: 0, stream: OutputStream::Stdout, offset, limit: MAX_PAGE_BYTES };
                match self.send_request(KeeperRequest::Read(range), PendingReply::Screen(ticket)) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            (PendingReply::Screen(_), KeeperResponse::Piece(piece)) => {
                let (rows, cols) = self.meta.pty.unwrap_or((24, 80));
                let size = TerminalSize { rows, cols }.clamped();
                Ok(TerminalReply::Screen(ScreenSource {
                    is_truncated: piece.offset > 0,
                    bytes: piece.bytes,
                    size,
                    permit: None,
                }))
            }
            (PendingReply::Inherited, KeeperResponse::Ended(outcome)) => {
                // The command belongs to an earlier runtime; no call waits for it.
                self.record_command_exit(&outcome).ok();
                return;
            }
            (PendingReply::Housekeeping | PendingReply::Inherited, _) => return,
            (_, _) => Err(TerminalError::new(
                TerminalErrorCode::Internal,
                "the keeper returned a response of another kind",
            )),
        };
        out.extend(ticket.map(|ticket| reply(ticket, answer)));
    }

    fn finish_run(&mut self, ran: CommandResult) -> Result<ExecResult, TerminalError> {
        self.command_count = self.command_count.max(ran.outcome.job);
        let finished = self.record_command_exit(&ran.outcome)?;
        Ok(ExecResult {
            exec: ExecId(ran.outcome.job),
            exit: finished,
            outputs: [ran.stdout, ran.stderr],
            stream_bytes: ran.printed,
            permit: None,
        })
    }

    fn record_command_exit(&mut self, outcome: &ExecOutcome) -> Result<CommandExit, TerminalError> {
        self.last_activity_at = unix_micros();
        if self.running_job.is_some_and(|(job, _)| job == outcome.job) {
            self.running_job = None;
        }
        if let Some(exit) = &outcome.exit {
            self.exit_code = Some(exit.code);
            self.state = SessionState::Terminated;
        }
        let shell_restarted = std::mem::take(&mut self.shell_restarted);
        match &outcome.lost {
            Some(why) => Err(TerminalError::new(TerminalErrorCode::ShellFailed, why.clone())),
            None => Ok(CommandExit { shell_restarted, ..command_exit(outcome) }),
        }
    }

    /// Updates the session from the keeper's status.
    pub(crate) fn update_from_status(&mut self, status: &KeeperStatus) {
        self.pid = status.child.pid;
        self.created_at = status.created_at;
        self.last_activity_at = status.last_activity_at;
        self.command_count = status.jobs;
        self.running_job = status.running;
        self.exit_code = status.exit.as_ref().map(|exit| exit.code);
        self.state = if status.exit.is_some() { SessionState::Terminated } else { SessionState::Idle };
    }

    /// Fails all pending calls, because the keeper is gone.
    pub(crate) fn fail_pending_calls(&mut self, out: &mut Vec<TerminalEvent>) {
        self.state = SessionState::Terminated;
        self.running_job = None;
        self.last_activity_at = unix_micros();
        for waiting in std::mem::take(&mut self.pending_replies).into_values() {
            let gone = TerminalError::new(
                TerminalErrorCode::SessionTerminated,
                format!("session {} has ended", self.id),
            );
            let event = match waiting {
                PendingReply::Stream(ticket) => {
                    Some(TerminalEvent::Chunk(ticket, ExecChunk::Exit(Err(gone))))
                }
                PendingReply::Destroy(ticket) => {
                    Some(reply(ticket, Ok(TerminalReply::Destroyed(self.id.clone()))))
                }
                PendingReply::Info(ticket) => Some(reply(ticket, Ok(TerminalReply::Session(self.info())))),
                PendingReply::Create(ticket) => {
                    let failed = TerminalError::new(
                        TerminalErrorCode::ShellFailed,
                        "the keeper ended before the shell answered",
                    );
                    Some(reply(ticket, Err(failed)))
                }
                other @ (PendingReply::Run(_)
                | PendingReply::Done(_)
                | PendingReply::Cancel(_)
                | PendingReply::Output(_)
                | PendingReply::ScreenEnd(_)
                | PendingReply::Screen(_)
                | PendingReply::Inherited
                | PendingReply::Housekeeping) => other.ticket().map(|ticket| reply(ticket, Err(gone))),
            };
            out.extend(event);
        }
    }

    /// Marks a command as running before the keeper confirms it, for calls that ask in between.
    pub(crate) fn assume_running(&mut self) {
        if self.running_job.is_none() && self.state == SessionState::Idle {
            self.record_started(self.command_count + 1);
        }
    }
}

pub(crate) fn reply(ticket: CallTicket, answer: Result<TerminalReply, TerminalError>) -> TerminalEvent {
    TerminalEvent::Reply(ticket, Box::new(answer))
}

fn command_exit(outcome: &ExecOutcome) -> CommandExit {
    CommandExit {
        exit_code: outcome.code,
        duration_us: outcome.duration_us,
        timed_out: outcome.timed_out,
        cancelled: outcome.cancelled,
        shell_restarted: false,
    }
}

fn output_piece(piece: OutputPage) -> OutputPiece {
    OutputPiece {
        offset: piece.offset,
        bytes: piece.bytes,
        stream_bytes: piece.printed,
        dropped_bytes: piece.dropped,
        exit: piece.outcome.as_ref().map(command_exit),
        permit: None,
    }
}
