//! A session in its runtime: its keeper, the pending replies, and the last known state.

use std::collections::BTreeMap;
use std::path::Path;

use abide_keeper::client::{
    FIRST_RESPONSE_TAG, KeeperConnection, KeeperDuty, KeeperWatch, KeeperWatchdog, timeouts::END_TIMEOUT_MS,
};
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::protocol::{
    CommandResult, ExecOutcome, JobId, JobOutputRange, KeeperRequest, KeeperResponse, MAX_PAGE_BYTES,
    OutputStream, RequestTag, TaggedResponse,
};
use serde::{Deserialize, Serialize};

use crate::call::{
    CommandExit, DestroyedSession, ExecChunk, ExecId, ExecResult, OutputPiece, RequestDone, SessionInfo,
    SessionState, StartedStream, StopRequested, TerminalEvent, TerminalSize,
};
use crate::clock::{boottime_millis, unix_micros};
use crate::error::{TerminalError, TerminalErrorCode};
use crate::response_budget::AnswerPermit;
use crate::screen::ScreenSource;
use crate::ticket::CallTicket;

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
    pub(crate) info: SessionInfo,
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
    /// The shell was replaced, and no result has reported it yet.
    shell_restarted: bool,
    watchdog: KeeperWatchdog,
    /// When the keeper has to begin to stop its command or shell, in milliseconds of [`boottime_millis`].
    stop_due_ms: Option<u64>,
    /// The keeper stayed stopped and is being killed.
    is_keeper_overdue: bool,
}

/// The result of [`RuntimeSession::check_keeper`].
#[derive(Debug)]
pub(crate) enum KeeperCheck {
    Waiting {
        next_check_in_ms: u64,
    },
    /// The keeper stays stopped and must be killed.
    Overdue(KeeperDir),
}

/// The call that waits for a keeper's response, and the type of its result.
#[derive(Debug)]
pub(crate) enum PendingReply {
    Create(CallTicket<SessionInfo>),
    Info(CallTicket<SessionInfo>),
    Destroy(CallTicket<DestroyedSession>),
    Run(CallTicket<ExecResult>),
    Stream(CallTicket<StartedStream>),
    Done(CallTicket<RequestDone>),
    Cancel(CallTicket<StopRequested>),
    Output(CallTicket<OutputPiece>),
    /// Asks for the length of a terminal's output, before its end is read.
    ScreenEnd(CallTicket<ScreenSource>),
    Screen(CallTicket<ScreenSource>),
    /// A command of an earlier runtime. No call waits for it.
    Inherited,
    /// No call waits for the response.
    Housekeeping,
}

impl PendingReply {
    /// The reply to a call that failed. None if no call waits.
    fn failure(self, error: TerminalError) -> Option<TerminalEvent> {
        Some(match self {
            Self::Create(ticket) | Self::Info(ticket) => ticket.reply(Err(error)),
            Self::Destroy(ticket) => ticket.reply(Err(error)),
            Self::Run(ticket) => ticket.reply(Err(error)),
            Self::Stream(ticket) => ticket.reply(Err(error)),
            Self::Done(ticket) => ticket.reply(Err(error)),
            Self::Cancel(ticket) => ticket.reply(Err(error)),
            Self::Output(ticket) => ticket.reply(Err(error)),
            Self::ScreenEnd(ticket) | Self::Screen(ticket) => ticket.reply(Err(error)),
            Self::Inherited | Self::Housekeeping => return None,
        })
    }
}

impl RuntimeSession {
    pub(crate) fn new(id: SessionId, meta: SessionMeta, keeper: KeeperConnection) -> Self {
        Self {
            info: SessionInfo::new(id, meta, unix_micros()),
            keeper: Some(keeper),
            watches_writable: false,
            end_confirmed: false,
            creation_failed: false,
            pending_replies: BTreeMap::new(),
            permit: None,
            ending_since: None,
            shell_restarted: false,
            watchdog: KeeperWatchdog::new(),
            stop_due_ms: None,
            is_keeper_overdue: false,
        }
    }

    pub(crate) fn state(&self) -> SessionState {
        self.info.state
    }

    fn end_running_job(&mut self) {
        self.info.running = None;
        if self.info.state == SessionState::Running {
            self.info.state = SessionState::Idle;
        }
    }

    /// Waits for the first response of a new keeper.
    pub(crate) fn expect_status(&mut self, ticket: CallTicket<SessionInfo>) {
        self.pending_replies.insert(FIRST_RESPONSE_TAG, PendingReply::Create(ticket));
    }

