//! Translates each call into a request to a keeper. The response is handled by the session.

use std::collections::BTreeMap;

use abide_keeper::place::KeeperDir;
use abide_keeper::protocol::{
    CommandInput, JobOutputRange, KeeperRequest, KeeperSpec, MAX_ORDER_BYTES, MAX_PAGE_BYTES, OutputStream,
    ShellCommand, SpoolOverflow,
};

use super::TerminalRuntime;
use crate::call::{
    CallTicket, CreateSessionRequest, ExecRequest, OutputRange, RuntimeStats, SessionState, TerminalCall,
    TerminalReply, TerminalSize,
};
use crate::dialect::ShellDialect;
use crate::error::{TerminalError, TerminalErrorCode};
use crate::session::{PendingReply, RuntimeSession, SessionId, SessionMeta, reply};
use crate::shell::ShellProgram;

/// Default for the bytes of each stream in a result.
const MAX_OUTPUT: u64 = 1 << 20;

impl TerminalRuntime {
    pub(super) fn dispatch(&mut self, ticket: CallTicket, call: TerminalCall) -> Result<(), TerminalError> {
        match call {
            TerminalCall::Create(create) => self.create(ticket, create),
            TerminalCall::Info(id) => {
                let session = self.find(&id)?;
                if session.keeper.is_none() || session.over || session.state() == SessionState::Creating {
                    let info = session.info();
                    self.events.push(reply(ticket, Ok(TerminalReply::Session(info))));
                    return Ok(());
                }
                self.order(&id, KeeperRequest::Status, PendingReply::Info(ticket))
            }
            TerminalCall::List => {
                let all = self.sessions.values().map(RuntimeSession::info).collect();
                self.events.push(reply(ticket, Ok(TerminalReply::Sessions(all))));
                Ok(())
            }
            TerminalCall::Destroy { session, force } => {
                let found = self.find(&session)?;
                if found.keeper.is_none() || found.over {
                    self.events.push(reply(ticket, Ok(TerminalReply::Destroyed(session))));
                    return Ok(());
                }
                self.order(&session, KeeperRequest::End { force }, PendingReply::Destroy(ticket))
            }
            TerminalCall::Run(execute) => self.execute(ticket, execute, false),
            TerminalCall::Stream(execute) => self.execute(ticket, execute, true),
            TerminalCall::Input { session, bytes, eof } => {
                self.order(&session, KeeperRequest::Input { bytes, eof }, PendingReply::Done(ticket))
            }
            TerminalCall::Cancel(session) => {
                self.order(&session, KeeperRequest::Interrupt, PendingReply::Cancel(ticket))
            }
            TerminalCall::Output(range) => self.output(ticket, &range),
            TerminalCall::Screen(session) => {
                self.require_terminal(&session)?;
                // Reads nothing, but the response contains the length of the output.
                let range =
                    JobOutputRange { job: 0, stream: OutputStream::Stdout, offset: u64::MAX, limit: 0 };
                self.order(&session, KeeperRequest::Read(range), PendingReply::ScreenEnd(ticket))
            }
            TerminalCall::Resize(id, size) => {
                self.require_terminal(&id)?;
                let TerminalSize { rows, cols } = size.checked()?;
                self.find(&id)?.meta.pty = Some((rows, cols));
                self.order(&id, KeeperRequest::Resize { rows, cols }, PendingReply::Done(ticket))
            }
            TerminalCall::Stats => {
                let stats = self.stats();
                self.events.push(reply(ticket, Ok(TerminalReply::Stats(stats))));
                Ok(())
            }
        }
    }

