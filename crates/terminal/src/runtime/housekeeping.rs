//! Housekeeping: adopts the sessions of dead runtimes, ends idle ones, and forgets ended ones.

use std::os::fd::OwnedFd;

use abide_keeper::KeeperError;
use abide_keeper::client::{
    KeeperConnection, KeeperRequests,
    timeouts::{ADOPT_TIMEOUT_MS, RESUME_INTERVAL_MS},
};
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::launch::{clean_up_dead_keeper, kill_keeper, resume_stopped_keeper};
use abide_keeper::protocol::{KeeperOwner, KeeperRequest, KeeperStatus};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::TerminalRuntime;
use crate::call::SessionState;
use crate::clock::{boottime_millis, unix_micros};
use crate::session::{KeeperCheck, PendingReply, RuntimeSession, SessionId, session_dirs};

/// Maximum number of ended sessions that stay known, independent of their age.
const MAX_ENDED_SESSIONS: usize = 256;
/// The number of the timer in the poller.
pub(super) const TIMER_KEY: u64 = 0;

impl TerminalRuntime {
    /// Adopts the sessions of dead runtimes, and removes those of dead keepers. A keeper that does not answer is waited
    /// for once, within the time limit. A later response is handled in a later round.
    pub(super) fn adopt(&mut self) {
        let keeper_dirs = session_dirs(&self.config.keepers_dir);
        self.unanswered_keepers.retain(|id, _| keeper_dirs.iter().any(|(name, _)| name == id.as_str()));
        let mut timeout_ms = 0;
        for (name, keeper_dir) in &keeper_dirs {
            let id = SessionId::from_text(name);
            if self.sessions.contains_key(&id) || self.unanswered_keepers.contains_key(&id) {
                continue;
            }
            resume_stopped_keeper(keeper_dir);
            match KeeperConnection::attach(keeper_dir.clone()) {
                Ok(keeper) => {
                    self.unanswered_keepers.insert(id, keeper);
                    timeout_ms = ADOPT_TIMEOUT_MS;
                }
                Err(KeeperError::Unresponsive { .. }) => {}
                Err(_) => drop(clean_up_dead_keeper(keeper_dir)),
            }
        }
        let until = boottime_millis() + timeout_ms;
        for (id, mut keeper) in std::mem::take(&mut self.unanswered_keepers) {
            match keeper.status(until.saturating_sub(boottime_millis())) {
                Ok(status) => self.adopt_orphan(id, keeper, &status),
                Err(KeeperError::Unresponsive { .. }) => drop(self.unanswered_keepers.insert(id, keeper)),
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
        if !orphaned || keeper.own(owner, ADOPT_TIMEOUT_MS).is_err() {
            return;
        }
        let meta = serde_json::from_slice(&status.meta).unwrap_or_default();
        let mut session = RuntimeSession::new(id, meta, keeper);
        session.info.update(status);
        if let Some((job, _)) = status.running {
            let request = KeeperRequest::Follow { job, from: [u64::MAX; 2] };
            // A lost keeper is detected at the next read.
            session.send_request(request, PendingReply::Inherited).ok();
        }
        self.adopted_count += 1;
        self.register(session);
    }

    pub(super) fn housekeep(&mut self) {
        let limits = self.config.limits;
        let now = unix_micros();
        let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
        let mut ended_sessions: Vec<(u64, SessionId)> = Vec::new();
        for id in ids {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let quiet_ms = now.saturating_sub(session.info.last_activity_at) / 1_000;
            if let Some(keeper) = session.overdue_keeper_dir() {
                kill_in_background(keeper);
            }
            match session.state() {
                SessionState::Idle if limits.idle_timeout_ms > 0 && quiet_ms > limits.idle_timeout_ms => {
                    // A lost keeper is detected at the next read.
                    self.send_request(&id, KeeperRequest::End { force: false }, PendingReply::Housekeeping)
                        .ok();
                }
                SessionState::Terminated if quiet_ms > limits.ended_retention_ms => {
                    self.evict_ended_session(&id)
                }
                SessionState::Terminated => ended_sessions.push((session.info.last_activity_at, id)),
                SessionState::Idle | SessionState::Creating | SessionState::Running => {}
            }
        }
        ended_sessions.sort();
        for (_, id) in ended_sessions.iter().rev().skip(MAX_ENDED_SESSIONS) {
            self.evict_ended_session(id);
        }
        self.adopt();
    }

    /// Continues the keepers that owe a response and were stopped by a command of their session. One that stays stopped
    /// is killed, which ends its session.
    pub(super) fn check_awaited_keepers(&mut self) {
        let mut next_check_in_ms = None;
        for session in self.sessions.values_mut() {
            let wait_ms = match session.check_keeper() {
                None => continue,
                Some(KeeperCheck::Waiting { next_check_in_ms }) => next_check_in_ms,
                Some(KeeperCheck::Overdue(keeper_dir)) => {
                    kill_in_background(keeper_dir);
                    RESUME_INTERVAL_MS
                }
            };
            next_check_in_ms = Some(next_check_in_ms.map_or(wait_ms, |ms: u64| ms.min(wait_ms)));
        }
        self.keeper_check.tick_with_period(next_check_in_ms.map(|ms| ms.max(1) * 1_000));
    }

    /// Forgets an ended session: first its keeper exits, then the entry is removed.
    pub(super) fn evict_ended_session(&mut self, id: &SessionId) {
        match self.sessions.get_mut(id) {
            Some(session) if session.keeper.is_some() => {
                // A lost keeper is detected at the next read.
                self.send_request(id, KeeperRequest::End { force: true }, PendingReply::Housekeeping).ok();
            }
            _ => drop(self.sessions.remove(id)),
        }
    }
}

/// Kills a keeper that does not follow the request to end, with all its descendants. This takes seconds, so it runs on
/// a thread. The closed connection notifies the runtime.
fn kill_in_background(keeper_dir: KeeperDir) {
    let thread = std::thread::Builder::new().name("kill-keeper".to_owned());
    // Without a thread it is retried in the next round.
    thread.spawn(move || kill_keeper(&keeper_dir, None)).ok();
}

/// A separate timer, because a timeout on every wait would set a kernel timer for every command.
pub(super) fn create_timer(poller: &OwnedFd, period_ms: u64) -> Result<OwnedFd, Errno> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let period_ms = i64::try_from(period_ms.max(1)).unwrap_or(i64::MAX);
    let period = Timespec { tv_sec: period_ms / 1_000, tv_nsec: period_ms % 1_000 * 1_000_000 };
    let period = Itimerspec { it_interval: period, it_value: period };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &period)?;
    epoll::add(poller, &timer, epoll::EventData::new_u64(TIMER_KEY), epoll::EventFlags::IN)?;
    Ok(timer)
}
