//! Starts keepers, reads their records, and cleans up after dead ones. Connections are in [`crate::client`].

use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::child::spawn_keeper;
use crate::client::KeeperConnection;
use crate::client::timeouts::START_TIMEOUT_MS;
use crate::clock::boottime_micros;
use crate::control_group::{self, ControlGroupConfig};
use crate::error::KeeperError;
use crate::framed_socket::{FramedSocket, socket_pair};
use crate::identity::ProcessIdentity;
use crate::keeper_dir::{DirClaim, KeeperDir};
use crate::process_tree::{self, ProcessKey};
use crate::protocol::{KeeperRefusal, KeeperSpec, KeeperStatus, default_if_missing};

/// Starts this program as a keeper.
#[derive(Debug, Clone)]
pub struct KeeperLauncher {
    /// The path of the program; normally the running one.
    pub program: PathBuf,
    /// The hidden subcommand that starts a keeper, without the program's path.
    pub arguments: Vec<String>,
    /// Where children get their control groups; None if they get none.
    pub groups: Option<ControlGroupConfig>,
}

/// The result of starting a keeper and waiting for its child.
#[derive(Debug)]
pub enum ChildStart {
    Started(Box<KeeperConnection>, Box<KeeperStatus>),
    /// The child was not started. The keeper is reaped and its files are removed.
    Refused(KeeperRefusal),
    /// The keeper was started and does not respond. It is unknown whether it started the child.
    Unknown(Box<KeeperConnection>),
}

/// A keeper that has been started and waits for its request. It exits when this is dropped, or when its starter dies.
#[derive(Debug)]
pub struct StandbyKeeper {
    socket: FramedSocket,
    process: Child,
}

/// The first message to a keeper: its directory and its child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeeperStartRequest {
    #[serde(with = "crate::path_bytes")]
    pub(crate) directory: PathBuf,
    pub(crate) spec: KeeperSpec,
}

impl KeeperLauncher {
    /// Starts a keeper, or uses a standby one. The first response on the connection reports whether the child was
    /// started.
    pub fn start(
        &self,
        keeper_dir: KeeperDir,
        spec: KeeperSpec,
        standby: Option<StandbyKeeper>,
    ) -> Result<KeeperConnection, KeeperError> {
        keeper_dir.create()?;
        let start = KeeperStartRequest { directory: keeper_dir.path().to_owned(), spec };
        let started = self.send_start_request(&start, standby);
        if started.is_err() {
            // Nothing was started in the directory; one that remains is swept later.
            keeper_dir.remove().ok();
        }
        let StandbyKeeper { socket: link, process } = started?;
        Ok(KeeperConnection::new(keeper_dir, link, Some(process)))
    }

    /// The same, and waits for the first response.
    pub fn start_child(
        &self,
        keeper_dir: KeeperDir,
        spec: KeeperSpec,
        standby: Option<StandbyKeeper>,
    ) -> Result<ChildStart, KeeperError> {
        let mut keeper = self.start(keeper_dir, spec, standby)?;
        Ok(match keeper.status(START_TIMEOUT_MS) {
            Ok(status) => ChildStart::Started(Box::new(keeper), Box::new(status)),
            Err(KeeperError::Refused(refusal)) => {
                keeper.await_exit();
                ChildStart::Refused(refusal)
            }
            Err(
                KeeperError::NoKeeper { .. }
                | KeeperError::Unresponsive { .. }
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => ChildStart::Unknown(Box::new(keeper)),
        })
    }

    fn send_start_request(
        &self,
        start: &KeeperStartRequest,
        standby: Option<StandbyKeeper>,
    ) -> Result<StandbyKeeper, KeeperError> {
        // A standby keeper that died while it waited is ignored.
        if let Some(mut standby) = standby
            && standby.process.try_wait().is_ok_and(|ended| ended.is_none())
            && standby.socket.send(start).is_ok()
        {
            return Ok(standby);
        }
        let mut fresh = self.start_standby()?;
        fresh.socket.send(start)?;
        Ok(fresh)
    }

    /// Starts a standby keeper.
    pub fn start_standby(&self) -> Result<StandbyKeeper, KeeperError> {
        self.spawn(&self.arguments)
    }

    fn spawn(&self, arguments: &[impl AsRef<OsStr>]) -> Result<StandbyKeeper, KeeperError> {
        let (ours, theirs) =
            socket_pair().map_err(|error| KeeperError::system("cannot make a socket pair", error))?;
        let process = spawn_keeper(&self.program, arguments, theirs).map_err(|error| {
            KeeperError::system(format!("cannot start {}", self.program.display()), error)
        })?;
        Ok(StandbyKeeper { socket: FramedSocket::new(ours), process })
    }
}

/// The start-up progress of a keeper that does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupState {
    /// No keeper has claimed the directory. One may have been started and may still claim it.
    Unclaimed,
    /// The keeper is alive. It will answer soon or is exiting.
    Alive,
    /// The keeper claimed the directory, and is dead.
    Dead,
    /// The directory is blocked: no keeper started in it, and none ever will.
    Forbidden,
}

