//! The pool of sessions: takes calls, returns events, and does the housekeeping.
//!
//! A runtime owns its sessions. Another runtime in the same home does not touch them while this process lives, and
//! adopts them after its death. A regular shutdown ends them.

mod calls;
mod config;
mod housekeeping;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_keeper::adaptive_spin::AdaptiveSpin;
use abide_keeper::client::{
    KeeperConnection,
    timeouts::{RESUME_INTERVAL_MS, SHUTDOWN_TIMEOUT_MS},
};
use abide_keeper::framed_socket::ReceiveOutcome;
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::{StandbyKeeper, clean_up_dead_keeper, kill_keeper};
use abide_keeper::periodic_timer::PeriodicTimer;
use abide_keeper::protocol::{KeeperOwner, KeeperRequest, KeeperResponse};
use abide_os::failpoint;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::call::{SessionState, TerminalCall, TerminalEvent};
use crate::clock::boottime_millis;
use crate::error::{TerminalError, TerminalErrorCode};
use crate::response_budget::{AnswerRoom, SMALL_ANSWER_BYTES};
use crate::session::{PendingReply, RuntimeSession, SessionId};

pub use calls::MAX_META_BYTES;
pub use config::{TerminalConfig, TerminalLimits};
use housekeeping::{TIMER_KEY, create_timer};

/// Idle time before a standby keeper is started, in nanoseconds.
const STANDBY_DELAY_NS: i64 = 2_000_000;
/// How long the runtime polls for the result of a short command, in microseconds.
const RESULT_SPIN_US: u64 = 300;
/// With more bytes in undelivered events, no further keeper is read.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Identifies a descriptor of the caller, see [`TerminalRuntime::watch_fd`].
pub type ExternalFd = u64;
/// Offset of such numbers in the poller, above those of sessions.
const EXTERNAL_FD_BASE: u64 = 1 << 63;
/// The number of the memory limit's eventfd in the poller.
const ROOM_WAKEUP_KEY: u64 = EXTERNAL_FD_BASE - 1;
const KEEPER_CHECK_KEY: u64 = EXTERNAL_FD_BASE - 2;

/// Whether [`TerminalRuntime::wait`] blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeWait {
    /// Blocks until a keeper or a descriptor of the caller is ready.
    Block,
    /// Returns at once.
    Poll,
}

/// The pool of terminal sessions. Driven by calls of [`Self::wait`] or [`Self::work`].
#[derive(Debug)]
pub struct TerminalRuntime {
    config: TerminalConfig,
    owner: KeeperOwner,
    poller: OwnedFd,
    sessions: BTreeMap<SessionId, RuntimeSession>,
    /// Keepers of other sessions that have not answered yet.
    unanswered_keepers: BTreeMap<SessionId, KeeperConnection>,
    session_by_key: BTreeMap<u64, SessionId>,
    next_key: u64,
    events: Vec<TerminalEvent>,
    /// Number of output bytes in `events`.
    event_bytes: usize,
    all_paused: bool,
    /// Sessions whose streams are paused individually.
    paused_sessions: BTreeSet<SessionId>,
    answer_room: Arc<AnswerRoom>,
    /// Sessions with a large response that waits for memory.
    awaiting_memory: BTreeSet<SessionId>,
    command_count: u64,
    adopted_count: u64,
    timer: OwnedFd,
    /// Runs while a keeper owes a response.
    keeper_check: PeriodicTimer,
    spin: AdaptiveSpin,
    /// A standby keeper for the next session. A session is often followed by another, and starting the keeper is most
    /// of the cost.
    standby_keeper: Option<StandbyKeeper>,
    wants_standby: bool,
}

