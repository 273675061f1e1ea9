//! Starts keepers, reconnects to them, and cleans up after dead ones.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::child::spawn_keeper;
use crate::clock::ticks;
use crate::confine::ExecReportPipe;
use crate::error::KeeperError;
use crate::group::{self, ControlGroupConfig};
use crate::identity::ProcessIdentity;
use crate::link::{FramedSocket, pair};
use crate::place::{DirClaim, KeeperDir};
use crate::procs::{self, ProcessKey};
use crate::protocol::{
    KeeperRequest, KeeperResponse, KeeperSpec, KeeperStatus, TaggedRequest, TaggedResponse, or_default,
};

/// Starts this program as a keeper.
#[derive(Debug, Clone)]
pub struct KeeperLauncher {
    /// The path of the program; normally the running one.
    pub program: PathBuf,
    /// The hidden subcommand.
    pub arguments: Vec<String>,
    /// Where children get their control groups; None if they get none.
    pub groups: Option<ControlGroupConfig>,
}

/// A connection to a keeper.
#[derive(Debug)]
pub struct KeeperConnection {
    pub place: KeeperDir,
    pub link: FramedSocket,
    process: Option<Child>,
    /// The control group of a keeper that cannot remove it because it is inside.
    group: Option<PathBuf>,
}

/// The tag of the first response on every connection: a [`KeeperResponse::Status`] or a [`KeeperResponse::Refused`].
pub const FIRST: u64 = u64::MAX;

/// A keeper that has been started and waits for its request. It exits when this is dropped, or when its starter dies.
#[derive(Debug)]
pub struct StandbyKeeper {
    link: FramedSocket,
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
        place: KeeperDir,
        spec: KeeperSpec,
        spare: Option<StandbyKeeper>,
    ) -> Result<KeeperConnection, KeeperError> {
        place.create()?;
        let start = KeeperStartRequest { directory: place.path().to_owned(), spec };
        let mut group = None;
        let started = if start.spec.is_confined_with_keeper() {
            let started = self.start_confined(&start);
            let keeper = started.as_ref().ok().map(|spare| spare.process.id());
            group = keeper.and_then(|pid| start.spec.group.as_ref()?.of_keeper(pid));
            started
        } else {
            self.tell(&start, spare)
        };
        if started.is_err() {
            // Nothing was started in the directory; one that remains is swept later.
            place.remove().ok();
        }
        let StandbyKeeper { link, process } = started?;
        Ok(KeeperConnection { place, link, process: Some(process), group })
    }

    fn tell(
        &self,
        start: &KeeperStartRequest,
        spare: Option<StandbyKeeper>,
    ) -> Result<StandbyKeeper, KeeperError> {
        // A standby keeper that died while it waited is ignored.
        if let Some(mut spare) = spare
            && spare.process.try_wait().is_ok_and(|ended| ended.is_none())
            && spare.link.send(start).is_ok()
        {
            return Ok(spare);
        }
        let mut fresh = self.prepare()?;
        fresh.link.send(start)?;
        Ok(fresh)
    }

    /// Starts a keeper that is confined together with its child.
    fn start_confined(&self, start: &KeeperStartRequest) -> Result<StandbyKeeper, KeeperError> {
        let report = ExecReportPipe::new(&start.directory)
            .map_err(|error| KeeperError::system("cannot make the report of the exec helper", error))?;
        let KeeperSpec { confinement, group, .. } = &start.spec;
        let arguments = report.prefix_of_keeper(confinement, &start.directory, group.as_ref());
        let mut arguments = arguments.map_err(KeeperError::Refused)?;
        arguments.push(self.program.clone().into_os_string());
        arguments.extend(self.arguments.iter().map(Into::into));
        let mut spare = self.spawn(&arguments)?;
        if let Err(refusal) = report.wait(spare.process.id()) {
            // The helper has exited, or is blocked and has to be killed.
            spare.process.kill().ok();
            spare.process.wait().ok();
            return Err(KeeperError::Refused(refusal));
        }
        spare.link.send(start)?;
        Ok(spare)
    }

    /// Starts a standby keeper.
    pub fn prepare(&self) -> Result<StandbyKeeper, KeeperError> {
        self.spawn(&self.arguments)
    }

    fn spawn(&self, arguments: &[impl AsRef<OsStr>]) -> Result<StandbyKeeper, KeeperError> {
        let (ours, theirs) =
            pair().map_err(|error| KeeperError::system("cannot make a socket pair", error))?;
        let process = spawn_keeper(&self.program, arguments, theirs).map_err(|error| {
            KeeperError::system(format!("cannot start {}", self.program.display()), error)
        })?;
        Ok(StandbyKeeper { link: FramedSocket::new(ours), process })
    }
}

