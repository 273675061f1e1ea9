//! The pool of sessions: takes calls, returns events, and does the housekeeping.
//!
//! A runtime owns its sessions. Another runtime in the same home does not touch them while this process lives, and
//! adopts them after its death. A regular shutdown ends them.

mod calls;
mod config;
mod house;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::{KeeperConnection, StandbyKeeper, kill, sweep};
use abide_keeper::link::ReceiveOutcome;
use abide_keeper::protocol::{KeeperOwner, KeeperRequest, KeeperResponse, TaggedResponse};
use abide_keeper::spin::AdaptiveSpin;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::call::{CallTicket, SessionState, TerminalCall, TerminalEvent};
use crate::clock::ticks;
use crate::error::{TerminalError, TerminalErrorCode};
use crate::failpoint;
use crate::room::{AnswerRoom, SMALL_ANSWER_BYTES};
use crate::session::{PendingReply, RuntimeSession, SessionId, reply};

pub use config::{TerminalConfig, TerminalLimits};
use house::{TIMER, timer};

const ENDING_MS: u64 = 6_000;
/// Idle time before a standby keeper is started, in nanoseconds.
const IDLE_NS: i64 = 2_000_000;
/// How long the runtime polls for the result of a short command, in microseconds.
const LOOK_US: u64 = 300;
/// With more bytes in undelivered events, no further keeper is read.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Identifies a descriptor of the caller, see [`TerminalRuntime::watch`].
pub type ExternalFd = u64;
/// Offset of such numbers in the poller, above those of sessions.
const OWN: u64 = 1 << 63;
/// The number of the memory limit's eventfd in the poller.
const ROOM: u64 = OWN - 1;

/// Whether [`TerminalRuntime::wait`] blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeWait {
    /// Blocks until a keeper or a descriptor of the caller is ready.
    ForSomething,
    /// Returns at once.
    No,
}

/// The pool of terminal sessions. Driven by calls of [`Self::wait`] or [`Self::work`].
#[derive(Debug)]
pub struct TerminalRuntime {
    config: TerminalConfig,
    owner: KeeperOwner,
    poller: OwnedFd,
    sessions: BTreeMap<SessionId, RuntimeSession>,
    /// Keepers of other sessions that have not answered yet.
    asked: BTreeMap<SessionId, KeeperConnection>,
    numbers: BTreeMap<u64, SessionId>,
    next_number: u64,
    events: Vec<TerminalEvent>,
    /// Number of output bytes in `events`.
    event_bytes: usize,
    held: bool,
    /// Sessions whose streams are paused individually.
    holding: BTreeSet<SessionId>,
    room: Arc<AnswerRoom>,
    /// Sessions with a large response that waits for memory.
    crowded: BTreeSet<SessionId>,
    commands: u64,
    adopted: u64,
    timer: OwnedFd,
    spin: AdaptiveSpin,
    /// A standby keeper for the next session. A session is often followed by another, and starting the keeper is most
    /// of the cost.
    spare: Option<StandbyKeeper>,
    wants_spare: bool,
}

