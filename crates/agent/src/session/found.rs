//! Sessions as they really are: asked of their keepers, who are known by a secret.
//!
//! A pid on disk is never believed. A keeper that answers to the secret in its directory is the one that was started
//! there; what it holds, it says itself. Where none answers, leftovers are ended only if pid, start time and boot all
//! are those that the keeper recorded. All of that lies in the home. A session that an earlier version started in the state
//! folder is one only if [`abide_keeper::former`] says so. It is told to end and nothing else is done to it.

use std::path::PathBuf;

use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::{KeeperConnection, kill, resume, sweep};
use abide_keeper::leftovers::end_marked;
use abide_keeper::place::KeeperDir;
use abide_keeper::protocol::{
    KeeperOwner, KeeperRequest, KeeperResponse, KeeperStatus, TaggedRequest, TaggedResponse,
};

use super::record::{FormerSession, SessionFolders, SessionRecord, is_id};
use crate::tool::execution::mark_entry;
use crate::tool::once::{attach, reap};
use crate::tool::workbench::ToolError;

/// A session as it is.
#[derive(Debug)]
pub(crate) enum SessionLookup {
    /// Its program runs.
    Living(Box<LiveSession>),
    /// Its program has ended, or its keeper is gone. The exit code is known if the keeper lived to see it.
    Dead(Option<i32>),
    /// There is none of this name.
    Unknown,
}

/// A session that runs, and the connection to it.
#[derive(Debug)]
pub(crate) struct LiveSession {
    pub(crate) id: String,
    pub(crate) keeper: KeeperConnection,
    pub(crate) status: KeeperStatus,
    pub(crate) record: SessionRecord,
    /// Where it is noted how far the session was heard.
    pub(crate) notes: PathBuf,
    pub(crate) origin: SessionOrigin,
}

/// Which version started a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionOrigin {
    /// One that keeps sessions in the home, as this one does.
    Own,
    /// One that kept them in the state folder.
    Former,
}

/// How long a keeper may take to answer.
pub(crate) const PATIENCE_MS: u64 = 10_000;
/// How long a keeper may take to end everything: longer than its own ladder.
const END_MS: u64 = 20_000;

/// Looks for a session.
pub(crate) fn find(sessions: &SessionFolders, id: &str) -> SessionLookup {
    let place = sessions.place(id);
    if !is_id(id) {
        return SessionLookup::Unknown;
    }
    if !place.path().is_dir() {
        let Some(FormerSession { keeper, status, notes }) = sessions.former(id) else {
            return SessionLookup::Unknown;
        };
        return found(id, keeper, status, notes, SessionOrigin::Former);
    }
    let Some(mut keeper) = attach(&place) else {
        return SessionLookup::Dead(place.exit_record().map(|exit| exit.code));
    };
    match keeper.status(PATIENCE_MS) {
        Ok(status) => found(id, keeper, status, place.path().to_owned(), SessionOrigin::Own),
        Err(_) => SessionLookup::Dead(place.exit_record().map(|exit| exit.code)),
    }
}

fn found(
    id: &str,
    keeper: KeeperConnection,
    status: KeeperStatus,
    notes: PathBuf,
    origin: SessionOrigin,
) -> SessionLookup {
    if let Some(exit) = &status.exit {
        return SessionLookup::Dead(Some(exit.code));
    }
    let record = serde_json::from_slice(&status.meta).unwrap_or_default();
    SessionLookup::Living(Box::new(LiveSession { id: id.to_owned(), keeper, status, record, notes, origin }))
}

/// All names of sessions, with what is known about each.
pub(crate) fn all(sessions: &SessionFolders) -> Vec<(String, SessionRecord)> {
    let told = |id: &str| match find(sessions, id) {
        SessionLookup::Living(living) => Some(living.record),
        SessionLookup::Dead(_) | SessionLookup::Unknown => None,
    };
    // The process that started it may have died before it wrote the record.
    let own = |id: String| {
        let record = SessionRecord::read(sessions.place(&id).path()).or_else(|| told(&id));
        Some((id, record?))
    };
    let former = |id: String| {
        let record = told(&id)?;
        Some((id, record))
    };
    let own = sessions.own_ids().into_iter().filter_map(own);
    own.chain(sessions.former_ids().into_iter().filter_map(former)).collect()
}

