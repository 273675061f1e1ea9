//! Ends keepers with their children, and cleans up after those that cannot be asked.

use std::path::Path;

use super::connection::KeeperConnection;
use super::lookup::{UnclaimedPolicy, connect, pause_ms};
use super::timeouts::{END_TIMEOUT_MS, KILLED_EXIT_TIMEOUT_MS, RESPONSE_TIMEOUT_MS, STOP_POLL_MS};
use super::watchdog::{KeeperDuty, KeeperWatchdog};
use crate::clock::boottime_millis;
use crate::error::KeeperError;
use crate::keeper_dir::KeeperDir;
use crate::launch::{clean_up_dead_keeper, kill_keeper, resume_keeper};
use crate::protocol::{ChildExit, KeeperRequest, RequestTag, TaggedResponse};

/// How a keeper ends its child and all descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndMode {
    /// SIGTERM, a grace period, then SIGKILL.
    Graceful,
    /// SIGKILL.
    Forced,
    /// Like [`Self::Graceful`], but spares the keepers in this directory and their children.
    Except(String),
}

impl EndMode {
    pub(super) fn request(self) -> KeeperRequest {
        match self {
            Self::Graceful => KeeperRequest::End { force: false },
            Self::Forced => KeeperRequest::End { force: true },
            Self::Except(keepers) => KeeperRequest::EndExcept { keepers },
        }
    }
}

impl KeeperConnection {
    /// Tells the keeper to end, without waiting. A keeper that is stopped is continued.
    pub fn request_end(&mut self, mode: EndMode) -> Result<RequestTag, KeeperError> {
        self.resume();
        self.send(mode.request())
    }

    /// Waits for a keeper that was told to end: until it has confirmed, has exited and, if this process started it, is
    /// reaped. Returns the exit of the child, if it is known.
    ///
    /// A keeper that is stopped meanwhile is continued; one that stays stopped is an error.
    pub fn await_end(&mut self, end: RequestTag) -> Result<Option<ChildExit>, KeeperError> {
        let give_up_at = boottime_millis() + END_TIMEOUT_MS;
        let mut watchdog = KeeperWatchdog::new();
        loop {
            match self.next_response(watchdog.next_check_in_ms()) {
                Ok(Some(TaggedResponse { tag, .. })) if tag == end => break,
                Ok(Some(_)) => watchdog.on_response(),
                Ok(None) if boottime_millis() >= give_up_at => return Err(self.unresponsive_error()),
                Ok(None) if self.is_overdue(&mut watchdog, KeeperDuty::Stop) => {
                    return Err(self.unresponsive_error());
                }
                Ok(None) => {}
                // A keeper that disconnects before it responds has ended its child.
                Err(KeeperError::NoKeeper { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        self.await_exit();
        Ok(self.exit().cloned())
    }

    /// Ends the child and the keeper. Returns the exit of the child, if it is known.
    pub fn end(&mut self, mode: EndMode) -> Result<Option<ChildExit>, KeeperError> {
        let end = self.request_end(mode)?;
        self.await_end(end)
    }

    /// Waits until a keeper that is ending has exited, and reaps it, so that no zombie remains. Returns whether it has
    /// exited.
    pub fn await_exit(&mut self) -> bool {
        let give_up_at = boottime_millis() + END_TIMEOUT_MS;
        // Remaining responses are dropped. An error means that the connection is closed or unusable.
        while boottime_millis() < give_up_at && self.next_response(STOP_POLL_MS).is_ok() {}
        if self.is_closed()
            && let Some(mut process) = self.take_process()
        {
            // The keeper's connections close only when it exits, so this does not block.
            process.wait().ok();
        }
        self.is_closed()
    }
}

/// Removes the files and processes of a keeper that is gone.
pub fn remove_dead_keeper(keeper: &KeeperConnection) {
    let keeper_dir = &keeper.keeper_dir;
    // A keeper that was killed before it recorded its child looks like one that is starting, unless its connection is
    // closed.
    if keeper_dir.path().exists() && !clean_up_dead_keeper(keeper_dir) && keeper.is_closed() {
        keeper_dir.remove().ok();
    }
}

/// Ends the keeper in a directory in any state, and removes its files. A keeper that does not respond is killed.
/// Returns whether nothing of it is left.
pub fn end_in_directory(keeper_dir: &KeeperDir, unclaimed_policy: UnclaimedPolicy) -> bool {
    if !keeper_dir.path().exists() {
        return true;
    }
    resume_keeper(keeper_dir);
    match connect(keeper_dir, unclaimed_policy) {
        Ok(mut keeper) => {
            let is_ended =
                keeper.status(RESPONSE_TIMEOUT_MS).is_ok() && keeper.end(EndMode::Graceful).is_ok();
            remove_dead_keeper(&keeper);
            is_ended || kill_unresponsive(keeper_dir, None)
        }
        Err(_) => clean_up_dead_keeper(keeper_dir) || kill_unresponsive(keeper_dir, None),
    }
}

/// Kills a keeper that does not respond and its descendants, except the keepers in one directory, and removes its
/// files. Returns whether nothing of it is left.
pub fn kill_unresponsive(keeper_dir: &KeeperDir, excluded_keepers_dir: Option<&Path>) -> bool {
    kill_keeper(keeper_dir, excluded_keepers_dir);
    let give_up_at = boottime_millis() + KILLED_EXIT_TIMEOUT_MS;
    loop {
        if clean_up_dead_keeper(keeper_dir) || !keeper_dir.path().exists() {
            return true;
        }
        if boottime_millis() >= give_up_at {
            return false;
        }
        pause_ms(STOP_POLL_MS);
    }
}