impl KeeperConnection {
    /// An established connection to a keeper that this process did not start.
    pub(crate) fn new(place: KeeperDir, link: FramedSocket) -> Self {
        Self { place, link, process: None, group: None }
    }

    /// Connects to the keeper in this directory, without blocking. Its status is the first response on the connection.
    pub fn attach(place: KeeperDir) -> Result<Self, KeeperError> {
        let path = || place.path().to_owned();
        let secret = place.secret().map_err(|_| KeeperError::Gone { path: path() })?;
        let socket: OwnedFd = place.connect().map_err(|error| {
            let queue_is_full = error.kind() == std::io::ErrorKind::WouldBlock;
            if queue_is_full {
                KeeperError::Silent { path: path() }
            } else {
                KeeperError::Gone { path: path() }
            }
        })?;
        let mut link = FramedSocket::new(socket);
        link.send(&TaggedRequest { tag: FIRST, act: KeeperRequest::Hello(secret) })?;
        Ok(Self::new(place, link))
    }

    /// Waits for the first response.
    pub fn status(&mut self, milliseconds: u64) -> Result<KeeperStatus, KeeperError> {
        match self.link.wait::<TaggedResponse>(milliseconds)? {
            Some(TaggedResponse { tag: FIRST, news: KeeperResponse::Status(status) }) => Ok(*status),
            Some(TaggedResponse { news: KeeperResponse::Refused(refusal), .. }) => {
                Err(KeeperError::Refused(refusal))
            }
            Some(_) => Err(KeeperError::Protocol("the first answer is no status")),
            None => Err(self.no_answer()),
        }
    }

    fn no_answer(&self) -> KeeperError {
        let path = self.place.path().to_owned();
        if self.link.is_closed() { KeeperError::Gone { path } } else { KeeperError::Silent { path } }
    }

    /// Sends a request and waits for its response. Other responses are dropped.
    pub fn ask(
        &mut self,
        tag: u64,
        act: KeeperRequest,
        milliseconds: u64,
    ) -> Result<KeeperResponse, KeeperError> {
        self.link.send(&TaggedRequest { tag, act })?;
        loop {
            match self.link.wait::<TaggedResponse>(milliseconds)? {
                Some(answer) if answer.tag == tag => return Ok(answer.news),
                Some(_) => {}
                None => return Err(self.no_answer()),
            }
        }
    }

    /// The keeper's process, if this process started it. The caller has to reap it.
    pub fn take_process(&mut self) -> Option<Child> {
        self.process.take()
    }

    /// Removes the control group of a keeper that has ended and could not remove it, with the remaining processes.
    pub fn clear_group(&mut self) {
        if let Some(group) = self.group.take() {
            group::end_left_over(&group);
        }
    }

    /// Reaps the keeper if this process started it and it has ended. Returns whether there is nothing left to reap.
    pub fn reap(&mut self) -> bool {
        match &mut self.process {
            Some(process) => process.try_wait().is_ok_and(|status| status.is_some()),
            None => true,
        }
    }
}

/// The start-up progress of a keeper that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupState {
    /// No keeper has claimed the directory. One may have been started and may still claim it.
    Unclaimed,
    /// The keeper is alive. It will answer soon or is exiting.
    Alive,
    /// The keeper claimed the directory, and is dead.
    Dead,
    /// The directory is blocked: no keeper started in it, and none ever will.
    Never,
}

