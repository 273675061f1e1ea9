//! Shutdown of a keeper: its descendants get SIGTERM, then SIGKILL, and are reaped; then the directory is removed. A
//! keeper whose directory was deleted shuts down by itself.

use std::path::PathBuf;

use rustix::event::epoll::EventFlags;
use rustix::fs::inotify;
use rustix::process::Signal;

use super::ChildSupervisor;
use super::clients::ClientConnections;
use super::poller::PollSource;
use crate::client::FIRST_RESPONSE_TAG;
use crate::clock::boottime_micros;
use crate::control_group::ChildGroup;
use crate::launch::living_keeper_pids;
use crate::process_tree;
use crate::protocol::{KeeperRefusal, KeeperResponse};
use crate::shell_job::TERM_GRACE_US;

/// The progress of the shutdown.
#[derive(Debug)]
pub(super) struct ShutdownProgress {
    kill_at: u64,
    next_check_at: u64,
    clients_to_notify: Vec<(u64, u64)>,
    /// The deadline for clients to receive the last output.
    output_deadline: Option<u64>,
    /// The keepers in this directory are not ended.
    excluded_keepers_dir: Option<PathBuf>,
    is_complete: bool,
}

/// Interval of checks for remaining processes, in microseconds.
const SHUTDOWN_POLL_US: u64 = 20_000;
/// Time limit for clients to receive the last output, in microseconds.
const LAST_OUTPUT_TIMEOUT_US: u64 = 2_000_000;

impl ShutdownProgress {
    pub(super) fn wakes_at(&self) -> u64 {
        self.next_check_at
    }

    /// The pids of the keepers that are not ended.
    fn excluded_pids(&self) -> Vec<u32> {
        self.excluded_keepers_dir.as_deref().map(living_keeper_pids).unwrap_or_default()
    }
}

impl ChildSupervisor {
    /// Starts the shutdown, or shortens its grace period.
    pub(super) fn begin_shutdown(
        &mut self,
        force: bool,
        client: Option<(u64, u64)>,
        except: Option<PathBuf>,
    ) {
        let now = boottime_micros();
        let kill_at = if force { now } else { now + TERM_GRACE_US };
        match &mut self.shutdown {
            Some(ending) => {
                ending.kill_at = ending.kill_at.min(kill_at);
                ending.next_check_at = now;
                ending.clients_to_notify.extend(client);
            }
            None => {
                let ending = ShutdownProgress {
                    kill_at,
                    next_check_at: now,
                    clients_to_notify: client.into_iter().collect(),
                    output_deadline: None,
                    excluded_keepers_dir: except,
                    is_complete: false,
                };
                let excluded_pids = ending.excluded_pids();
                self.shutdown = Some(ending);
                self.cancel_for_shutdown();
                if let Some((_, from)) = self.queued_command.take() {
                    self.clients.send(from, KeeperResponse::Refused(KeeperRefusal::Ended));
                }
                if let Some(driver) = &mut self.shell_driver {
                    driver.close();
                }
                if !force {
                    for process in process_tree::descendants(self.own_identity.pid, &excluded_pids) {
                        process.signal(Signal::TERM);
                        process.signal(Signal::CONT);
                    }
                    // An interactive shell ignores SIGTERM.
                    self.signal_child(Signal::HUP);
                }
            }
        }
        self.advance_shutdown(now);
    }

    pub(super) fn advance_shutdown(&mut self, now: u64) {
        let Some(ending) = &mut self.shutdown else { return };
        if now < ending.next_check_at || ending.is_complete {
            return;
        }
        ending.next_check_at = now + SHUTDOWN_POLL_US;
        let kill = now >= ending.kill_at;
        // Two scans, because the first may miss a process that is being forked.
        let excluded_pids = ending.excluded_pids();
        let left = process_tree::descendants(self.own_identity.pid, &excluded_pids);
        if kill {
            for process in &left {
                process.signal(Signal::KILL);
            }
            // This also kills processes forked since the scan. Spared keepers are in their own groups.
            if let Some(group) = &self.group {
                group.kill(&excluded_pids);
            }
        }
        let holds_processes = |group: &ChildGroup| group.has_processes(&excluded_pids);
        if self.group.as_ref().is_some_and(holds_processes) {
            return;
        }
        if !left.is_empty()
            || process_tree::children(self.own_identity.pid)
                .iter()
                .any(|child| !excluded_pids.contains(child))
        {
            return;
        }
        if self.exit.is_none() {
            // The exit code of the child arrives with SIGCHLD.
            return self.reap();
        }
        let has_unsent_output = self.clients.has_unsent_output(&self.spool);
        if let Some(ending) = &mut self.shutdown {
            let until = *ending.output_deadline.get_or_insert(now + LAST_OUTPUT_TIMEOUT_US);
            if has_unsent_output && now < until {
                return;
            }
            ending.is_complete = true;
        }
        if let Some(group) = &self.group {
            group.remove();
        }
        // The directory is removed before clients are notified, so that they find no trace of the session. It may
        // already be deleted.
        self.keeper_dir.remove().ok();
        if let Some(refusal) = self.start_failure.take() {
            self.clients.send(
                (ClientConnections::CREATOR_NUMBER, FIRST_RESPONSE_TAG),
                KeeperResponse::Refused(refusal),
            );
        }
        let clients = self
            .shutdown
            .as_mut()
            .map(|ending| std::mem::take(&mut ending.clients_to_notify))
            .unwrap_or_default();
        for client in clients {
            self.clients.send(client, KeeperResponse::Done);
        }
        self.clients.flush_all();
    }

    /// Watches for the deletion of the directory while its exit record waits to be collected. The parent directory is
    /// watched, because the kernel does not report the deletion of a directory that is still in use. Without a free
    /// inotify watch, the keeper stays until a client ends it.
    pub(super) fn watch_for_deletion(&mut self) {
        let Some(keepers) = self.keeper_dir.path().parent().filter(|_| self.shutdown.is_none()) else {
            return;
        };
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        self.deletion_watch = inotify::init(flags).ok().filter(|watch| {
            inotify::add_watch(watch, keepers, inotify::WatchFlags::DELETE).is_ok()
                && self.poller.add(watch, PollSource::DeletionWatch, EventFlags::IN).is_ok()
        });
    }

    /// Drains the events of the watch. The caller then checks which directory was deleted.
    pub(super) fn drain_deletion_events(&mut self) {
        let mut names = [0; 4096];
        while let Some(Ok(1..)) =
            self.deletion_watch.as_ref().map(|watch| rustix::io::read(watch, &mut names))
        {}
    }

    /// Shuts down if the child has exited and the directory is gone, because no client can collect the exit record any
    /// more. Clients that are connected have been notified of the exit.
    pub(super) fn shut_down_if_directory_deleted(&mut self) {
        let waits = self.exit.is_some() && self.shutdown.is_none() && !self.clients.has_followers();
        // A directory that cannot be checked may become available again.
        if waits && self.keeper_dir.path().try_exists().is_ok_and(|exists| !exists) {
            self.begin_shutdown(false, None, None);
        }
    }

    /// Whether the shutdown is complete.
    pub(super) fn is_shut_down(&self) -> bool {
        self.shutdown.as_ref().is_some_and(|ending| ending.is_complete)
    }
}
