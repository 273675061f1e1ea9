//! The pool: sessions by id, calls in, events out, and the housekeeping between.
//!
//! A runtime owns its sessions. Another runtime in the same home leaves them alone while this process lives, and adopts
//! them when it is dead; an orderly end takes them along.

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
/// How long there has to be nothing to do before a keeper is started for the next session.
const IDLE_NS: i64 = 2_000_000;
/// How long the result of a short command is looked for, in microseconds.
const LOOK_US: u64 = 300;
/// With more than this to be taken by the caller, no further keeper is heard.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// The caller's number for an end of its own, see [`TerminalRuntime::watch`].
pub type ExternalFd = u64;
/// Where such numbers begin among those of sessions.
const OWN: u64 = 1 << 63;
/// The number of the bell that tells of room for large answers.
const ROOM: u64 = OWN - 1;

/// Whether to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeWait {
    /// Until a keeper or an end of the caller's is ready.
    ForSomething,
    /// Take what there is.
    No,
}

/// The terminal runtime.
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
    /// How many bytes of output the events carry.
    event_bytes: usize,
    held: bool,
    /// Sessions whose streams alone are held back.
    holding: BTreeSet<SessionId>,
    room: Arc<AnswerRoom>,
    /// Sessions whose large answers wait for room.
    crowded: BTreeSet<SessionId>,
    commands: u64,
    adopted: u64,
    timer: OwnedFd,
    spin: AdaptiveSpin,
    /// A keeper that waits for the next session. Who makes one session soon makes another, and most of the time that
    /// takes is the start of the keeper.
    spare: Option<StandbyKeeper>,
    wants_spare: bool,
}

impl TerminalRuntime {
    /// A runtime on this home. Sessions of dead runtimes are its own from now on.
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

    /// Takes a call. Its answer is an event, now or later.
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

    /// Does something for one session, or for none. A panic ends that session and nothing else.
    fn contain<T>(&mut self, session: Option<&SessionId>, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(self))).ok();
        if let (None, Some(id)) = (&done, session)
            && catch_unwind(AssertUnwindSafe(|| self.break_off(id))).is_err()
        {
            // Not even its end can be told. Its keeper is adopted or swept later.
            self.sessions.remove(id);
            self.numbers.retain(|_, known| known != id);
        }
        done
    }

    /// Ends a session whose state cannot be trusted any more.
    fn break_off(&mut self, id: &SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            // Its keeper ends everything that it holds. One that does not hear it is swept with its folder.
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

    /// What has happened since the last time.
    pub fn events(&mut self) -> Vec<TerminalEvent> {
        self.event_bytes = 0;
        std::mem::take(&mut self.events)
    }

    /// Hears every keeper that has something to say, and keeps house. Never blocks; call it when [`AsFd`] is readable.
    pub fn work(&mut self) {
        let _nobody_else_is_waited_for = self.wait(RuntimeWait::No);
    }

    /// The same, after waiting until there is something to hear; says which of the caller's own ends are ready too.
    ///
    /// Who waits here is woken once for a keeper's answer; who polls the runtime from outside is woken through it.
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
                // One that has to wait is ready still when it is looked at again.
                self.contain(Some(&id), |runtime| {
                    failpoint::reach(Some(&id));
                    runtime.hear(&id, number, event.flags);
                });
            }
        }
        own
    }

    /// Whether somebody waits for a session. Starting the next one's keeper meanwhile would take its shell's processor.
    fn is_creating(&self) -> bool {
        self.sessions.values().any(|session| session.state() == SessionState::Creating)
    }

    /// Lets [`Self::wait`] also wait for an end of the caller's, or for other things at it than before.
    pub fn watch(&self, end: impl AsFd, which: ExternalFd, flags: epoll::EventFlags) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(OWN + which);
        match epoll::modify(&self.poller, &end, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.poller, &end, data, flags)?),
            changed => Ok(changed?),
        }
    }

    /// Waits for it no longer.
    pub fn ignore(&self, end: impl AsFd) {
        let _was_not_watched = epoll::delete(&self.poller, end);
    }

    /// Stops or resumes taking output and answers of all sessions, because their reader does not keep up.
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

    /// Ends every session, in order, and waits until nothing is left of them.
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
                let _gone_is_fine =
                    session.order(KeeperRequest::End { force: false }, PendingReply::Housekeeping);
            }
        }
        self.wait_for_ends(ENDING_MS);
        for session in self.sessions.values_mut() {
            let _gone_is_fine = session.order(KeeperRequest::End { force: true }, PendingReply::Housekeeping);
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
            // Results that are not taken any more would keep the room of others.
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
        if !(self.held || self.holding.contains(id) || self.crowded.contains(id)) {
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

    fn hear(&mut self, id: &SessionId, number: u64, flags: epoll::EventFlags) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(keeper) = &mut session.keeper else { return };
        let flushed = keeper.link.flush();
        // One read of the socket at a time, so that one loud session does not keep the others waiting.
        let mut permit = None;
        let mut answer = keeper.link.receive_up_to::<TaggedResponse>(SMALL_ANSWER_BYTES);
        if let Ok(ReceiveOutcome::Large(length)) = answer {
            permit = session.permit.take().filter(|permit| permit.bytes() >= length);
            permit = permit.or_else(|| self.room.take(length));
            // A keeper that has gone sends nothing more, so there is nothing to wait for.
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
        // What has been read of an answer keeps its room until the rest is there.
        session.permit = permit;
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
