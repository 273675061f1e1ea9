//! The pool: sessions by id, calls in, events out, and the housekeeping between.
//!
//! A runtime owns its sessions. Another runtime in the same home leaves them alone while this process lives, and adopts
//! them when it is dead; an orderly end takes them along.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::{Keeper, Launcher, sweep};
use abide_keeper::place::Place;
use abide_keeper::protocol::{
    Act, Answer, Input, MAX_KEPT_BYTES, MAX_ORDER_BYTES, News, Owner, Range, Run, Shape, Spec, Stream,
};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::call::{Call, Create, Event, Execute, OutputRange, Reply, Size, State, Stats, Ticket};
use crate::clock::{ticks, unix_micros};
use crate::dialect::Dialect;
use crate::error::{Code, TerminalError};
use crate::session::{Session, SessionId, SessionMeta, Waiting, reply};

/// What a runtime needs to know; the command line fills it.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of keepers.
    pub keepers: PathBuf,
    /// How a keeper is started.
    pub launcher: Launcher,
    /// The environment that sessions begin with.
    pub env: Vec<(String, String)>,
    /// The directory that sessions begin in.
    pub cwd: String,
    /// The shell if none is asked for.
    pub shell: String,
    /// Whether sessions belong to this process or to the home.
    pub detached: bool,
    /// The bounds.
    pub limits: Limits,
}

/// The bounds of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most sessions that live at a time.
    pub max_sessions: usize,
    /// Output kept on disk per session.
    pub spool_bytes: u64,
    /// An idle session is ended after this long; 0 is never.
    pub idle_ms: u64,
    /// An ended session is remembered this long.
    pub remember_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_sessions: 1_000, spool_bytes: 32 << 20, idle_ms: 0, remember_ms: 600_000 }
    }
}

/// The most ended sessions that are remembered, however short ago they ended.
const MAX_REMEMBERED: usize = 256;
const MAX_OUTPUT: u64 = 1 << 20;
const HOUSEKEEPING_SECONDS: i64 = 30;
/// The number of the timer among those of sessions.
const TIMER: u64 = 0;
const PATIENCE_MS: u64 = 5_000;
const ENDING_MS: u64 = 6_000;

/// The terminal runtime.
#[derive(Debug)]
pub struct Runtime {
    config: Config,
    owner: Owner,
    poller: OwnedFd,
    sessions: BTreeMap<SessionId, Session>,
    numbers: BTreeMap<u64, SessionId>,
    next_number: u64,
    events: Vec<Event>,
    held: bool,
    commands: u64,
    adopted: u64,
    timer: OwnedFd,
}

