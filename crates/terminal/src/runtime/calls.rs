//! Translates each call into a request to a keeper. The response is handled by the session.

use std::collections::BTreeMap;

use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::protocol::{
    CommandInput, JobOutputRange, KeeperRequest, KeeperSpec, LinkPolicy, MAX_PAGE_BYTES, MAX_REQUEST_BYTES,
    OutputStream, ShellCommand, SpoolOverflow,
};

use super::TerminalRuntime;
use crate::call::{
    CommandOutput, CreateSessionRequest, DestroyedSession, ExecRequest, RuntimeStats, SessionInfo,
    SessionState, TerminalCall, TerminalSize,
};
use crate::dialect::ShellDialect;
use crate::error::{TerminalError, TerminalErrorCode};
use crate::session::{PendingReply, RuntimeSession, SessionId, SessionMeta};
use crate::shell::ShellProgram;
use crate::ticket::CallTicket;

/// Default for the bytes of each stream in a result.
const DEFAULT_MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// Unsent bytes of a session up to which requests are always taken.
const SMALL_UNSENT_BYTES: usize = 16 << 10;
/// Maximum bytes of requests that a keeper has not read. A single request may be larger.
const MAX_UNSENT_BYTES_OF_ONE: usize = 8 << 20;
/// Maximum bytes of requests that all keepers together have not read. A single request may be larger.
const MAX_UNSENT_BYTES: usize = 16 << 20;

impl TerminalRuntime {
    pub(super) fn dispatch(&mut self, call: TerminalCall) -> Result<(), TerminalError> {
        match call {
            TerminalCall::Create(create, ticket) => self.create(ticket, create),
            TerminalCall::Info(id, ticket) => {
                let session = self.session_mut(&id)?;
                if session.keeper.is_none()
                    || session.end_confirmed
                    || session.state() == SessionState::Creating
                {
                    let info = session.info.clone();
                    self.events.push(ticket.reply(Ok(info)));
                    return Ok(());
                }
                self.send_request(&id, KeeperRequest::Status, PendingReply::Info(ticket))
            }
            TerminalCall::List(ticket) => {
                let all = self.sessions.values().map(|session| session.info.clone()).collect();
                self.events.push(ticket.reply(Ok(all)));
                Ok(())
            }
            TerminalCall::Destroy { session, force, ticket } => {
                let target = self.session_mut(&session)?;
                if target.keeper.is_none() || target.end_confirmed {
                    self.events.push(ticket.reply(Ok(DestroyedSession(session))));
                    return Ok(());
                }
                self.send_request(&session, KeeperRequest::End { force }, PendingReply::Destroy(ticket))
            }
            TerminalCall::Run(request, ticket) => {
                let max_bytes = request.max_output_bytes.unwrap_or(DEFAULT_MAX_OUTPUT_BYTES);
                let output = CommandOutput::Collected {
                    max_bytes: max_bytes.min(self.config.limits.max_result_bytes),
                };
                self.execute(request, output, PendingReply::Run(ticket))
            }
            TerminalCall::Stream(request, ticket) => {
                self.execute(request, CommandOutput::Streamed, PendingReply::Stream(ticket))
            }
            TerminalCall::Input { session, bytes, eof, ticket } => {
                self.check_unsent(&session, bytes.len())?;
                self.send_request(&session, KeeperRequest::Input { bytes, eof }, PendingReply::Done(ticket))
            }
            TerminalCall::Cancel(session, ticket) => {
                self.send_request(&session, KeeperRequest::Interrupt, PendingReply::Cancel(ticket))
            }
            TerminalCall::Output(session, range, ticket) => {
                let range = JobOutputRange { limit: range.limit.min(MAX_PAGE_BYTES), ..range };
                self.send_request(&session, KeeperRequest::Read(range), PendingReply::Output(ticket))
            }
            TerminalCall::Screen(session, ticket) => {
                self.require_terminal(&session)?;
                // Reads nothing, but the response contains the length of the output.
                let range =
                    JobOutputRange { job: 0, stream: OutputStream::Stdout, offset: u64::MAX, limit: 0 };
                self.send_request(&session, KeeperRequest::Read(range), PendingReply::ScreenEnd(ticket))
            }
            TerminalCall::Resize(id, size, ticket) => {
                self.require_terminal(&id)?;
                let TerminalSize { rows, cols } = size.checked()?;
                self.session_mut(&id)?.info.meta.pty = Some((rows, cols));
                self.send_request(&id, KeeperRequest::Resize { rows, cols }, PendingReply::Done(ticket))
            }
            TerminalCall::Stats(ticket) => {
                let stats = self.stats();
                self.events.push(ticket.reply(Ok(stats)));
                Ok(())
            }
        }
    }