    /// Sends a request and registers its pending reply.
    pub(crate) fn send_request(
        &mut self,
        request: KeeperRequest,
        pending_reply: PendingReply,
    ) -> Result<(), TerminalError> {
        let terminated_error = || {
            TerminalError::new(
                TerminalErrorCode::SessionTerminated,
                format!("session {} has ended", self.info.session),
            )
        };
        let keeper = self.keeper.as_mut().ok_or_else(terminated_error)?;
        if matches!(request, KeeperRequest::Run(_)) {
            self.info.last_activity_at = unix_micros();
        }
        let ends_something = matches!(
            request,
            KeeperRequest::End { .. } | KeeperRequest::EndExcept { .. } | KeeperRequest::Interrupt
        );
        if ends_something {
            // A command may have stopped the keeper of its session (SECURITY 10).
            keeper.resume();
        }
        let now = boottime_millis();
        if let KeeperRequest::End { .. } | KeeperRequest::EndExcept { .. } = request {
            self.ending_since.get_or_insert(now);
        }
        let stop_due_ms = if let KeeperRequest::Run(command) = &request {
            command.timeout_ms.map(|timeout_ms| now.saturating_add(timeout_ms))
        } else {
            ends_something.then_some(now)
        };
        self.stop_due_ms = [self.stop_due_ms, stop_due_ms].into_iter().flatten().min();
        // If the keeper has exited, the closed connection is about to be detected, and then all pending calls fail.
        let tag = keeper.send(request).map_err(|_| {
            TerminalError::new(TerminalErrorCode::InvalidParams, "the request is too large for a keeper")
        })?;
        self.pending_replies.insert(tag, pending_reply);
        Ok(())
    }

