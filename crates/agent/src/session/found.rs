//! Looks up sessions by asking their keepers, which authenticate with a secret.
//!
//! A pid on disk is never trusted. A keeper that knows the secret in its directory is the one that was started there,
//! and it reports the state of its child. If no keeper answers, leftover processes are ended only if pid, start time
//! and boot id match the keeper's record. All of these files are in the home. A session of an earlier version, in the
//! state folder, is accepted only if [`abide_keeper::former`] verifies its keeper. Such a keeper is asked to end, and
//! nothing else is signalled.

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

/// The state of a session.
#[derive(Debug)]
pub(crate) enum SessionLookup {
    /// The program runs.
    Living(Box<LiveSession>),
    /// The program has ended, or its keeper is gone. The exit code is known if the keeper recorded it.
    Dead(Option<i32>),
    /// No session has this name.
    Unknown,
}

/// A running session and the connection to its keeper.
#[derive(Debug)]
pub(crate) struct LiveSession {
    pub(crate) id: String,
    pub(crate) keeper: KeeperConnection,
    pub(crate) status: KeeperStatus,
    pub(crate) record: SessionRecord,
    /// The folder that stores which output has been shown.
    pub(crate) notes: PathBuf,
    pub(crate) origin: SessionOrigin,
}

/// The version that started a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionOrigin {
    /// A version that keeps sessions in the home, as this one does.
    Own,
    /// An earlier version, which kept them in the state folder.
    Former,
}

/// Timeout for a response of a keeper.
pub(crate) const PATIENCE_MS: u64 = 10_000;
/// Timeout for the end of a session; longer than the keeper's own sequence of signals.
const END_MS: u64 = 20_000;

/// Looks up a session.
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

/// The ids of all sessions, with their records.
pub(crate) fn all(sessions: &SessionFolders) -> Vec<(String, SessionRecord)> {
    let told = |id: &str| match find(sessions, id) {
        SessionLookup::Living(living) => Some(living.record),
        SessionLookup::Dead(_) | SessionLookup::Unknown => None,
    };
    // The process that started the session may have crashed before it wrote the record.
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
    /// Makes this process the owner of the session, if the previous owner is dead.
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

/// The result of ending a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndedSession {
    /// Whether no process or file of it remains.
    pub(crate) wholly: bool,
    /// The pid of the keeper, which may be a child of this process.
    pub(crate) keeper: Option<u32>,
}

/// Whether a session has this id, running or not. Of sessions of earlier versions only running ones count.
pub(crate) fn exists(sessions: &SessionFolders, id: &str) -> bool {
    is_id(id) && (sessions.place(id).path().is_dir() || sessions.former(id).is_some())
}

/// Ends sessions in any state. All keepers are asked before the first one is awaited, so that many slow sessions take
/// no longer than one.
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

/// A session that was asked to end, or whose keeper is dead.
enum EndingSession {
    Own { place: KeeperDir, record: SessionRecord, keeper: Option<KeeperConnection> },
    Former { keeper: KeeperConnection, status: Box<KeeperStatus> },
}

fn tell_to_end(sessions: &SessionFolders, id: &str) -> Option<EndingSession> {
    let end = |keeper: &mut KeeperConnection| {
        // A keeper that is gone needs no request.
        keeper.link.send(&TaggedRequest { tag: END, act: KeeperRequest::End { force: false } }).ok();
    };
    let place = sessions.place(id);
    if !is_id(id) || !place.path().is_dir() {
        let FormerSession { mut keeper, status, .. } = sessions.former(id)?;
        end(&mut keeper);
        return Some(EndingSession::Former { keeper, status: Box::new(status) });
    }
    let record = SessionRecord::read(place.path()).unwrap_or_default();
    // A program in a session can suspend its keeper with SIGSTOP (SECURITY 10).
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

/// Waits until a session that was asked to end is gone, or removes the remains of one whose keeper is dead.
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