/// The start-up progress of the keeper in this directory.
pub fn stage(place: &KeeperDir) -> StartupState {
    let of =
        |keeper: ProcessIdentity| if keeper.is_alive() { StartupState::Alive } else { StartupState::Dead };
    match (identities(place), place.claimed()) {
        (Some(IdentityRecord { keeper, .. }), _) | (None, Some(DirClaim::Keeper(keeper))) => of(keeper),
        (None, Some(DirClaim::Unreadable)) => StartupState::Dead,
        (None, Some(DirClaim::Nobody)) => StartupState::Never,
        (None, None) => StartupState::Unclaimed,
    }
}

/// Prevents keepers from starting in this directory. If one has already claimed it, [`stage`] reports that.
pub fn prevent(place: &KeeperDir) {
    // If the directory is already claimed, `stage` reports by which keeper.
    place.claim(None).ok();
}

/// The record that a keeper writes after it has started its child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IdentityRecord {
    pub(crate) keeper: ProcessIdentity,
    pub(crate) child: ProcessIdentity,
    /// The child's control group, if it has one. Missing in records of earlier versions.
    #[serde(deserialize_with = "or_default")]
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
    pub(crate) fn write(&self, place: &KeeperDir) -> std::io::Result<()> {
        place.record_identity(&postcard::to_stdvec(self).map_err(std::io::Error::other)?)
    }

    fn group(&self) -> Option<&Path> {
        self.group.as_ref().map(|RecordedPath(path)| path.as_path())
    }
}

/// The recorded keeper and child; None until the child has been started.
fn identities(place: &KeeperDir) -> Option<IdentityRecord> {
    postcard::from_bytes(&place.identity().ok()?).ok()
}

/// The pids of the living keepers in this directory.
pub(crate) fn keepers_in(directory: &Path) -> Vec<u32> {
    let all = KeeperDir::all(directory).into_iter();
    let living = all.filter_map(|(_, place)| keeper_of(&place).filter(ProcessIdentity::is_alive));
    living.map(|keeper| keeper.pid).collect()
}

/// The recorded child of a keeper, whether or not it is alive.
pub fn child(place: &KeeperDir) -> Option<ProcessIdentity> {
    Some(identities(place)?.child)
}

/// The keeper of this directory, from its record or its claim. An agent can stop its keeper before it has written the
/// record.
fn keeper_of(place: &KeeperDir) -> Option<ProcessIdentity> {
    let claimed = || match place.claimed()? {
        DirClaim::Keeper(keeper) => Some(keeper),
        DirClaim::Nobody | DirClaim::Unreadable => None,
    };
    identities(place).map(|record| record.keeper).or_else(claimed)
}

/// Sends SIGCONT to a keeper that may be stopped. A running keeper ignores it.
pub fn resume(place: &KeeperDir) {
    if let Some(keeper) = keeper_of(place).and_then(|keeper| keeper.open()) {
        // A keeper that is gone, or belongs to another user, shows by not answering.
        keeper.signal(Signal::CONT).ok();
    }
}