    pub(super) fn create(
        &mut self,
        ticket: CallTicket<SessionInfo>,
        create: CreateSessionRequest,
    ) -> Result<(), TerminalError> {
        let session_count =
            self.sessions.values().filter(|session| session.state() != SessionState::Terminated).count();
        let max_sessions = self.config.limits.max_sessions;
        if session_count >= max_sessions {
            return Err(TerminalError::new(
                TerminalErrorCode::MaxSessionsReached,
                format!("{max_sessions} sessions are open"),
            ));
        }
        let shell = create.shell.clone().unwrap_or_else(|| self.config.shell.clone());
        let cwd = create.cwd.clone().unwrap_or_else(|| self.config.cwd.clone());
        check_env(&create.env)?;
        check_meta(&create)?;
        if [&shell, &cwd].iter().any(|text| text.is_empty() || text.contains('\0')) {
            return Err(TerminalError::new(TerminalErrorCode::InvalidParams, "an empty shell or cwd"));
        }
        let pty = create.pty.map(TerminalSize::checked).transpose()?;
        let shell = ShellProgram::find(&shell, &self.config.env)?;
        let meta = SessionMeta {
            name: create.name,
            shell: shell.program().to_owned(),
            cwd: cwd.clone(),
            env_keys: create.env.iter().map(|(name, _)| name.clone()).collect(),
            pty: pty.map(|size| (size.rows, size.cols)),
        };
        let (argv, mode) = shell.launch_spec(pty);
        let mut env: BTreeMap<String, String> = self.config.env.iter().cloned().collect();
        if meta.pty.is_some() {
            env.insert("TERM".to_owned(), "xterm-256color".to_owned());
        }
        env.extend(create.env);
        let id = self.unused_id();
        let spec = KeeperSpec {
            argv,
            env: env.into_iter().collect(),
            cwd: cwd.into(),
            shape: mode,
            retention: self.config.limits.spool_bytes,
            meta: serde_json::to_vec(&meta).unwrap_or_default(),
            owner: self.owner.clone(),
            overflow: SpoolOverflow::DropOldest,
            confinement: vec![],
            group: self.config.launcher.groups.as_ref().map(|groups| groups.child_spec(id.as_str())),
            // The owner of a terminal names its directory, with or without links.
            cwd_links: LinkPolicy::Follow,
        };
        let keeper_dir = KeeperDir::new(&self.config.keepers_dir, id.as_str());
        let keeper = self.config.launcher.start(keeper_dir, spec, self.standby_keeper.take())?;
        self.wants_standby = true;
        let mut session = RuntimeSession::new(id, meta, keeper);
        session.expect_status(ticket);
        self.register(session);
        Ok(())
    }

    pub(super) fn unused_id(&self) -> SessionId {
        loop {
            let id = SessionId::random();
            if !self.sessions.contains_key(&id) && !self.config.keepers_dir.join(id.as_str()).exists() {
                return id;
            }
        }
    }

