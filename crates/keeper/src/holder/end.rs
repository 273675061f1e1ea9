//! Shutdown of a keeper: its descendants get SIGTERM, then SIGKILL, and are reaped; then the directory is removed. A
//! keeper whose directory was deleted shuts down by itself.

use std::path::PathBuf;

use rustix::event::epoll::EventFlags;
use rustix::fs::inotify;
use rustix::process::Signal;

use super::ChildSupervisor;
use super::clients::ClientConnections;
use super::poller::PollSource;
use crate::clock::ticks;
use crate::group::ChildGroup;
use crate::job::GRACE;
use crate::launch::{FIRST, keepers_in};
use crate::procs;
use crate::protocol::{KeeperRefusal, KeeperResponse};

/// The progress of the shutdown.
#[derive(Debug)]
pub(super) struct ShutdownProgress {
    kill_at: u64,
    next: u64,
    tell: Vec<(u64, u64)>,
    /// The deadline for clients to receive the last output.
    lingers_until: Option<u64>,
    /// The keepers in this directory are not ended.
    except: Option<PathBuf>,
    over: bool,
}

/// Interval of checks for remaining processes, in microseconds.
const LOOK: u64 = 20_000;
/// Time limit for clients to receive the last output, in microseconds.
const LINGER: u64 = 2_000_000;

impl ShutdownProgress {
    pub(super) fn wakes_at(&self) -> u64 {
        self.next
    }

    /// The pids of the keepers that are not ended.
    fn spared(&self) -> Vec<u32> {
        self.except.as_deref().map(keepers_in).unwrap_or_default()
    }
}

impl ChildSupervisor {
    /// Starts the shutdown, or shortens its grace period.
    pub(super) fn end(&mut self, force: bool, client: Option<(u64, u64)>, except: Option<PathBuf>) {
        let now = ticks();
        let kill_at = if force { now } else { now + GRACE };
        match &mut self.ending {
            Some(ending) => {
                ending.kill_at = ending.kill_at.min(kill_at);
                ending.next = now;
                ending.tell.extend(client);
            }
            None => {
                let ending = ShutdownProgress {
                    kill_at,
                    next: now,
                    tell: client.into_iter().collect(),
                    lingers_until: None,
                    except,
                    over: false,
                };
                let spared = ending.spared();
                self.ending = Some(ending);
                self.cancel_for_end();
                if let Some((_, from)) = self.waiting.take() {
                    self.clients.tell(from, KeeperResponse::Refused(KeeperRefusal::Ended));
                }
                if let Some(prompter) = &mut self.prompter {
                    prompter.close();
                }
                if !force {
                    for process in procs::descendants(self.own.pid, &spared) {
                        process.signal(Signal::TERM);
                        process.signal(Signal::CONT);
                    }
                    // An interactive shell ignores SIGTERM.
                    self.signal_child(Signal::HUP);
                }
            }
        }
        self.go_on_ending(now);
    }

    pub(super) fn go_on_ending(&mut self, now: u64) {
        let Some(ending) = &mut self.ending else { return };
        if now < ending.next || ending.over {
            return;
        }
        ending.next = now + LOOK;
        let kill = now >= ending.kill_at;
        // Two scans, because the first may miss a process that is being forked.
        let spared = ending.spared();
        let left = procs::descendants(self.own.pid, &spared);
        if kill {
            for process in &left {
                process.signal(Signal::KILL);
            }
            // This also kills processes forked since the scan. Spared keepers are in their own groups.
            if let Some(group) = &self.group {
                group.kill(&spared);
            }
        }
        let holds_processes = |group: &ChildGroup| group.holds_processes(&spared);
        if self.group.as_ref().is_some_and(holds_processes) {
            return;
        }
        if !left.is_empty() || procs::children(self.own.pid).iter().any(|child| !spared.contains(child)) {
            return;
        }
        if self.exit.is_none() {
            // The exit code of the child arrives with SIGCHLD.
            return self.reap();
        }
        let owed = self.clients.is_owed(&self.spool);
        if let Some(ending) = &mut self.ending {
            let until = *ending.lingers_until.get_or_insert(now + LINGER);
            if owed && now < until {
                return;
            }
            ending.over = true;
        }
        if let Some(group) = &self.group {
            group.remove();
        }
        // The directory is removed before clients are notified, so that they find no trace of the session. It may
        // already be deleted.
        self.place.remove().ok();
        if let Some(refusal) = self.failure.take() {
            self.clients.tell((ClientConnections::CREATOR, FIRST), KeeperResponse::Refused(refusal));
        }
        let tell = self.ending.as_mut().map(|ending| std::mem::take(&mut ending.tell)).unwrap_or_default();
        for client in tell {
            self.clients.tell(client, KeeperResponse::Done);
        }
        self.clients.flush_all();
    }

    /// Watches for the deletion of the directory while its exit record waits to be collected. The parent directory is
    /// watched, because the kernel does not report the deletion of a directory that is still in use. Without a free
    /// inotify watch, the keeper stays until a client ends it.
    pub(super) fn watch_place(&mut self) {
        let Some(keepers) = self.place.path().parent().filter(|_| self.ending.is_none()) else { return };
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        self.vanishing = inotify::init(flags).ok().filter(|watch| {
            inotify::add_watch(watch, keepers, inotify::WatchFlags::DELETE).is_ok()
                && self.poller.add(watch, PollSource::Vanishing, EventFlags::IN).is_ok()
        });
    }

    /// Drains the events of the watch. The caller then checks which directory was deleted.
    pub(super) fn hear_of_vanishing(&mut self) {
        let mut names = [0; 4096];
        while let Some(Ok(1..)) = self.vanishing.as_ref().map(|watch| rustix::io::read(watch, &mut names)) {}
    }

    /// Shuts down if the child has exited and the directory is gone, because no client can collect the exit record any
    /// more.
    pub(super) fn end_if_lost(&mut self) {
        let waits = self.exit.is_some() && self.ending.is_none() && self.clients.is_empty();
        // A directory that cannot be checked may become available again.
        if waits && self.place.path().try_exists().is_ok_and(|exists| !exists) {
            self.end(false, None, None);
        }
    }

    /// Whether the shutdown is complete.
    pub(super) fn is_over(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.over)
    }
}