impl TerminalRuntime {
    /// Creates a runtime in this home. It adopts the sessions of dead runtimes.
    pub fn new(config: TerminalConfig) -> Result<Self, TerminalError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| TerminalError::new(TerminalErrorCode::Internal, error.to_string()))?;
        let timer = create_timer(&poller, config.limits.housekeeping_interval_ms)
            .map_err(|error| TerminalError::new(TerminalErrorCode::Internal, error.to_string()))?;
        let keeper_check = PeriodicTimer::new(RESUME_INTERVAL_MS * 1_000)
            .and_then(|timer| {
                let data = epoll::EventData::new_u64(KEEPER_CHECK_KEY);
                epoll::add(&poller, &timer, data, epoll::EventFlags::IN)?;
                Ok(timer)
            })
            .map_err(|error| TerminalError::new(TerminalErrorCode::Internal, error.to_string()))?;
        let room = AnswerRoom::new()
            .and_then(|room| {
                epoll::add(
                    &poller,
                    &*room,
                    epoll::EventData::new_u64(ROOM_WAKEUP_KEY),
                    epoll::EventFlags::IN,
                )?;
                Ok(room)
            })
            .map_err(|error| TerminalError::new(TerminalErrorCode::Internal, error.to_string()))?;
        let owner =
            if config.detached { KeeperOwner::Home } else { KeeperOwner::Process(ProcessIdentity::own()) };
        let mut runtime = Self {
            config,
            owner,
            poller,
            sessions: BTreeMap::new(),
            unanswered_keepers: BTreeMap::new(),
            session_by_key: BTreeMap::new(),
            next_key: 1,
            events: Vec::new(),
            event_bytes: 0,
            all_paused: false,
            paused_sessions: BTreeSet::new(),
            answer_room: room,
            awaiting_memory: BTreeSet::new(),
            command_count: 0,
            adopted_count: 0,
            timer,
            keeper_check,
            spin: AdaptiveSpin::new(RESULT_SPIN_US),
            standby_keeper: None,
            wants_standby: false,
        };
        runtime.adopt();
        Ok(runtime)
    }

    /// Takes a call. The reply is an event with the call's ticket, now or later.
    pub fn call(&mut self, call: TerminalCall) {
        let (id, failure) = call.id_and_failure();
        let session = call.session().cloned();
        let dispatched = self.catch_panic(session.as_ref(), |runtime| {
            if let Some(id) = &session {
                failpoint::reach_for("session_work", id.as_str());
            }
            runtime.dispatch(call)
        });
        let broken = || {
            Err(TerminalError::new(
                TerminalErrorCode::Internal,
                "the call failed because of a bug of Abide; see the log",
            ))
        };
        if let Err(error) = dispatched.unwrap_or_else(broken) {
            self.events.push(failure(id, error));
        }
    }

    /// Runs `work` for one session, or for none. A panic ends only that session.
    fn catch_panic<T>(
        &mut self,
        session: Option<&SessionId>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(|| work(self))).ok();
        if let (None, Some(id)) = (&result, session)
            && catch_unwind(AssertUnwindSafe(|| self.end_inconsistent_session(id))).is_err()
        {
            // The session cannot even be ended. Its keeper is adopted or swept later.
            self.sessions.remove(id);
            self.session_by_key.retain(|_, session_id| session_id != id);
        }
        result
    }

    /// Ends a session whose state is inconsistent.
    fn end_inconsistent_session(&mut self, id: &SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            // The keeper ends its child. A keeper that does not get the request is swept with its directory.
            session.send_request(KeeperRequest::End { force: true }, PendingReply::Housekeeping).ok();
            if let Some(keeper) = &mut session.keeper {
                keeper.flush().ok();
            }
        }
        let number =
            self.session_by_key.iter().find(|(_, session_id)| *session_id == id).map(|(number, _)| *number);
        if let Some(number) = number {
            self.handle_lost_keeper(id, number);
        }
    }

    /// Whether [`Self::events`] returns any.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the events since the last call.
    pub fn events(&mut self) -> Vec<TerminalEvent> {
        self.event_bytes = 0;
        std::mem::take(&mut self.events)
    }

    /// Reads all ready keepers and does the housekeeping. Never blocks; call it when [`AsFd`] is readable.
    pub fn work(&mut self) {
        self.wait(RuntimeWait::Poll);
    }

    /// The same, optionally after blocking until a source is ready. Also returns the ready descriptors of the caller.
    ///
    /// A caller that blocks here is woken once per response of a keeper. Polling the runtime's descriptor from outside
    /// needs a second step.
    pub fn wait(&mut self, wait: RuntimeWait) -> Vec<(ExternalFd, epoll::EventFlags)> {
        let mut ready = Vec::with_capacity(64);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let idle = Timespec { tv_sec: 0, tv_nsec: STANDBY_DELAY_NS };
        loop {
            let spinning = self.spin.is_spinning();
            let until = match wait {
                RuntimeWait::Poll => Some(&now),
                RuntimeWait::Block if spinning => Some(&now),
                RuntimeWait::Block if self.wants_standby && !self.is_creating() => Some(&idle),
                RuntimeWait::Block => None,
            };
            if let Err(error) = epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut ready), until)
                && error != Errno::INTR
            {
                return Vec::new();
            }
            if !ready.is_empty() || wait == RuntimeWait::Poll {
                break;
            }
            if spinning {
                self.spin.on_miss();
            } else if !self.is_creating() && std::mem::take(&mut self.wants_standby) {
                self.standby_keeper = self.config.launcher.start_standby().ok();
            }
        }
        let mut external = Vec::new();
        for event in ready {
            let number = event.data.u64();
            if number == KEEPER_CHECK_KEY {
                self.catch_panic(None, Self::check_awaited_keepers);
            } else if number == TIMER_KEY {
                let _ticks = rustix::io::read(&self.timer, &mut [0; 8]);
                self.catch_panic(None, Self::housekeep);
            } else if number == ROOM_WAKEUP_KEY {
                self.answer_room.reset_wakeup();
                for id in std::mem::take(&mut self.awaiting_memory) {
                    self.update_poll_flags(&id, true);
                }
            } else if let Some(which) = number.checked_sub(EXTERNAL_FD_BASE) {
                external.push((which, event.flags));
            } else if self.event_bytes < MAX_EVENT_BYTES
                && let Some(id) = self.session_by_key.get(&number).cloned()
            {
                // A keeper that is skipped now is still ready at the next call.
                self.catch_panic(Some(&id), |runtime| {
                    failpoint::reach_for("session_work", id.as_str());
                    runtime.read_responses(&id, number, event.flags);
                });
            }
        }
        external
    }

    /// Whether a session is being created. Starting a standby keeper meanwhile would compete with its shell for the
    /// processor.
    fn is_creating(&self) -> bool {
        self.sessions.values().any(|session| session.state() == SessionState::Creating)
    }

    /// Adds a descriptor of the caller to [`Self::wait`], or changes its flags.
    pub fn watch_fd(
        &self,
        end: impl AsFd,
        which: ExternalFd,
        flags: epoll::EventFlags,
    ) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(EXTERNAL_FD_BASE + which);
        match epoll::modify(&self.poller, &end, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.poller, &end, data, flags)?),
            changed => Ok(changed?),
        }
    }

    /// Removes a descriptor of the caller. It may not be watched.
    pub fn unwatch_fd(&self, end: impl AsFd) {
        epoll::delete(&self.poller, end).ok();
    }

    /// Pauses or resumes reading of output and responses of all sessions, because their reader does not keep up.
    pub fn set_all_paused(&mut self, paused: bool) {
        if self.all_paused != paused {
            self.all_paused = paused;
            let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
            for id in ids {
                self.update_poll_flags(&id, true);
            }
        }
    }

    /// The same for one session.
    pub fn set_session_paused(&mut self, id: &SessionId, paused: bool) {
        let changed =
            if paused { self.paused_sessions.insert(id.clone()) } else { self.paused_sessions.remove(id) };
        if changed {
            self.update_poll_flags(id, true);
        }
    }

    /// Ends every session and waits until all keepers have exited.
    pub fn shut_down(&mut self) {
        self.set_all_paused(false);
        for id in std::mem::take(&mut self.paused_sessions) {
            self.update_poll_flags(&id, true);
        }
        self.wants_standby = false;
        self.standby_keeper = None;
        let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
        for id in &ids {
            if let Some(session) = self.sessions.get_mut(id) {
                // The keeper may have exited.
                session.send_request(KeeperRequest::End { force: false }, PendingReply::Housekeeping).ok();
            }
        }
        self.wait_for_keeper_exits(SHUTDOWN_TIMEOUT_MS);
        for session in self.sessions.values_mut() {
            // The keeper may have exited.
            session.send_request(KeeperRequest::End { force: true }, PendingReply::Housekeeping).ok();
        }
        self.wait_for_keeper_exits(SHUTDOWN_TIMEOUT_MS);
        for session in self.sessions.values() {
            if let Some(keeper) = &session.keeper {
                kill_keeper(&keeper.keeper_dir, None);
                clean_up_dead_keeper(&keeper.keeper_dir);
            }
        }
    }

    fn wait_for_keeper_exits(&mut self, milliseconds: u64) {
        let deadline = boottime_millis() + milliseconds;
        while self.sessions.values().any(|session| session.keeper.is_some()) && boottime_millis() < deadline {
            let poll_interval = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let mut fds = [rustix::event::PollFd::new(&self.poller, rustix::event::PollFlags::IN)];
            let _retried = rustix::event::poll(&mut fds, Some(&poll_interval));
            self.all_paused = false;
            self.work();
            // Undelivered results would hold the memory that other responses need.
            self.events.retain(|event| event.is_reply() && event.output_bytes() == 0);
        }
    }

    fn session_mut(&mut self, id: &SessionId) -> Result<&mut RuntimeSession, TerminalError> {
        self.sessions.get_mut(id).ok_or_else(|| {
            TerminalError::new(TerminalErrorCode::SessionNotFound, format!("there is no session {id}"))
        })
    }

    fn send_request(
        &mut self,
        id: &SessionId,
        request: KeeperRequest,
        pending_reply: PendingReply,
    ) -> Result<(), TerminalError> {
        self.session_mut(id)?.send_request(request, pending_reply)?;
        self.keeper_check.start();
        self.update_poll_flags(id, false);
        Ok(())
    }

    fn register(&mut self, session: RuntimeSession) {
        let number = self.next_key;
        self.next_key += 1;
        if let Some(keeper) = &session.keeper {
            let data = epoll::EventData::new_u64(number);
            if epoll::add(&self.poller, keeper, data, epoll::EventFlags::IN).is_err() {
                return;
            }
        }
        self.session_by_key.insert(number, session.info.session.clone());
        self.sessions.insert(session.info.session.clone(), session);
    }

    /// Updates the poller: watches for responses, and for writability if requests are unsent.
    fn update_poll_flags(&mut self, id: &SessionId, force: bool) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = &session.keeper else { return };
        let wants_room = keeper.unsent_bytes() > 0;
        if !force && wants_room == session.watches_writable {
            return;
        }
        session.watches_writable = wants_room;
        let mut flags = epoll::EventFlags::empty();
        if !(self.all_paused || self.paused_sessions.contains(id) || self.awaiting_memory.contains(id)) {
            flags |= epoll::EventFlags::IN;
        }
        if wants_room {
            flags |= epoll::EventFlags::OUT;
        }
        if let Some((number, _)) = self.session_by_key.iter().find(|(_, session_id)| *session_id == id) {
            // A lost keeper is detected at the next read.
            epoll::modify(&self.poller, keeper, epoll::EventData::new_u64(*number), flags).ok();
        }
    }

    fn read_responses(&mut self, id: &SessionId, number: u64, flags: epoll::EventFlags) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = &mut session.keeper else { return };
        let flushed = keeper.flush();
        // One read per session, so that a session with much output does not delay the others.
        let mut permit = None;
        let mut answer = keeper.receive_up_to(SMALL_ANSWER_BYTES);
        if let Ok(ReceiveOutcome::TooLarge(length)) = answer {
            permit = session.permit.take().filter(|permit| permit.bytes() >= length);
            permit = permit.or_else(|| self.answer_room.reserve(length));
            // A keeper that has exited sends nothing more, so its response is read at once.
            if permit.is_none() && !flags.contains(epoll::EventFlags::HUP) {
                self.awaiting_memory.insert(id.clone());
                return self.update_poll_flags(id, true);
            }
            answer = keeper.receive_up_to(length);
        }
        while let Ok(ReceiveOutcome::Message(response)) = answer {
            if matches!(response.news, KeeperResponse::Ran(_)) {
                self.spin.on_success();
            }
            let event_count = self.events.len();
            session.handle_response(response, &mut self.events);
            for event in self.events.iter_mut().skip(event_count) {
                self.event_bytes += event.output_bytes();
                event.attach_permit(&mut permit);
            }
            permit = None;
            let Some(keeper) = &mut session.keeper else { return };
            answer = match keeper.buffered_response() {
                Ok(Some(response)) => Ok(ReceiveOutcome::Message(response)),
                Ok(None) => Ok(ReceiveOutcome::Incomplete),
                Err(error) => Err(error),
            };
        }
        // A partly read response keeps its permit until it is complete.
        session.permit = permit;
        let closed = session.keeper.as_ref().is_none_or(|keeper| keeper.is_closed());
        let is_lost = answer.is_err() || flushed.is_err() || closed;
        if is_lost || session.creation_failed {
            return self.handle_lost_keeper(id, number);
        }
        self.update_poll_flags(id, false);
    }

    /// Handles the end of a keeper's connection, after a request or its death.
    fn handle_lost_keeper(&mut self, id: &SessionId, number: u64) {
        self.session_by_key.remove(&number);
        self.paused_sessions.remove(id);
        self.awaiting_memory.remove(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        let failed_to_start = session.creation_failed || session.state() == SessionState::Creating;
        if let Some(mut keeper) = session.keeper.take() {
            let _ours = epoll::delete(&self.poller, &keeper);
            for _ in 0..100 {
                if keeper.reap() {
                    break;
                }
                let poll_interval = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _paused = rustix::event::poll(&mut [], Some(&poll_interval));
            }
            if keeper.keeper_dir.path().exists() {
                clean_up_dead_keeper(&keeper.keeper_dir);
            }
        }
        session.fail_pending_calls(&mut self.events);
        if failed_to_start {
            self.sessions.remove(id);
        }
    }
}

impl AsFd for TerminalRuntime {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