/// Kills a keeper that does not answer, with all its descendants except the keepers in one directory. It has the effect
/// of [`KeeperRequest::EndExcept`] without the keeper's help. The files are left for [`sweep`].
///
/// The keeper is stopped first and killed last. While it exists, it stays the ancestor of its descendants, and none is
/// reparented. They are stopped before they are killed, so that they start no processes in between. Takes at most
/// `KILL_MS`.
pub fn kill(place: &KeeperDir, except: Option<&Path>) {
    let record = identities(place);
    let Some(identity) = keeper_of(place) else { return };
    let Some(keeper) = identity.open() else { return };
    let give_up_at = ticks() + KILL_MS * 1_000;
    let spared = except.map(keepers_in).unwrap_or_default();
    // The system refuses signals only to processes of other users.
    keeper.signal(Signal::STOP).ok();
    if let Some(group) = record.as_ref().and_then(IdentityRecord::group) {
        group::kill_unanswered(group, &identity, &spared);
    }
    let mut empty_looks = 0;
    while empty_looks < EMPTY_LOOKS && ticks() < give_up_at {
        let mut stopped: Vec<ProcessKey> = Vec::new();
        for _ in 0..STOP_ROUNDS {
            let mut fresh = procs::descendants_of(&keeper, &spared);
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
        empty_looks = if stopped.is_empty() { empty_looks + 1 } else { 0 };
        // Only a pause; its result does not matter.
        rustix::event::poll(&mut [], Some(&LOOK)).ok();
    }
    keeper.signal(Signal::KILL).ok();
    keeper.wait(Duration::from_millis(KILL_MS));
}

/// Time limit for killing the descendants of a silent keeper, and again for waiting for its exit, in milliseconds.
const KILL_MS: u64 = 5_000;
/// Number of consecutive scans without a descendant. One scan may miss a process that is being forked.
const EMPTY_LOOKS: u32 = 3;
/// Number of scans for descendants started while others were being stopped.
const STOP_ROUNDS: usize = 32;
const LOOK: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Creates a directory of keepers below another one, and protects it from sweeps of earlier versions. They treat every
/// directory beside their keepers as that of a dead keeper, unless its identity names a living process.
pub fn make_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Process 1 lives until the machine shuts down.
    let lasting = ProcessIdentity::of(1).unwrap_or_else(ProcessIdentity::own);
    let place = KeeperDir::at(folder.to_owned());
    // The file is not rewritten. Truncating an existing file makes ext4 flush it on close, which costs each launch up
    // to 1 ms.
    if identities(&place).is_some_and(|record| record.keeper == lasting) {
        return Ok(());
    }
    IdentityRecord::new(&lasting, &lasting, None).write(&place)
}

/// Cleans up after a dead keeper: kills its child if it still runs, and removes its files.
///
/// Returns false if the keeper is alive.
pub fn sweep(place: &KeeperDir) -> bool {
    let Some(record) = identities(place) else {
        match place.claimed() {
            Some(DirClaim::Nobody | DirClaim::Unreadable) => return place.remove().is_ok(),
            Some(DirClaim::Keeper(keeper)) if !keeper.is_alive() => {
                // The keeper died before it recorded its child. If there is a child, it is in the keeper's session.
                if keeper.is_of_this_boot() && ProcessIdentity::of(keeper.pid).is_none() {
                    for process in procs::left_in_session(keeper.pid) {
                        process.signal(Signal::KILL);
                    }
                }
                return place.remove().is_ok();
            }
            Some(DirClaim::Keeper(_)) | None => {}
        }
        // Without an identity the keeper may just be starting, so a recently created directory is left alone.
        let old = place
            .path()
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() > STARTING_SECONDS));
        return old && place.remove().is_ok();
    };
    let IdentityRecord { keeper, child, .. } = &record;
    if keeper.is_alive() {
        return false;
    }
    if let Some(group) = record.group().filter(|_| keeper.is_of_this_boot()) {
        group::end_left_over(group);
    }
    if let Some(child) = child.open() {
        for process in procs::descendants_of(&child, &[]) {
            process.signal(Signal::KILL);
        }
        // The kill fails only for processes of other users.
        child.signal(Signal::KILL).ok();
    }
    // Kills the rest of the child's process group. If the pid of the child was reused, that group no longer exists.
    if keeper.is_of_this_boot() && ProcessIdentity::of(child.pid).is_none_or(|now| now == *child) {
        // A child on pipes is in the session of its keeper, a child on a terminal in its own.
        for session in [keeper.pid, child.pid] {
            for process in procs::left_in_group(child.pid, session) {
                process.signal(Signal::KILL);
            }
        }
    }
    place.remove().is_ok()
}

const STARTING_SECONDS: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_keeper_that_died_before_it_recorded_its_child_is_swept() {
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "run-1");
        place.create().unwrap();
        let own = ProcessIdentity::own();
        assert!(place.claim(Some(&ProcessIdentity { start_time: own.start_time + 1, ..own })).unwrap());
        assert_eq!(stage(&place), StartupState::Dead);
        assert!(sweep(&place));
        assert!(!place.path().exists());
    }

    #[test]
    fn the_place_of_a_living_keeper_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "run-1");
        place.create().unwrap();
        assert!(place.claim(Some(&ProcessIdentity::own())).unwrap());
        assert!(!sweep(&place));
        assert!(place.path().exists());
    }
}