/// The start-up progress of the keeper in this directory.
pub fn startup_state(keeper_dir: &KeeperDir) -> StartupState {
    let of =
        |keeper: ProcessIdentity| if keeper.is_alive() { StartupState::Alive } else { StartupState::Dead };
    match (read_identity_record(keeper_dir), keeper_dir.read_claim()) {
        (Some(IdentityRecord { keeper, .. }), _) | (None, Some(DirClaim::Keeper(keeper))) => of(keeper),
        (None, Some(DirClaim::Unreadable)) => StartupState::Dead,
        (None, Some(DirClaim::Forbidden)) => StartupState::Forbidden,
        (None, None) => StartupState::Unclaimed,
    }
}

/// Prevents keepers from starting in this directory. If one has already claimed it, [`startup_state`] reports that.
pub fn forbid_start(keeper_dir: &KeeperDir) {
    // If the directory is already claimed, `stage` reports by which keeper.
    keeper_dir.claim(None).ok();
}

/// The record that a keeper writes after it has started its child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IdentityRecord {
    pub(crate) keeper: ProcessIdentity,
    pub(crate) child: ProcessIdentity,
    /// The child's control group, if it has one. Missing in records of earlier versions.
    #[serde(deserialize_with = "default_if_missing")]
    group: Option<RecordedPath>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordedPath(#[serde(with = "crate::path_bytes")] PathBuf);

impl IdentityRecord {
    pub(crate) fn new(keeper: &ProcessIdentity, child: &ProcessIdentity, group: Option<&Path>) -> Self {
        let group = group.map(|path| RecordedPath(path.to_owned()));
        Self { keeper: keeper.clone(), child: child.clone(), group }
    }

    /// Writes the record into a keeper's directory.
    pub(crate) fn write(&self, keeper_dir: &KeeperDir) -> std::io::Result<()> {
        keeper_dir.write_identity(&postcard::to_stdvec(self).map_err(std::io::Error::other)?)
    }

    fn group(&self) -> Option<&Path> {
        self.group.as_ref().map(|RecordedPath(path)| path.as_path())
    }
}

/// The recorded keeper and child; None until the child has been started.
fn read_identity_record(keeper_dir: &KeeperDir) -> Option<IdentityRecord> {
    postcard::from_bytes(&keeper_dir.identity().ok()?).ok()
}

/// The pids of the living keepers in this directory.
pub(crate) fn living_keeper_pids(directory: &Path) -> Vec<u32> {
    let all = KeeperDir::list(directory).into_iter();
    let living = all.filter_map(|(_, place)| recorded_keeper(&place).filter(ProcessIdentity::is_alive));
    living.map(|keeper| keeper.pid).collect()
}

/// The recorded child of a keeper, whether or not it is alive.
pub fn recorded_child(keeper_dir: &KeeperDir) -> Option<ProcessIdentity> {
    Some(read_identity_record(keeper_dir)?.child)
}

/// The keeper of this directory, from its record or its claim. An agent can stop its keeper before it has written the
/// record.
fn recorded_keeper(keeper_dir: &KeeperDir) -> Option<ProcessIdentity> {
    let claimed = || match keeper_dir.read_claim()? {
        DirClaim::Keeper(keeper) => Some(keeper),
        DirClaim::Forbidden | DirClaim::Unreadable => None,
    };
    read_identity_record(keeper_dir).map(|record| record.keeper).or_else(claimed)
}

/// Sends SIGCONT to a keeper that may be stopped. A running keeper ignores it.
pub fn resume_keeper(keeper_dir: &KeeperDir) {
    if let Some(keeper) = recorded_keeper(keeper_dir).and_then(|keeper| keeper.open()) {
        // A keeper that is gone, or belongs to another user, shows by not answering.
        keeper.signal(Signal::CONT).ok();
    }
}

/// Sends SIGCONT to a keeper that is stopped. A command can stop the keeper of its own session, and would then outlive
/// the timeout that the keeper enforces. Returns whether the keeper was stopped by a signal or a tracer.
pub fn resume_stopped_keeper(keeper_dir: &KeeperDir) -> bool {
    let is_stopped =
        recorded_keeper(keeper_dir).is_some_and(|keeper| process_tree::is_stopped_or_traced(keeper.pid));
    if is_stopped {
        // A tracing stop ends with the tracer only.
        resume_keeper(keeper_dir);
    }
    is_stopped
}

/// Kills a keeper that does not answer, with all its descendants except the keepers in one directory. It has the effect
/// of [`EndMode::Except`](crate::client::EndMode) without the keeper's help. The files are left for [`clean_up_dead_keeper`].
///
/// The keeper is stopped first and killed last. While it exists, it stays the ancestor of its descendants, and none is
/// reparented. They are stopped before they are killed, so that they start no processes in between. Takes at most
/// `KILL_TIMEOUT_MS`.
pub fn kill_keeper(keeper_dir: &KeeperDir, excluded_keepers_dir: Option<&Path>) {
    let record = read_identity_record(keeper_dir);
    let Some(identity) = recorded_keeper(keeper_dir) else { return };
    let Some(keeper) = identity.open() else { return };
    let give_up_at = boottime_micros() + KILL_TIMEOUT_MS * 1_000;
    let excluded_pids = excluded_keepers_dir.map(living_keeper_pids).unwrap_or_default();
    // The system refuses signals only to processes of other users.
    keeper.signal(Signal::STOP).ok();
    if let Some(group) = record.as_ref().and_then(IdentityRecord::group) {
        control_group::kill_group_of_unresponsive_keeper(group, &identity, &excluded_pids);
    }
    let mut empty_scans = 0;
    while empty_scans < REQUIRED_EMPTY_SCANS && boottime_micros() < give_up_at {
        let mut stopped: Vec<ProcessKey> = Vec::new();
        for _ in 0..MAX_STOP_ROUNDS {
            let mut fresh = process_tree::descendants_of(&keeper, &excluded_pids);
            fresh.retain(|process| !stopped.contains(process));
            if fresh.is_empty() {
                break;
            }
            for process in &fresh {
                process.signal(Signal::STOP);
            }
            stopped.extend(fresh);
        }
        for process in &stopped {
            process.signal(Signal::KILL);
        }
        empty_scans = if stopped.is_empty() { empty_scans + 1 } else { 0 };
        // Only a pause; its result does not matter.
        rustix::event::poll(&mut [], Some(&SCAN_INTERVAL)).ok();
    }
    keeper.signal(Signal::KILL).ok();
    keeper.wait(Duration::from_millis(KILL_TIMEOUT_MS));
}

/// Time limit for killing the descendants of a silent keeper, and again for waiting for its exit, in milliseconds.
const KILL_TIMEOUT_MS: u64 = 5_000;
/// Number of consecutive scans without a descendant. One scan may miss a process that is being forked.
const REQUIRED_EMPTY_SCANS: u32 = 3;
/// Number of scans for descendants started while others were being stopped.
const MAX_STOP_ROUNDS: usize = 32;
const SCAN_INTERVAL: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Creates a directory of keepers below another one, and protects it from sweeps of earlier versions. They treat every
/// directory beside their keepers as that of a dead keeper, unless its identity names a living process.
pub fn create_keepers_dir(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Process 1 lives until the machine shuts down.
    let init_process = ProcessIdentity::of(1).unwrap_or_else(ProcessIdentity::own);
    let keeper_dir = KeeperDir::at(folder.to_owned());
    // The file is not rewritten. Truncating an existing file makes ext4 flush it on close, which costs each launch up
    // to 1 ms.
    if read_identity_record(&keeper_dir).is_some_and(|record| record.keeper == init_process) {
        return Ok(());
    }
    IdentityRecord::new(&init_process, &init_process, None).write(&keeper_dir)
}

/// Cleans up after a dead keeper: kills its child if it still runs, and removes its files.
///
/// Returns false if the keeper is alive.
pub fn clean_up_dead_keeper(keeper_dir: &KeeperDir) -> bool {
    let Some(record) = read_identity_record(keeper_dir) else {
        match keeper_dir.read_claim() {
            Some(DirClaim::Forbidden | DirClaim::Unreadable) => return keeper_dir.remove().is_ok(),
            Some(DirClaim::Keeper(keeper)) if !keeper.is_alive() => {
                // The keeper died before it recorded its child. If there is a child, it is in the keeper's session.
                if keeper.is_of_this_boot() && ProcessIdentity::of(keeper.pid).is_none() {
                    for process in process_tree::processes_in_session(keeper.pid) {
                        process.signal(Signal::KILL);
                    }
                }
                return keeper_dir.remove().is_ok();
            }
            Some(DirClaim::Keeper(_)) | None => {}
        }
        // Without an identity the keeper may just be starting, so a recently created directory is left alone.
        let old = keeper_dir
            .path()
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() > STARTUP_GRACE_SECS));
        return old && keeper_dir.remove().is_ok();
    };
    let IdentityRecord { keeper, child, .. } = &record;
    if keeper.is_alive() {
        return false;
    }
    if let Some(group) = record.group().filter(|_| keeper.is_of_this_boot()) {
        control_group::end_leftover_group(group);
    }
    if let Some(child) = child.open() {
        for process in process_tree::descendants_of(&child, &[]) {
            process.signal(Signal::KILL);
        }
        // The kill fails only for processes of other users.
        child.signal(Signal::KILL).ok();
    }
    // Kills the rest of the child's process group. If the pid of the child was reused, that group no longer exists.
    if keeper.is_of_this_boot() && ProcessIdentity::of(child.pid).is_none_or(|now| now == *child) {
        // A child on pipes is in the session of its keeper, a child on a terminal in its own.
        for session in [keeper.pid, child.pid] {
            for process in process_tree::processes_in_group(child.pid, session) {
                process.signal(Signal::KILL);
            }
        }
    }
    keeper_dir.remove().is_ok()
}

const STARTUP_GRACE_SECS: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_keeper_that_died_before_recording_its_child_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "run-1");
        place.create().unwrap();
        let own = ProcessIdentity::own();
        assert!(place.claim(Some(&ProcessIdentity { start_time: own.start_time + 1, ..own })).unwrap());
        assert_eq!(startup_state(&place), StartupState::Dead);
        assert!(clean_up_dead_keeper(&place));
        assert!(!place.path().exists());
    }

    #[test]
    fn the_directory_of_a_living_keeper_is_not_touched() {
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "run-1");
        place.create().unwrap();
        assert!(place.claim(Some(&ProcessIdentity::own())).unwrap());
        assert!(!clean_up_dead_keeper(&place));
        assert!(place.path().exists());
    }
}