    /// Continues a keeper that owes a response and was stopped, by a command of its session. None if it owes none.
    pub(crate) fn check_keeper(&mut self) -> Option<KeeperCheck> {
        if self.pending_replies.is_empty() {
            self.stop_due_ms = None;
            return None;
        }
        let keeper_dir = &self.keeper.as_ref()?.keeper_dir;
        let is_stop_due = self.stop_due_ms.is_some_and(|due_ms| boottime_millis() >= due_ms);
        let duty = if is_stop_due { KeeperDuty::Stop } else { KeeperDuty::Respond };
        if self.watchdog.check(keeper_dir, duty) == KeeperWatch::Overdue {
            self.is_keeper_overdue = true;
            self.watchdog = KeeperWatchdog::new();
            return Some(KeeperCheck::Overdue(keeper_dir.clone()));
        }
        Some(KeeperCheck::Waiting { next_check_in_ms: self.watchdog.next_check_in_ms() })
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
        self.watchdog.on_response();
        if let KeeperResponse::Exited(exit) = &news {
            self.info.exit_code = Some(exit.code);
            self.terminate();
            self.info.last_activity_at = unix_micros();
        }
        if let KeeperResponse::ShellRestarted(shell) = &news {
            self.info.pid = shell.pid;
            self.shell_restarted = true;
        }
        match (self.pending_replies.get(&tag), news) {
            (Some(PendingReply::Stream(ticket)), KeeperResponse::Started(job)) => {
                let ticket = *ticket;
                self.record_started(job);
                let session = self.info.session.clone();
                out.push(ticket.reply(Ok(StartedStream { session, exec: ExecId(job) })));
            }
            (Some(PendingReply::Stream(ticket)), KeeperResponse::Output(output)) => {
                out.push(TerminalEvent::Chunk(*ticket, ExecChunk::Output(output)));
            }
            // The reply follows when the keeper's connection has closed.
            (Some(PendingReply::Destroy(_)), KeeperResponse::Done) => {
                self.terminate();
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

    fn terminate(&mut self) {
        self.info.state = SessionState::Terminated;
        self.info.running = None;
    }

    fn record_started(&mut self, job: JobId) {
        self.info.command_count = self.info.command_count.max(job);
        self.info.running = Some((job, unix_micros()));
        if self.info.state == SessionState::Idle {
            self.info.state = SessionState::Running;
        }
    }

    fn complete_call(
        &mut self,
        pending_reply: PendingReply,
        response: KeeperResponse,
        out: &mut Vec<TerminalEvent>,
    ) {
        let event = match (pending_reply, response) {
            (PendingReply::Stream(ticket), KeeperResponse::Ended(outcome)) => {
                let exit = self.record_command_exit(outcome);
                TerminalEvent::Chunk(ticket, ExecChunk::Exit(exit))
            }
            (pending_reply, KeeperResponse::Refused(refusal)) => {
                let mut error = TerminalError::from_refusal(&refusal);
                if matches!(pending_reply, PendingReply::Create(_)) {
                    self.creation_failed = true;
                    if error.code == TerminalErrorCode::Internal {
                        error.code = TerminalErrorCode::ShellFailed;
                    }
                }
                return out.extend(pending_reply.failure(error));
            }
            (PendingReply::Create(ticket) | PendingReply::Info(ticket), KeeperResponse::Status(status)) => {
                self.info.update(&status);
                ticket.reply(Ok(self.info.clone()))
            }
            (PendingReply::Run(ticket), KeeperResponse::Ran(result)) => {
                ticket.reply(self.finish_run(*result))
            }
            (PendingReply::Cancel(ticket), KeeperResponse::Done) => ticket.reply(Ok(StopRequested)),
            (PendingReply::Done(ticket), KeeperResponse::Done) => ticket.reply(Ok(RequestDone)),
            (PendingReply::Output(ticket), KeeperResponse::Piece(page)) => {
                ticket.reply(Ok(OutputPiece { page, permit: None }))
            }
            (PendingReply::ScreenEnd(ticket), KeeperResponse::Piece(page)) => {
                let offset = page.printed.saturating_sub(MAX_PAGE_BYTES);
                let range =
                    JobOutputRange { job: 0, stream: OutputStream::Stdout, offset, limit: MAX_PAGE_BYTES };
                match self.send_request(KeeperRequest::Read(range), PendingReply::Screen(ticket)) {
                    Ok(()) => return,
                    Err(error) => ticket.reply(Err(error)),
                }
            }
            (PendingReply::Screen(ticket), KeeperResponse::Piece(page)) => {
                let (rows, cols) = self.info.meta.pty.unwrap_or((24, 80));
                ticket.reply(Ok(ScreenSource {
                    is_truncated: page.offset > 0,
                    bytes: page.bytes,
                    size: TerminalSize { rows, cols }.clamped(),
                    permit: None,
                }))
            }
            (PendingReply::Inherited, KeeperResponse::Ended(outcome)) => {
                // The command belongs to an earlier runtime; no call waits for it.
                self.record_command_exit(outcome).ok();
                return;
            }
            (pending_reply, _) => {
                let error =
                    TerminalError::new(TerminalErrorCode::Internal, "the keeper violated its protocol");
                return out.extend(pending_reply.failure(error));
            }
        };
        out.push(event);
    }

    fn finish_run(&mut self, result: CommandResult) -> Result<ExecResult, TerminalError> {
        self.info.command_count = self.info.command_count.max(result.outcome.job);
        let CommandExit { outcome, shell_restarted } = self.record_command_exit(result.outcome)?;
        Ok(ExecResult { result: CommandResult { outcome, ..result }, shell_restarted, permit: None })
    }

    fn record_command_exit(&mut self, outcome: ExecOutcome) -> Result<CommandExit, TerminalError> {
        self.info.last_activity_at = unix_micros();
        if self.info.running.is_some_and(|(job, _)| job == outcome.job) {
            self.end_running_job();
        }
        if let Some(exit) = &outcome.exit {
            self.info.exit_code = Some(exit.code);
            self.info.state = SessionState::Terminated;
        }
        let shell_restarted = std::mem::take(&mut self.shell_restarted);
        match outcome.lost {
            Some(reason) => Err(TerminalError::new(TerminalErrorCode::ShellFailed, reason)),
            None => Ok(CommandExit { outcome, shell_restarted }),
        }
    }

    /// Fails all pending calls, because the keeper is gone.
    pub(crate) fn fail_pending_calls(&mut self, out: &mut Vec<TerminalEvent>) {
        self.terminate();
        self.info.last_activity_at = unix_micros();
        let reason = if self.is_keeper_overdue {
            ": its keeper stayed stopped (SIGSTOP, or a tracing process) and was killed"
        } else {
            ""
        };
        for waiting in std::mem::take(&mut self.pending_replies).into_values() {
            let error = TerminalError::new(
                TerminalErrorCode::SessionTerminated,
                format!("session {} has ended{reason}", self.info.session),
            );
            let event = match waiting {
                PendingReply::Stream(ticket) => {
                    Some(TerminalEvent::Chunk(ticket, ExecChunk::Exit(Err(error))))
                }
                PendingReply::Destroy(ticket) => {
                    Some(ticket.reply(Ok(DestroyedSession(self.info.session.clone()))))
                }
                PendingReply::Info(ticket) => Some(ticket.reply(Ok(self.info.clone()))),
                PendingReply::Create(ticket) => {
                    let failed = TerminalError::new(
                        TerminalErrorCode::ShellFailed,
                        "the keeper ended before the shell answered",
                    );
                    Some(ticket.reply(Err(failed)))
                }
                other @ (PendingReply::Run(_)
                | PendingReply::Done(_)
                | PendingReply::Cancel(_)
                | PendingReply::Output(_)
                | PendingReply::ScreenEnd(_)
                | PendingReply::Screen(_)
                | PendingReply::Inherited
                | PendingReply::Housekeeping) => other.failure(error),
            };
            out.extend(event);
        }
    }

    /// Marks a command as running before the keeper confirms it, for calls that ask in between.
    pub(crate) fn assume_running(&mut self) {
        if self.info.running.is_none() && self.info.state == SessionState::Idle {
            self.record_started(self.info.command_count + 1);
        }
    }
}