    pub(super) fn create(
        &mut self,
        ticket: CallTicket,
        create: CreateSessionRequest,
    ) -> Result<(), TerminalError> {
        let living =
            self.sessions.values().filter(|session| session.state() != SessionState::Terminated).count();
        let most = self.config.limits.max_sessions;
        if living >= most {
            return Err(TerminalError::new(
                TerminalErrorCode::MaxSessionsReached,
                format!("{most} sessions are open"),
            ));
        }
        let shell = create.shell.unwrap_or_else(|| self.config.shell.clone());
        let cwd = create.cwd.unwrap_or_else(|| self.config.cwd.clone());
        check_env(&create.env)?;
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
        let (argv, shape) = shell.start(pty);
        let mut env: BTreeMap<String, String> = self.config.env.iter().cloned().collect();
        if meta.pty.is_some() {
            env.insert("TERM".to_owned(), "xterm-256color".to_owned());
        }
        env.extend(create.env);
        let id = self.free_id();
        let spec = KeeperSpec {
            argv,
            env: env.into_iter().collect(),
            cwd: cwd.into(),
            shape,
            retention: self.config.limits.spool_bytes,
            meta: serde_json::to_vec(&meta).unwrap_or_default(),
            owner: self.owner.clone(),
            overflow: SpoolOverflow::DropOldest,
            confinement: vec![],
            group: self.config.launcher.groups.as_ref().map(|groups| groups.of_child(id.as_str())),
        };
        let place = KeeperDir::new(&self.config.keepers, id.as_str());
        let keeper = self.config.launcher.start(place, spec, self.spare.take())?;
        self.wants_spare = true;
        let mut session = RuntimeSession::new(id, meta, keeper);
        session.expect_first(ticket);
        self.register(session);
        Ok(())
    }

    pub(super) fn free_id(&self) -> SessionId {
        loop {
            let id = SessionId::random();
            if !self.sessions.contains_key(&id) && !self.config.keepers.join(id.as_str()).exists() {
                return id;
            }
        }
    }

    pub(super) fn execute(
        &mut self,
        ticket: CallTicket,
        execute: ExecRequest,
        follow: bool,
    ) -> Result<(), TerminalError> {
        let most = self.config.limits.result_bytes;
        let session = self.find(&execute.session)?;
        if execute.command.contains('\0') {
            return Err(TerminalError::new(
                TerminalErrorCode::InvalidParams,
                "a command cannot hold a NUL byte",
            ));
        }
        let length = execute.command.len() + execute.stdin.as_ref().map_or(0, Vec::len);
        if length > MAX_ORDER_BYTES {
            return Err(TerminalError::new(
                TerminalErrorCode::InvalidParams,
                format!("at most {MAX_ORDER_BYTES} bytes in one command"),
            ));
        }
        check_env(&execute.env)?;
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
                    format!("session {} has ended", session.id),
                ));
            }
            SessionState::Idle | SessionState::Running => {}
        }
        let text = ShellDialect::of_known(&session.meta.shell).command(&execute.command, &execute.env);
        let run = ShellCommand {
            text: text.into_bytes(),
            input: match execute.stdin {
                Some(text) => CommandInput::Text(text),
                None if follow => CommandInput::Open,
                None => CommandInput::Nothing,
            },
            timeout_ms: execute.timeout_ms,
            keep: if follow { 0 } else { execute.max_output_bytes.unwrap_or(MAX_OUTPUT).min(most) },
            follow,
        };
        self.commands += 1;
        let waiting = if follow { PendingReply::Stream(ticket) } else { PendingReply::Run(ticket) };
        let id = execute.session;
        self.order(&id, KeeperRequest::Run(run), waiting)?;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.assume_running();
        }
        if !follow {
            self.spin.expect();
        }
        Ok(())
    }

    pub(super) fn output(&mut self, ticket: CallTicket, range: &OutputRange) -> Result<(), TerminalError> {
        let read = JobOutputRange {
            job: range.exec.0,
            stream: range.stream,
            offset: range.offset,
            limit: range.limit.min(MAX_PAGE_BYTES),
        };
        self.order(&range.session, KeeperRequest::Read(read), PendingReply::Output(ticket))
    }

    pub(super) fn require_terminal(&mut self, id: &SessionId) -> Result<(), TerminalError> {
        match self.find(id)?.meta.pty {
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
            commands: self.commands,
            adopted: self.adopted,
        }
    }
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