impl TerminalRuntime {
    /// Creates a runtime in this home. It adopts the sessions of dead runtimes.
    pub fn new(config: TerminalConfig) -> Result<Self, TerminalError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| TerminalError::new(TerminalErrorCode::Internal, error.to_string()))?;
        let timer = timer(&poller, config.limits.housekeeping_ms)
            .map_err(|error| TerminalError::new(TerminalErrorCode::Internal, error.to_string()))?;
        let room = AnswerRoom::new()
            .and_then(|room| {
                epoll::add(&poller, &*room, epoll::EventData::new_u64(ROOM), epoll::EventFlags::IN)?;
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
            asked: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 1,
            events: Vec::new(),
            event_bytes: 0,
            held: false,
            holding: BTreeSet::new(),
            room,
            crowded: BTreeSet::new(),
            commands: 0,
            adopted: 0,
            timer,
            spin: AdaptiveSpin::new(LOOK_US),
            spare: None,
            wants_spare: false,
        };
        runtime.adopt();
        Ok(runtime)
    }

    /// Takes a call. The reply is an event, now or later.
    pub fn call(&mut self, ticket: CallTicket, call: TerminalCall) {
        let session = call.session().cloned();
        let dispatched = self.contain(session.as_ref(), |runtime| {
            failpoint::reach(session.as_ref());
            runtime.dispatch(ticket, call)
        });
        let broken = || {
            Err(TerminalError::new(
                TerminalErrorCode::Internal,
                "the call broke an assumption; the log says which",
            ))
        };
        if let Err(error) = dispatched.unwrap_or_else(broken) {
            self.events.push(reply(ticket, Err(error)));
        }
    }

    /// Runs `work` for one session, or for none. A panic ends only that session.
    fn contain<T>(&mut self, session: Option<&SessionId>, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(self))).ok();
        if let (None, Some(id)) = (&done, session)
            && catch_unwind(AssertUnwindSafe(|| self.break_off(id))).is_err()
        {
            // The session cannot even be ended. Its keeper is adopted or swept later.
            self.sessions.remove(id);
            self.numbers.retain(|_, known| known != id);
        }
        done
    }

    /// Ends a session whose state is inconsistent.
    fn break_off(&mut self, id: &SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            // The keeper ends its child. A keeper that does not get the request is swept with its directory.
            session.order(KeeperRequest::End { force: true }, PendingReply::Housekeeping).ok();
            if let Some(keeper) = &mut session.keeper {
                keeper.link.flush().ok();
            }
        }
        let number = self.numbers.iter().find(|(_, known)| *known == id).map(|(number, _)| *number);
        if let Some(number) = number {
            self.lost(id, number);
        }
    }

    /// Takes the events since the last call.
    pub fn events(&mut self) -> Vec<TerminalEvent> {
        self.event_bytes = 0;
        std::mem::take(&mut self.events)
    }

    /// Reads all ready keepers and does the housekeeping. Never blocks; call it when [`AsFd`] is readable.
    pub fn work(&mut self) {
        self.wait(RuntimeWait::No);
    }

    /// The same, optionally after blocking until a source is ready. Also returns the ready descriptors of the caller.
    ///
    /// A caller that blocks here is woken once per response of a keeper. Polling the runtime's descriptor from outside
    /// needs a second step.
    pub fn wait(&mut self, wait: RuntimeWait) -> Vec<(ExternalFd, epoll::EventFlags)> {
        let mut ready = Vec::with_capacity(64);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let idle = Timespec { tv_sec: 0, tv_nsec: IDLE_NS };
        loop {
            let looking = self.spin.is_looking();
            let until = match wait {
                RuntimeWait::No => Some(&now),
                RuntimeWait::ForSomething if looking => Some(&now),
                RuntimeWait::ForSomething if self.wants_spare && !self.is_creating() => Some(&idle),
                RuntimeWait::ForSomething => None,
            };
            if let Err(error) = epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut ready), until)
                && error != Errno::INTR
            {
                return Vec::new();
            }
            if !ready.is_empty() || wait == RuntimeWait::No {
                break;
            }
            if looking {
                self.spin.saw_nothing();
            } else if !self.is_creating() && std::mem::take(&mut self.wants_spare) {
                self.spare = self.config.launcher.prepare().ok();
            }
        }
        let mut own = Vec::new();
        for event in ready {
            let number = event.data.u64();
            if number == TIMER {
                let _ticks = rustix::io::read(&self.timer, &mut [0; 8]);
                self.contain(None, Self::housekeep);
            } else if number == ROOM {
                self.room.silence();
                for id in std::mem::take(&mut self.crowded) {
                    self.arm(&id, true);
                }
            } else if let Some(which) = number.checked_sub(OWN) {
                own.push((which, event.flags));
            } else if self.event_bytes < MAX_EVENT_BYTES
                && let Some(id) = self.numbers.get(&number).cloned()
            {
                // A keeper that is skipped now is still ready at the next call.
                self.contain(Some(&id), |runtime| {
                    failpoint::reach(Some(&id));
                    runtime.hear(&id, number, event.flags);
                });
            }
        }
        own
    }

    /// Whether a session is being created. Starting a standby keeper meanwhile would compete with its shell for the
    /// processor.
    fn is_creating(&self) -> bool {
        self.sessions.values().any(|session| session.state() == SessionState::Creating)
    }

    /// Adds a descriptor of the caller to [`Self::wait`], or changes its flags.
    pub fn watch(&self, end: impl AsFd, which: ExternalFd, flags: epoll::EventFlags) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(OWN + which);
        match epoll::modify(&self.poller, &end, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.poller, &end, data, flags)?),
            changed => Ok(changed?),
        }
    }

    /// Removes a descriptor of the caller. It may not be watched.
    pub fn ignore(&self, end: impl AsFd) {
        epoll::delete(&self.poller, end).ok();
    }

    /// Pauses or resumes reading of output and responses of all sessions, because their reader does not keep up.
    pub fn hold_streams(&mut self, held: bool) {
        if self.held != held {
            self.held = held;
            let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
            for id in ids {
                self.arm(&id, true);
            }
        }
    }

    /// The same for one session.
    pub fn hold(&mut self, id: &SessionId, held: bool) {
        let changed = if held { self.holding.insert(id.clone()) } else { self.holding.remove(id) };
        if changed {
            self.arm(id, true);
        }
    }

    /// Ends every session and waits until all keepers have exited.
    pub fn shut_down(&mut self) {
        self.hold_streams(false);
        for id in std::mem::take(&mut self.holding) {
            self.arm(&id, true);
        }
        self.wants_spare = false;
        self.spare = None;
        let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
        for id in &ids {
            if let Some(session) = self.sessions.get_mut(id) {
                // The keeper may have exited.
                session.order(KeeperRequest::End { force: false }, PendingReply::Housekeeping).ok();
            }
        }
        self.wait_for_ends(ENDING_MS);
        for session in self.sessions.values_mut() {
            // The keeper may have exited.
            session.order(KeeperRequest::End { force: true }, PendingReply::Housekeeping).ok();
        }
        self.wait_for_ends(ENDING_MS);
        for session in self.sessions.values() {
            if let Some(keeper) = &session.keeper {
                kill(&keeper.place, None);
                sweep(&keeper.place);
            }
        }
    }

    fn wait_for_ends(&mut self, milliseconds: u64) {
        let deadline = ticks() + milliseconds;
        while self.sessions.values().any(|session| session.keeper.is_some()) && ticks() < deadline {
            let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let mut fds = [rustix::event::PollFd::new(&self.poller, rustix::event::PollFlags::IN)];
            let _retried = rustix::event::poll(&mut fds, Some(&moment));
            self.held = false;
            self.work();
            // Undelivered results would hold the memory that other responses need.
            self.events
                .retain(|event| matches!(event, TerminalEvent::Reply(..)) && event.output_bytes() == 0);
        }
    }

    fn find(&mut self, id: &SessionId) -> Result<&mut RuntimeSession, TerminalError> {
        self.sessions.get_mut(id).ok_or_else(|| {
            TerminalError::new(TerminalErrorCode::SessionNotFound, format!("there is no session {id}"))
        })
    }

    fn order(
        &mut self,
        id: &SessionId,
        act: KeeperRequest,
        waiting: PendingReply,
    ) -> Result<(), TerminalError> {
        self.find(id)?.order(act, waiting)?;
        self.arm(id, false);
        Ok(())
    }

    fn register(&mut self, session: RuntimeSession) {
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

    /// Updates the poller: watches for responses, and for writability if requests are unsent.
    fn arm(&mut self, id: &SessionId, always: bool) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = &session.keeper else { return };
        let wants_room = keeper.link.pending() > 0;
        if !always && wants_room == session.armed {
            return;
        }
        session.armed = wants_room;
        let mut flags = epoll::EventFlags::empty();
        if !(self.held || self.holding.contains(id) || self.crowded.contains(id)) {
            flags |= epoll::EventFlags::IN;
        }
        if wants_room {
            flags |= epoll::EventFlags::OUT;
        }
        if let Some((number, _)) = self.numbers.iter().find(|(_, known)| *known == id) {
            // A lost keeper is detected at the next read.
            epoll::modify(&self.poller, &keeper.link, epoll::EventData::new_u64(*number), flags).ok();
        }
    }

    fn hear(&mut self, id: &SessionId, number: u64, flags: epoll::EventFlags) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = &mut session.keeper else { return };
        let flushed = keeper.link.flush();
        // One read per session, so that a session with much output does not delay the others.
        let mut permit = None;
        let mut answer = keeper.link.receive_up_to::<TaggedResponse>(SMALL_ANSWER_BYTES);
        if let Ok(ReceiveOutcome::Large(length)) = answer {
            permit = session.permit.take().filter(|permit| permit.bytes() >= length);
            permit = permit.or_else(|| self.room.take(length));
            // A keeper that has exited sends nothing more, so its response is read at once.
            if permit.is_none() && !flags.contains(epoll::EventFlags::HUP) {
                self.crowded.insert(id.clone());
                return self.arm(id, true);
            }
            answer = keeper.link.receive_up_to::<TaggedResponse>(length);
        }
        while let Ok(ReceiveOutcome::Message(heard)) = answer {
            if matches!(heard.news, KeeperResponse::Ran(_)) {
                self.spin.came();
            }
            let known = self.events.len();
            session.hear(heard, &mut self.events);
            for event in self.events.iter_mut().skip(known) {
                self.event_bytes += event.output_bytes();
                event.keep(&mut permit);
            }
            permit = None;
            let Some(keeper) = &mut session.keeper else { return };
            answer = match keeper.link.buffered::<TaggedResponse>() {
                Ok(Some(heard)) => Ok(ReceiveOutcome::Message(heard)),
                Ok(None) => Ok(ReceiveOutcome::Nothing),
                Err(error) => Err(error),
            };
        }
        // A partly read response keeps its permit until it is complete.
        session.permit = permit;
        let closed = session.keeper.as_ref().is_none_or(|keeper| keeper.link.is_closed());
        let gone = answer.is_err() || flushed.is_err() || closed;
        if gone || session.failed {
            return self.lost(id, number);
        }
        self.arm(id, false);
    }

    /// Handles the end of a keeper's connection, after a request or its death.
    fn lost(&mut self, id: &SessionId, number: u64) {
        self.numbers.remove(&number);
        self.holding.remove(id);
        self.crowded.remove(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        let failed_to_start = session.failed || session.state() == SessionState::Creating;
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
}

impl AsFd for TerminalRuntime {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
