//! Finds the keeper in a directory, also while it starts.

use rustix::event::{Timespec, poll};

use super::connection::KeeperConnection;
use super::timeouts::{CLAIM_WAIT_MS, STARTUP_POLL_MS, STARTUP_WAIT_MS};
use crate::clock::boottime_millis;
use crate::error::KeeperError;
use crate::identity::ProcessIdentity;
use crate::keeper_dir::{FinalRecord, KeeperDir};
use crate::launch::{StartupState, forbid_start, recorded_child, startup_state};
use crate::protocol::KeeperStatus;

/// The result of looking up a keeper.
#[derive(Debug)]
pub enum KeeperLookup {
    /// It is alive and responds.
    Alive(Box<KeeperConnection>, Box<KeeperStatus>),
    /// It is dead and recorded the exit of its child.
    Exited(Box<ProcessIdentity>, FinalRecord),
    /// It is alive and does not respond.
    Unresponsive,
    /// It is dead and recorded no exit.
    Lost,
    /// It was created for a child and certainly never started it.
    NotStarted,
    /// There is no keeper in this directory.
    Absent,
}

/// The treatment of a directory that no keeper has claimed yet. In both cases a late keeper is prevented from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnclaimedPolicy {
    /// Waits [`CLAIM_WAIT_MS`] for a keeper that may just have been started.
    Wait,
    /// The program that created the directory is dead and started no keeper.
    ForbidStart,
}

/// Looks up the keeper in a directory and waits for its status. Waits for a keeper that is starting. A keeper that was
/// never told what to start, because its starter died, is prevented from starting anything.
pub fn find(
    keeper_dir: &KeeperDir,
    unclaimed_policy: UnclaimedPolicy,
    status_timeout_ms: u64,
) -> KeeperLookup {
    let found = connect_with(keeper_dir, unclaimed_policy, |mut keeper| {
        let status = keeper.status(status_timeout_ms)?;
        Ok(KeeperLookup::Alive(Box::new(keeper), Box::new(status)))
    });
    found.unwrap_or_else(|failure| failure)
}

/// The same without waiting for the status, which is the first response. The error is never
/// [`KeeperLookup::Alive`].
pub fn connect(
    keeper_dir: &KeeperDir,
    unclaimed_policy: UnclaimedPolicy,
) -> Result<KeeperConnection, KeeperLookup> {
    connect_with(keeper_dir, unclaimed_policy, Ok)
}

fn connect_with<T>(
    keeper_dir: &KeeperDir,
    unclaimed_policy: UnclaimedPolicy,
    use_connection: impl Fn(KeeperConnection) -> Result<T, KeeperError>,
) -> Result<T, KeeperLookup> {
    let started_at = boottime_millis();
    loop {
        if !keeper_dir.path().exists() {
            return Err(KeeperLookup::Absent);
        }
        match KeeperConnection::attach(keeper_dir.clone()).and_then(&use_connection) {
            Ok(found) => return Ok(found),
            Err(KeeperError::Unresponsive { .. }) => return Err(KeeperLookup::Unresponsive),
            Err(
                KeeperError::NoKeeper { .. }
                | KeeperError::Refused(_)
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => {}
        }
        let waited_ms = boottime_millis().saturating_sub(started_at);
        match startup_state(keeper_dir) {
            StartupState::Dead => return Err(look_up_dead(keeper_dir)),
            StartupState::Forbidden => return Err(KeeperLookup::NotStarted),
            StartupState::Unclaimed
                if unclaimed_policy == UnclaimedPolicy::Wait && waited_ms < CLAIM_WAIT_MS => {}
            StartupState::Unclaimed => forbid_start(keeper_dir),
            StartupState::Alive if waited_ms < STARTUP_WAIT_MS => {}
            StartupState::Alive => return Err(KeeperLookup::Unresponsive),
        }
        pause_ms(STARTUP_POLL_MS);
    }
}

/// The state of a dead keeper and its child, from its files.
fn look_up_dead(keeper_dir: &KeeperDir) -> KeeperLookup {
    match (recorded_child(keeper_dir), keeper_dir.read_exit_record()) {
        (Some(child), Some(record)) => KeeperLookup::Exited(Box::new(child), record),
        (Some(_) | None, _) if keeper_dir.path().exists() => KeeperLookup::Lost,
        (Some(_) | None, _) => KeeperLookup::Absent,
    }
}

/// Waits a short time for a keeper that has no socket yet, or is dying, and so has nothing to wait on.
pub(super) fn pause_ms(milliseconds: u64) {
    let nanoseconds = i64::try_from(milliseconds).unwrap_or(0).saturating_mul(1_000_000);
    // Only a pause; a signal makes it shorter.
    poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: nanoseconds })).ok();
}