impl Runtime {
    /// A runtime on this home. Sessions of dead runtimes are its own from now on.
    pub fn new(config: Config) -> Result<Self, TerminalError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| TerminalError::new(Code::Internal, error.to_string()))?;
        let timer = timer(&poller).map_err(|error| TerminalError::new(Code::Internal, error.to_string()))?;
        let owner = if config.detached { Owner::Home } else { Owner::Process(ProcessIdentity::own()) };
        let mut runtime = Self {
            config,
            owner,
            poller,
            sessions: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 1,
            events: Vec::new(),
            held: false,
            commands: 0,
            adopted: 0,
            timer,
        };
        runtime.adopt();
        Ok(runtime)
    }

    /// Takes a call. Its answer is an event, now or later.
    pub fn call(&mut self, ticket: Ticket, call: Call) {
        if let Err(error) = self.dispatch(ticket, call) {
            self.events.push(reply(ticket, Err(error)));
        }
    }

    /// What has happened since the last time.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Hears every keeper that has something to say, and keeps house. Never blocks; call it when [`AsFd`] is readable.
    pub fn work(&mut self) {
        let mut ready = Vec::with_capacity(64);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Err(error) = epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut ready), Some(&now))
            && error != Errno::INTR
        {
            return;
        }
        for event in ready {
            let number = event.data.u64();
            if number == TIMER {
                let _ticks = rustix::io::read(&self.timer, &mut [0; 8]);
                self.housekeep();
            } else if let Some(id) = self.numbers.get(&number).cloned() {
                self.hear(&id, number);
            }
        }
    }

    /// Stops or resumes taking streamed output, because whoever it is for does not keep up.
    pub fn hold_streams(&mut self, held: bool) {
        if self.held != held {
            self.held = held;
            let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
            for id in ids {
                self.arm(&id, true);
            }
        }
    }

    /// Ends every session, in order, and waits until nothing is left of them.
    pub fn shut_down(&mut self) {
        let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
        for id in &ids {
            if let Some(session) = self.sessions.get_mut(id) {
                let _gone_is_fine = session.order(Act::End { force: false }, Waiting::Housekeeping);
            }
        }
        self.wait_for_ends(ENDING_MS);
        for session in self.sessions.values_mut() {
            let _gone_is_fine = session.order(Act::End { force: true }, Waiting::Housekeeping);
        }
        self.wait_for_ends(ENDING_MS);
    }

    fn wait_for_ends(&mut self, milliseconds: u64) {
        let deadline = ticks() + milliseconds;
        while self.sessions.values().any(|session| session.keeper.is_some()) && ticks() < deadline {
            let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let mut fds = [rustix::event::PollFd::new(&self.poller, rustix::event::PollFlags::IN)];
            let _retried = rustix::event::poll(&mut fds, Some(&moment));
            self.held = false;
            self.work();
            self.events.retain(|event| matches!(event, Event::Reply(..)));
        }
    }

    fn dispatch(&mut self, ticket: Ticket, call: Call) -> Result<(), TerminalError> {
        match call {
            Call::Create(create) => self.create(ticket, create),
            Call::Info(id) => {
                let session = self.find(&id)?;
                if session.keeper.is_none() || session.over || session.state() == State::Creating {
                    let info = session.info();
                    self.events.push(reply(ticket, Ok(Reply::Session(info))));
                    return Ok(());
                }
                self.order(&id, Act::Status, Waiting::Info(ticket))
            }
            Call::List => {
                let all = self.sessions.values().map(Session::info).collect();
                self.events.push(reply(ticket, Ok(Reply::Sessions(all))));
                Ok(())
            }
            Call::Destroy { session, force } => {
                let found = self.find(&session)?;
                if found.keeper.is_none() || found.over {
                    self.events.push(reply(ticket, Ok(Reply::Destroyed(session))));
                    return Ok(());
                }
                self.order(&session, Act::End { force }, Waiting::Destroy(ticket))
            }
            Call::Run(execute) => self.execute(ticket, execute, false),
            Call::Stream(execute) => self.execute(ticket, execute, true),
            Call::Input { session, bytes, eof } => {
                self.order(&session, Act::Input { bytes, eof }, Waiting::Done(ticket))
            }
            Call::Cancel(session) => self.order(&session, Act::Interrupt, Waiting::Cancel(ticket)),
            Call::Output(range) => self.output(ticket, &range),
            Call::Screen(session) => {
                self.require_terminal(&session)?;
                let range = Range { job: 0, stream: Stream::Stdout, offset: 0, limit: MAX_KEPT_BYTES };
                self.order(&session, Act::Read(range), Waiting::Screen(ticket))
            }
            Call::Resize(id, Size { rows, cols }) => {
                self.require_terminal(&id)?;
                if rows == 0 || cols == 0 {
                    return Err(TerminalError::new(
                        Code::InvalidParams,
                        "a terminal has at least one row and column",
                    ));
                }
                self.find(&id)?.meta.pty = Some((rows, cols));
                self.order(&id, Act::Resize { rows, cols }, Waiting::Done(ticket))
            }
            Call::Stats => {
                let stats = self.stats();
                self.events.push(reply(ticket, Ok(Reply::Stats(stats))));
                Ok(())
            }
        }
    }

    fn create(&mut self, ticket: Ticket, create: Create) -> Result<(), TerminalError> {
        let living = self.sessions.values().filter(|session| session.state() != State::Terminated).count();
        let most = self.config.limits.max_sessions;
        if living >= most {
            return Err(TerminalError::new(Code::MaxSessionsReached, format!("{most} sessions are open")));
        }
        let shell = create.shell.unwrap_or_else(|| self.config.shell.clone());
        let cwd = create.cwd.unwrap_or_else(|| self.config.cwd.clone());
        check_env(&create.env)?;
        if [&shell, &cwd].iter().any(|text| text.is_empty() || text.contains('\0')) {
            return Err(TerminalError::new(Code::InvalidParams, "an empty shell or cwd"));
        }
        let shell = find_program(&shell, &self.config.env)?;
        let dialect = Dialect::of(&shell);
        let meta = SessionMeta {
            name: create.name,
            shell: shell.clone(),
            cwd: cwd.clone(),
            env_keys: create.env.iter().map(|(name, _)| name.clone()).collect(),
            pty: create.pty.map(|size| (size.rows.max(1), size.cols.max(1))),
        };
        let mut argv = vec![shell];
        let shape = match meta.pty {
            Some((rows, cols)) => {
                argv.push("-i".to_owned());
                Shape::Pty { rows, cols, script: Some(dialect.script()) }
            }
            None => {
                argv.extend(dialect.arguments().iter().map(|argument| (*argument).to_owned()));
                Shape::Shell(dialect.script())
            }
        };
        let mut env: BTreeMap<String, String> = self.config.env.iter().cloned().collect();
        if meta.pty.is_some() {
            env.insert("TERM".to_owned(), "xterm-256color".to_owned());
        }
        env.extend(create.env);
        let spec = Spec {
            argv,
            env: env.into_iter().collect(),
            cwd,
            shape,
            retention: self.config.limits.spool_bytes,
            meta: serde_json::to_vec(&meta).unwrap_or_default(),
            owner: self.owner.clone(),
        };
        let id = self.free_id();
        let keeper = self.config.launcher.start(Place::new(&self.config.keepers, id.as_str()), &spec)?;
        let mut session = Session::new(id, meta, keeper);
        session.expect_first(ticket);
        self.register(session);
        Ok(())
    }

    fn free_id(&self) -> SessionId {
        loop {
            let id = SessionId::random();
            if !self.sessions.contains_key(&id) && !self.config.keepers.join(id.as_str()).exists() {
                return id;
            }
        }
    }

    fn execute(&mut self, ticket: Ticket, execute: Execute, follow: bool) -> Result<(), TerminalError> {
        let session = self.find(&execute.session)?;
        if execute.command.contains('\0') {
            return Err(TerminalError::new(Code::InvalidParams, "a command cannot hold a NUL byte"));
        }
        let length = execute.command.len() + execute.stdin.as_ref().map_or(0, Vec::len);
        if length > MAX_ORDER_BYTES {
            return Err(TerminalError::new(
                Code::InvalidParams,
                format!("at most {MAX_ORDER_BYTES} bytes in one command"),
            ));
        }
        check_env(&execute.env)?;
        match session.state() {
            State::Creating => {
                return Err(TerminalError::new(Code::SessionBusy, "the session is being created"));
            }
            State::Terminated => {
                return Err(TerminalError::new(
                    Code::SessionTerminated,
                    format!("session {} has ended", session.id),
                ));
            }
            State::Idle | State::Running => {}
        }
        let text = Dialect::of_known(&session.meta.shell).command(&execute.command, &execute.env);
        let run = Run {
            text: text.into_bytes(),
            input: match execute.stdin {
                Some(text) => Input::Text(text),
                None if follow => Input::Open,
                None => Input::Nothing,
            },
            timeout_ms: execute.timeout_ms,
            keep: if follow { 0 } else { execute.max_output_bytes.unwrap_or(MAX_OUTPUT).min(MAX_KEPT_BYTES) },
            follow,
        };
        self.commands += 1;
        let waiting = if follow { Waiting::Stream(ticket) } else { Waiting::Run(ticket) };
        let id = execute.session;
        self.order(&id, Act::Run(run), waiting)?;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.assume_running();
        }
        Ok(())
    }

    fn output(&mut self, ticket: Ticket, range: &OutputRange) -> Result<(), TerminalError> {
        let read = Range {
            job: range.exec.0,
            stream: range.stream,
            offset: range.offset,
            limit: range.limit.min(MAX_KEPT_BYTES),
        };
        self.order(&range.session, Act::Read(read), Waiting::Output(ticket))
    }

    fn require_terminal(&mut self, id: &SessionId) -> Result<(), TerminalError> {
        match self.find(id)?.meta.pty {
            Some(_) => Ok(()),
            None => Err(TerminalError::new(Code::InvalidParams, format!("session {id} has no terminal"))),
        }
    }

    fn stats(&self) -> Stats {
        let count = |state| self.sessions.values().filter(|session| session.state() == state).count();
        Stats {
            sessions: self.sessions.len() - count(State::Terminated),
            running: count(State::Running),
            terminated: count(State::Terminated),
            max_sessions: self.config.limits.max_sessions,
            commands: self.commands,
            adopted: self.adopted,
        }
    }

    fn find(&mut self, id: &SessionId) -> Result<&mut Session, TerminalError> {
        self.sessions
            .get_mut(id)
            .ok_or_else(|| TerminalError::new(Code::SessionNotFound, format!("there is no session {id}")))
    }

    fn order(&mut self, id: &SessionId, act: Act, waiting: Waiting) -> Result<(), TerminalError> {
        self.find(id)?.order(act, waiting)?;
        self.arm(id, false);
        Ok(())
    }

    fn register(&mut self, session: Session) {
        let number = self.next_number;
        self.next_number += 1;
        if let Some(keeper) = &session.keeper {
            let data = epoll::EventData::new_u64(number);
            if epoll::add(&self.poller, &keeper.link, data, epoll::EventFlags::IN).is_err() {
                return;
            }
        }
        self.numbers.insert(number, session.id.clone());
        self.sessions.insert(session.id.clone(), session);
    }

    /// Asks to be woken for what this session needs: news, and room if it has something unsent.
    fn arm(&mut self, id: &SessionId, always: bool) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = &session.keeper else { return };
        let wants_room = keeper.link.pending() > 0;
        if !always && wants_room == session.armed {
            return;
        }
        session.armed = wants_room;
        let mut flags = epoll::EventFlags::empty();
        if !(self.held && session.is_streaming()) {
            flags |= epoll::EventFlags::IN;
        }
        if wants_room {
            flags |= epoll::EventFlags::OUT;
        }
        if let Some((number, _)) = self.numbers.iter().find(|(_, known)| *known == id) {
            let _gone_is_noticed =
                epoll::modify(&self.poller, &keeper.link, epoll::EventData::new_u64(*number), flags);
        }
    }

    fn hear(&mut self, id: &SessionId, number: u64) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = &mut session.keeper else { return };
        let flushed = keeper.link.flush();
        // One read of the socket at a time, so that one loud session does not keep the others waiting.
        let mut answer = keeper.link.receive::<Answer>();
        while let Ok(Some(heard)) = answer {
            session.hear(heard, &mut self.events);
            let Some(keeper) = &mut session.keeper else { return };
            answer = keeper.link.buffered::<Answer>();
        }
        let closed = session.keeper.as_ref().is_none_or(|keeper| keeper.link.is_closed());
        let gone = answer.is_err() || flushed.is_err() || closed;
        if gone || session.failed {
            return self.lost(id, number);
        }
        self.arm(id, false);
    }

    /// A keeper has gone away: because it was told to, or because it died.
    fn lost(&mut self, id: &SessionId, number: u64) {
        self.numbers.remove(&number);
        let Some(session) = self.sessions.get_mut(id) else { return };
        let failed_to_start = session.failed || session.state() == State::Creating;
        if let Some(mut keeper) = session.keeper.take() {
            let _ours = epoll::delete(&self.poller, &keeper.link);
            for _ in 0..100 {
                if keeper.reap() {
                    break;
                }
                let moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _paused = rustix::event::poll(&mut [], Some(&moment));
            }
            if keeper.place.path().exists() {
                sweep(&keeper.place);
            }
        }
        session.lost(&mut self.events);
        if failed_to_start {
            self.sessions.remove(id);
        }
    }

    /// Finds the sessions whose runtime is dead, and clears away those whose keeper is.
    fn adopt(&mut self) {
        for (name, place) in Place::all(&self.config.keepers) {
            let id = SessionId::from_text(&name);
            if self.sessions.contains_key(&id) {
                continue;
            }
            let Ok(mut keeper) = Keeper::attach(place.clone()) else {
                sweep(&place);
                continue;
            };
            let Ok(status) = keeper.status(PATIENCE_MS) else { continue };
            let orphaned = match &status.owner {
                Owner::Home => false,
                Owner::Process(process) => !process.is_alive(),
            };
            // The keeper decides, so of two runtimes that try only one succeeds.
            let owner = self.owner.clone();
            if !orphaned || !matches!(keeper.ask(1, Act::Own(owner), PATIENCE_MS), Ok(News::Status(_))) {
                continue;
            }
            let meta = serde_json::from_slice(&status.meta).unwrap_or_default();
            let mut session = Session::new(id, meta, keeper);
            session.learn(&status);
            if let Some((job, _)) = status.running {
                let act = Act::Follow { job, from: [u64::MAX; 2] };
                let _gone_is_noticed = session.order(act, Waiting::Inherited);
            }
            self.adopted += 1;
            self.register(session);
        }
    }

    fn housekeep(&mut self) {
        let limits = self.config.limits;
        let now = unix_micros();
        let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
        let mut remembered: Vec<(u64, SessionId)> = Vec::new();
        for id in ids {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let quiet_ms = now.saturating_sub(session.last_activity_at) / 1_000;
            match session.state() {
                State::Idle if limits.idle_ms > 0 && quiet_ms > limits.idle_ms => {
                    let _gone_is_noticed = self.order(&id, Act::End { force: false }, Waiting::Housekeeping);
                }
                State::Terminated if quiet_ms > limits.remember_ms => self.forget(&id),
                State::Terminated => remembered.push((session.last_activity_at, id)),
                State::Idle | State::Creating | State::Running => {}
            }
        }
        remembered.sort();
        for (_, id) in remembered.iter().rev().skip(MAX_REMEMBERED) {
            self.forget(id);
        }
        self.adopt();
    }

    /// Collects an ended session: its keeper goes away, and then its memory.
    fn forget(&mut self, id: &SessionId) {
        match self.sessions.get_mut(id) {
            Some(session) if session.keeper.is_some() => {
                let _gone_is_noticed = self.order(id, Act::End { force: true }, Waiting::Housekeeping);
            }
            _ => drop(self.sessions.remove(id)),
        }
    }
}

