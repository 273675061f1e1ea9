//! The end of a keeper: everything below it is asked to end, killed, reaped; then its directory is removed. One that
//! nobody can find any more ends itself.

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

/// How far the end has come.
#[derive(Debug)]
pub(super) struct ShutdownProgress {
    kill_at: u64,
    next: u64,
    tell: Vec<(u64, u64)>,
    /// Until when those are waited for who have not taken the last output yet.
    lingers_until: Option<u64>,
    /// A directory whose keepers stay.
    except: Option<PathBuf>,
    over: bool,
}

/// How often what is left is looked at, in microseconds.
const LOOK: u64 = 20_000;
/// How long somebody may take for the last output, in microseconds.
const LINGER: u64 = 2_000_000;

impl ShutdownProgress {
    pub(super) fn wakes_at(&self) -> u64 {
        self.next
    }

    /// Those who stay.
    fn spared(&self) -> Vec<u32> {
        self.except.as_deref().map(keepers_in).unwrap_or_default()
    }
}

impl ChildSupervisor {
    /// Begins the end, or hurries it.
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
                    // An interactive shell takes no notice of SIGTERM.
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
        // Two looks: a process that is just forking may have been missed by the first.
        let spared = ending.spared();
        let left = procs::descendants(self.own.pid, &spared);
        if kill {
            for process in &left {
                process.signal(Signal::KILL);
            }
            // What was forked since the look too. Keepers that stay are in groups of their own.
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
            // The child's exit code is on its way with SIGCHLD.
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
        // The directory goes first: who is told that the session has ended finds nothing of it.
        let _already_gone_is_fine = self.place.remove();
        if let Some(refusal) = self.failure.take() {
            self.clients.tell((ClientConnections::CREATOR, FIRST), KeeperResponse::Refused(refusal));
        }
        let tell = self.ending.as_mut().map(|ending| std::mem::take(&mut ending.tell)).unwrap_or_default();
        for client in tell {
            self.clients.tell(client, KeeperResponse::Done);
        }
        self.clients.flush_all();
    }

    /// Has us woken when the place of a record that waits to be collected goes. Its own end is told only to those who hold
    /// nothing in it, so the folder that it lies in is watched. Where the system has no watch left, such a keeper stays
    /// until somebody ends it.
    pub(super) fn watch_place(&mut self) {
        let Some(keepers) = self.place.path().parent().filter(|_| self.ending.is_none()) else { return };
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        self.vanishing = inotify::init(flags).ok().filter(|watch| {
            inotify::add_watch(watch, keepers, inotify::WatchFlags::DELETE).is_ok()
                && self.poller.add(watch, PollSource::Vanishing, EventFlags::IN).is_ok()
        });
    }

    /// Something that lay beside us, or we, is gone; which, is seen by looking.
    pub(super) fn hear_of_vanishing(&mut self) {
        let mut names = [0; 4096];
        while let Some(Ok(1..)) = self.vanishing.as_ref().map(|watch| rustix::io::read(watch, &mut names)) {}
    }

    /// Ends a keeper whose child is over and whose record nobody can collect any more, because its place is gone.
    pub(super) fn end_if_lost(&mut self) {
        let waits = self.exit.is_some() && self.ending.is_none() && self.clients.is_empty();
        // A place that cannot be looked at may come back.
        if waits && self.place.path().try_exists().is_ok_and(|exists| !exists) {
            self.end(false, None, None);
        }
    }

    /// Whether there is nothing left to hold.
    pub(super) fn is_over(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.over)
    }
}