impl LiveSession {
    /// Makes this process answer for it, if whoever did is dead.
    pub(crate) fn own(&mut self) -> Result<(), ToolError> {
        let own = KeeperOwner::Process(ProcessIdentity::own());
        if self.status.owner == own {
            return Ok(());
        }
        match self.keeper.ask(OWN, KeeperRequest::Own(own), PATIENCE_MS)? {
            KeeperResponse::Status(status) => self.status = *status,
            KeeperResponse::Refused(refusal) => {
                return Err(abide_keeper::KeeperError::Refused(refusal).into());
            }
            KeeperResponse::Done
            | KeeperResponse::Started(_)
            | KeeperResponse::Ran(_)
            | KeeperResponse::Output(_)
            | KeeperResponse::Ended(_)
            | KeeperResponse::Piece(_)
            | KeeperResponse::Exited(_)
            | KeeperResponse::Settled(_)
            | KeeperResponse::ShellRestarted(_) => {}
        }
        Ok(())
    }
}

const OWN: u64 = 100;
const END: u64 = 101;

/// What was done about the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndedSession {
    /// Nothing of it is left.
    pub(crate) wholly: bool,
    /// The pid of its keeper, which may be our child.
    pub(crate) keeper: Option<u32>,
}

/// Whether there is a session of this name, living or not. Of an earlier version's, only those that live count.
pub(crate) fn exists(sessions: &SessionFolders, id: &str) -> bool {
    is_id(id) && (sessions.place(id).path().is_dir() || sessions.former(id).is_some())
}

/// Ends sessions and everything of them, however they are. Every keeper is told before any is waited for, so that many
/// stubborn sessions take no longer than one.
pub(crate) fn end(sessions: &SessionFolders, ids: &[String]) -> Vec<EndedSession> {
    let told: Vec<(&String, EndingSession)> =
        ids.iter().filter_map(|id| Some((id, tell_to_end(sessions, id)?))).collect();
    let finished = |(id, told): (&String, EndingSession)| match told {
        EndingSession::Own { place, record, keeper } => finish(&place, &record, keeper),
        EndingSession::Former { mut keeper, status } => {
            let pid = status.keeper.pid;
            wait_for_end(&mut keeper);
            sessions.forget_former(id);
            EndedSession { wholly: keeper.link.is_closed(), keeper: Some(pid) }
        }
    };
    told.into_iter().map(finished).collect()
}

/// A session that was told to end, or whose keeper is dead.
enum EndingSession {
    Own { place: KeeperDir, record: SessionRecord, keeper: Option<KeeperConnection> },
    Former { keeper: KeeperConnection, status: Box<KeeperStatus> },
}

fn tell_to_end(sessions: &SessionFolders, id: &str) -> Option<EndingSession> {
    let end = |keeper: &mut KeeperConnection| {
        // One that is gone by now needs no order.
        keeper.link.send(&TaggedRequest { tag: END, act: KeeperRequest::End { force: false } }).ok();
    };
    let place = sessions.place(id);
    if !is_id(id) || !place.path().is_dir() {
        let FormerSession { mut keeper, status, .. } = sessions.former(id)?;
        end(&mut keeper);
        return Some(EndingSession::Former { keeper, status: Box::new(status) });
    }
    let record = SessionRecord::read(place.path()).unwrap_or_default();
    // What a session runs can stop its keeper (SECURITY 10).
    resume(&place);
    let mut keeper = attach(&place);
    if let Some(keeper) = &mut keeper {
        end(keeper);
    }
    Some(EndingSession::Own { place, record, keeper })
}

fn wait_for_end(keeper: &mut KeeperConnection) {
    while let Ok(Some(answer)) = keeper.link.wait::<TaggedResponse>(END_MS)
        && answer.tag != END
    {}
    reap(keeper);
}

/// Waits until a session that was told to end is gone, and clears away what is left of one whose keeper is dead.
fn finish(place: &KeeperDir, record: &SessionRecord, keeper: Option<KeeperConnection>) -> EndedSession {
    let mut pid = None;
    if let Some(mut keeper) = keeper {
        pid = keeper.status(PATIENCE_MS).ok().map(|status| status.keeper.pid);
        wait_for_end(&mut keeper);
        if !keeper.link.is_closed() {
            kill(place, None);
            reap(&mut keeper);
        }
    }
    let wholly = !place.path().exists() || sweep(place);
    if wholly && !record.mark.is_empty() {
        end_marked(&mark_entry(&record.mark));
    }
    EndedSession { wholly, keeper: pid }
}