impl AsFd for Runtime {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// A timer of its own, because a timeout on every wait would cost every command a timer.
fn timer(poller: &OwnedFd) -> Result<OwnedFd, Errno> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let period = Timespec { tv_sec: HOUSEKEEPING_SECONDS, tv_nsec: 0 };
    let period = Itimerspec { it_interval: period, it_value: period };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &period)?;
    epoll::add(poller, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
    Ok(timer)
}

fn check_env(env: &[(String, String)]) -> Result<(), TerminalError> {
    for (name, value) in env {
        let mut letters = name.bytes();
        let first = letters.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !first || !letters.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') || value.contains('\0')
        {
            return Err(TerminalError::new(
                Code::InvalidParams,
                format!("{name:?} cannot be an environment variable"),
            ));
        }
    }
    Ok(())
}

/// The path of a shell that may have been named without one.
fn find_program(shell: &str, env: &[(String, String)]) -> Result<String, TerminalError> {
    if shell.contains('/') {
        return Ok(shell.to_owned());
    }
    let path =
        env.iter().find(|(name, _)| name == "PATH").map_or("/usr/bin:/bin", |(_, value)| value.as_str());
    path.split(':')
        .map(|directory| format!("{directory}/{shell}"))
        .find(|candidate| rustix::fs::access(candidate.as_str(), rustix::fs::Access::EXEC_OK).is_ok())
        .ok_or_else(|| TerminalError::new(Code::ShellNotFound, format!("there is no shell {shell}")))
}
