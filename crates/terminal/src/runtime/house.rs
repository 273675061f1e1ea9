//! Housekeeping: adopts the sessions of dead runtimes, ends idle ones, and forgets ended ones.

use std::os::fd::OwnedFd;

use abide_keeper::KeeperError;
use abide_keeper::launch::{KeeperConnection, kill, sweep};
use abide_keeper::place::KeeperDir;
use abide_keeper::protocol::{KeeperOwner, KeeperRequest, KeeperResponse, KeeperStatus};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::TerminalRuntime;
use crate::call::SessionState;
use crate::clock::{ticks, unix_micros};
use crate::session::{PendingReply, RuntimeSession, SessionId, session_places};

/// Maximum number of ended sessions that stay known, independent of their age.
const MAX_REMEMBERED: usize = 256;
/// The number of the timer in the poller.
pub(super) const TIMER: u64 = 0;
/// Time limit for the responses of all keepers together, in milliseconds. The runtime is blocked meanwhile.
const PATIENCE_MS: u64 = 1_000;

impl TerminalRuntime {
    /// Adopts the sessions of dead runtimes, and removes those of dead keepers. A keeper that does not answer is waited
    /// for once, within the time limit. A later response is handled in a later round.
    pub(super) fn adopt(&mut self) {
        let places = session_places(&self.config.keepers);
        self.asked.retain(|id, _| places.iter().any(|(name, _)| name == id.as_str()));
        let mut patience_ms = 0;
        for (name, place) in &places {
            let id = SessionId::from_text(name);
            if self.sessions.contains_key(&id) || self.asked.contains_key(&id) {
                continue;
            }
            match KeeperConnection::attach(place.clone()) {
                Ok(keeper) => {
                    self.asked.insert(id, keeper);
                    patience_ms = PATIENCE_MS;
                }
                Err(KeeperError::Silent { .. }) => {}
                Err(_) => drop(sweep(place)),
            }
        }
        let until = ticks() + patience_ms;
        for (id, mut keeper) in std::mem::take(&mut self.asked) {
            match keeper.status(until.saturating_sub(ticks())) {
                Ok(status) => self.adopt_orphan(id, keeper, &status),
                Err(KeeperError::Silent { .. }) => drop(self.asked.insert(id, keeper)),
                Err(_) => {}
            }
        }
    }

    fn adopt_orphan(&mut self, id: SessionId, mut keeper: KeeperConnection, status: &KeeperStatus) {
        let orphaned = match &status.owner {
            KeeperOwner::Home => false,
            KeeperOwner::Process(process) => !process.is_alive(),
        };
        // The keeper decides, so only one of two competing runtimes succeeds.
        let owner = self.owner.clone();
        if !orphaned
            || !matches!(keeper.ask(1, KeeperRequest::Own(owner), PATIENCE_MS), Ok(KeeperResponse::Status(_)))
        {
            return;
        }
        let meta = serde_json::from_slice(&status.meta).unwrap_or_default();
        let mut session = RuntimeSession::new(id, meta, keeper);
        session.learn(status);
        if let Some((job, _)) = status.running {
            let act = KeeperRequest::Follow { job, from: [u64::MAX; 2] };
            // A lost keeper is detected at the next read.
            session.order(act, PendingReply::Inherited).ok();
        }
        self.adopted += 1;
        self.register(session);
    }

    pub(super) fn housekeep(&mut self) {
        let limits = self.config.limits;
        let now = unix_micros();
        let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
        let mut remembered: Vec<(u64, SessionId)> = Vec::new();
        for id in ids {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let quiet_ms = now.saturating_sub(session.last_activity_at) / 1_000;
            if let Some(keeper) = session.keeper_that_does_not_end() {
                kill_in_background(keeper);
            }
            match session.state() {
                SessionState::Idle if limits.idle_ms > 0 && quiet_ms > limits.idle_ms => {
                    // A lost keeper is detected at the next read.
                    self.order(&id, KeeperRequest::End { force: false }, PendingReply::Housekeeping).ok();
                }
                SessionState::Terminated if quiet_ms > limits.remember_ms => self.forget(&id),
                SessionState::Terminated => remembered.push((session.last_activity_at, id)),
                SessionState::Idle | SessionState::Creating | SessionState::Running => {}
            }
        }
        remembered.sort();
        for (_, id) in remembered.iter().rev().skip(MAX_REMEMBERED) {
            self.forget(id);
        }
        self.adopt();
    }

    /// Forgets an ended session: first its keeper exits, then the entry is removed.
    pub(super) fn forget(&mut self, id: &SessionId) {
        match self.sessions.get_mut(id) {
            Some(session) if session.keeper.is_some() => {
                // A lost keeper is detected at the next read.
                self.order(id, KeeperRequest::End { force: true }, PendingReply::Housekeeping).ok();
            }
            _ => drop(self.sessions.remove(id)),
        }
    }
}

/// Kills a keeper that does not follow the request to end, with all its descendants. This takes seconds, so it runs on
/// a thread. The closed connection notifies the runtime.
fn kill_in_background(place: KeeperDir) {
    let thread = std::thread::Builder::new().name("kill-keeper".to_owned());
    // Without a thread it is retried in the next round.
    thread.spawn(move || kill(&place, None)).ok();
}

/// A separate timer, because a timeout on every wait would set a kernel timer for every command.
pub(super) fn timer(poller: &OwnedFd, period_ms: u64) -> Result<OwnedFd, Errno> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let period_ms = i64::try_from(period_ms.max(1)).unwrap_or(i64::MAX);
    let period = Timespec { tv_sec: period_ms / 1_000, tv_nsec: period_ms % 1_000 * 1_000_000 };
    let period = Itimerspec { it_interval: period, it_value: period };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &period)?;
    epoll::add(poller, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
    Ok(timer)
}