    pub(super) fn execute(
        &mut self,
        request: ExecRequest,
        output: CommandOutput,
        pending_reply: PendingReply,
    ) -> Result<(), TerminalError> {
        let (keep, follow) = output.keep_and_follow();
        let length = request.command.len() + request.stdin.as_ref().map_or(0, Vec::len);
        self.check_unsent(&request.session, length)?;
        let session = self.session_mut(&request.session)?;
        if request.command.contains('\0') {
            return Err(TerminalError::new(
                TerminalErrorCode::InvalidParams,
                "a command cannot hold a NUL byte",
            ));
        }
        if length > MAX_REQUEST_BYTES {
            return Err(TerminalError::new(
                TerminalErrorCode::InvalidParams,
                format!("at most {MAX_REQUEST_BYTES} bytes in one command"),
            ));
        }
        check_env(&request.env)?;
        match session.state() {
            SessionState::Creating => {
                return Err(TerminalError::new(
                    TerminalErrorCode::SessionBusy,
                    "the session is being created",
                ));
            }
            SessionState::Terminated => {
                return Err(TerminalError::new(
                    TerminalErrorCode::SessionTerminated,
                    format!("session {} has ended", session.info.session),
                ));
            }
            SessionState::Idle | SessionState::Running => {}
        }
        let text =
            ShellDialect::of_resolved_path(&session.info.meta.shell).command(&request.command, &request.env);
        let run = ShellCommand {
            text: text.into_bytes(),
            input: match request.stdin {
                Some(text) => CommandInput::Text(text),
                None if follow => CommandInput::Open,
                None => CommandInput::Nothing,
            },
            timeout_ms: request.timeout_ms,
            keep,
            follow,
        };
        self.command_count += 1;
        let id = request.session;
        self.send_request(&id, KeeperRequest::Run(run), pending_reply)?;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.assume_running();
        }
        if !follow {
            self.spin.begin_wait();
        }
        Ok(())
    }

    /// Refuses a request with this many bytes of the client if too many wait for keepers that do not read, such as
    /// stopped ones.
    fn check_unsent(&self, id: &SessionId, bytes: usize) -> Result<(), TerminalError> {
        let unsent =
            |session: &RuntimeSession| session.keeper.as_ref().map_or(0, |keeper| keeper.unsent_bytes());
        let of_one = self.sessions.get(id).map_or(0, unsent);
        if of_one + bytes <= SMALL_UNSENT_BYTES {
            return Ok(());
        }
        let of_all = self.sessions.values().map(unsent).sum::<usize>();
        let fits = |unsent: usize, most: usize| unsent == 0 || unsent + bytes <= most;
        if fits(of_one, MAX_UNSENT_BYTES_OF_ONE) && fits(of_all, MAX_UNSENT_BYTES) {
            return Ok(());
        }
        Err(TerminalError::new(
            TerminalErrorCode::ResourcePressure,
            format!("{of_all} bytes wait for sessions that do not take them; try again later"),
        ))
    }

    pub(super) fn require_terminal(&mut self, id: &SessionId) -> Result<(), TerminalError> {
        match self.session_mut(id)?.info.meta.pty {
            Some(_) => Ok(()),
            None => Err(TerminalError::new(
                TerminalErrorCode::InvalidParams,
                format!("session {id} has no terminal"),
            )),
        }
    }

    pub(super) fn stats(&self) -> RuntimeStats {
        let count = |state| self.sessions.values().filter(|session| session.state() == state).count();
        RuntimeStats {
            sessions: self.sessions.len() - count(SessionState::Terminated),
            running: count(SessionState::Running),
            terminated: count(SessionState::Terminated),
            max_sessions: self.config.limits.max_sessions,
            commands: self.command_count,
            adopted: self.adopted_count,
        }
    }
}

/// Maximum bytes of a session's name, shell, directory and names of variables. They stay in memory with the session.
pub const MAX_META_BYTES: usize = 8 << 10;

fn check_meta(create: &CreateSessionRequest) -> Result<(), TerminalError> {
    let texts = [&create.name, &create.shell, &create.cwd].into_iter().flatten();
    let bytes = texts.chain(create.env.iter().map(|(name, _)| name)).map(String::len).sum::<usize>();
    if bytes > MAX_META_BYTES {
        return Err(TerminalError::new(
            TerminalErrorCode::InvalidParams,
            format!(
                "name, shell, cwd and names of variables have {bytes} bytes, and may have {MAX_META_BYTES}"
            ),
        ));
    }
    Ok(())
}

fn check_env(env: &[(String, String)]) -> Result<(), TerminalError> {
    for (name, value) in env {
        let mut letters = name.bytes();
        let first = letters.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !first || !letters.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') || value.contains('\0')
        {
            return Err(TerminalError::new(
                TerminalErrorCode::InvalidParams,
                format!("{name:?} cannot be an environment variable"),
            ));
        }
    }
    Ok(())
}
