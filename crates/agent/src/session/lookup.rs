//! Looks up sessions by asking their keepers, which authenticate with a secret.
//!
//! A pid on disk is never trusted. A keeper that knows the secret in its directory is the one that was started there,
//! and it reports the state of its child. If no keeper answers, leftover processes are ended only if pid, start time
//! and boot id match the keeper's record. All of these files are in the home. A session of an earlier version, in the
//! state folder, is accepted only if [`abide_keeper::former_keepers`] verifies its keeper. Such a keeper is asked to end, and
//! nothing else is signalled.

use std::path::PathBuf;

use abide_keeper::client::timeouts::{RESPONSE_TIMEOUT_MS, RESUME_INTERVAL_MS};
use abide_keeper::client::{
    EndMode, KeeperConnection, KeeperLookup, KeeperRequests, UnclaimedPolicy, connect, find,
};
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::launch::{clean_up_dead_keeper, kill_keeper, resume_keeper, resume_stopped_keeper};
use abide_keeper::orphans::kill_by_env_entry;
use abide_keeper::protocol::{KeeperOwner, KeeperStatus, RequestTag};

use super::record::{FormerSession, SessionFolders, SessionRecord, is_safe_id};
use crate::tool::execution::mark_entry;
use crate::tool::workbench::ToolError;

/// The state of a session.
#[derive(Debug)]
pub(crate) enum SessionLookup {
    Running(Box<LiveSession>),
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
    pub(crate) progress_dir: PathBuf,
    pub(crate) origin: SessionOrigin,
}

/// The version that started a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionOrigin {
    /// A version that keeps sessions in the home, as this one does.
    Current,
    /// An earlier version, which kept them in the state folder.
    Former,
}

/// Looks up a session.
pub(crate) fn find_session(sessions: &SessionFolders, id: &str) -> SessionLookup {
    let keeper_dir = sessions.keeper_dir(id);
    if !is_safe_id(id) {
        return SessionLookup::Unknown;
    }
    if !keeper_dir.path().is_dir() {
        let Some(FormerSession { keeper, status, progress_dir: notes }) = sessions.former_session(id) else {
            return SessionLookup::Unknown;
        };
        return lookup_result(id, keeper, status, notes, SessionOrigin::Former);
    }
    // A program in a session can suspend its keeper with SIGSTOP (SECURITY 10). The stop may take effect only after the
    // first look.
    resume_stopped_keeper(&keeper_dir);
    let mut keeper = find(&keeper_dir, UnclaimedPolicy::ForbidStart, RESUME_INTERVAL_MS);
    if let KeeperLookup::Unresponsive = keeper {
        resume_stopped_keeper(&keeper_dir);
        keeper = find(&keeper_dir, UnclaimedPolicy::ForbidStart, RESPONSE_TIMEOUT_MS);
    }
    match keeper {
        KeeperLookup::Alive(keeper, status) => {
            lookup_result(id, *keeper, *status, keeper_dir.path().to_owned(), SessionOrigin::Current)
        }
        KeeperLookup::Exited(..)
        | KeeperLookup::Unresponsive
        | KeeperLookup::Lost
        | KeeperLookup::NotStarted
        | KeeperLookup::Absent => SessionLookup::Dead(keeper_dir.exit_record().map(|exit| exit.code)),
    }
}

fn lookup_result(
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
    SessionLookup::Running(Box::new(LiveSession {
        id: id.to_owned(),
        keeper,
        status,
        record,
        progress_dir: notes,
        origin,
    }))
}

/// The ids of all sessions, with their records.
pub(crate) fn all_sessions(sessions: &SessionFolders) -> Vec<(String, SessionRecord)> {
    let record_from_keeper = |id: &str| match find_session(sessions, id) {
        SessionLookup::Running(living) => Some(living.record),
        SessionLookup::Dead(_) | SessionLookup::Unknown => None,
    };
    // The process that started the session may have crashed before it wrote the record.
    let own = |id: String| {
        let record = SessionRecord::read(sessions.keeper_dir(&id).path()).or_else(|| record_from_keeper(&id));
        Some((id, record?))
    };
    let former = |id: String| {
        let record = record_from_keeper(&id)?;
        Some((id, record))
    };
    let own = sessions.own_ids().into_iter().filter_map(own);
    own.chain(sessions.former_ids().into_iter().filter_map(former)).collect()
}

impl LiveSession {
    /// Makes this process the owner of the session, if the previous owner is dead.
    pub(crate) fn take_ownership(&mut self) -> Result<(), ToolError> {
        let own = KeeperOwner::Process(ProcessIdentity::own());
        if self.status.owner == own {
            return Ok(());
        }
        self.status = self.keeper.own(own, RESPONSE_TIMEOUT_MS)?;
        Ok(())
    }
}

/// The result of ending a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndedSession {
    /// Whether no process or file of it remains.
    pub(crate) is_complete: bool,
    /// The pid of the keeper, which may be a child of this process.
    pub(crate) keeper_pid: Option<u32>,
}

/// Whether a session has this id, running or not. Of sessions of earlier versions only running ones count.
pub(crate) fn exists(sessions: &SessionFolders, id: &str) -> bool {
    is_safe_id(id) && (sessions.keeper_dir(id).path().is_dir() || sessions.former_session(id).is_some())
}

/// Ends sessions in any state. All keepers are asked before the first one is awaited, so that many slow sessions take
/// no longer than one.
pub(crate) fn end_sessions(sessions: &SessionFolders, ids: &[String]) -> Vec<EndedSession> {
    let ending: Vec<(&String, EndingSession)> =
        ids.iter().filter_map(|id| Some((id, request_end(sessions, id)?))).collect();
    let finished = |(id, ending): (&String, EndingSession)| match ending {
        EndingSession::Own { keeper_dir, record, keeper } => await_end(&keeper_dir, &record, keeper),
        EndingSession::Former { mut keeper, status } => {
            keeper.await_end();
            sessions.delete_former_progress(id);
            EndedSession { is_complete: keeper.connection.is_closed(), keeper_pid: Some(status.keeper.pid) }
        }
    };
    ending.into_iter().map(finished).collect()
}

/// A session that was asked to end, or whose keeper is dead.
enum EndingSession {
    Own { keeper_dir: KeeperDir, record: SessionRecord, keeper: Option<EndingKeeper> },
    Former { keeper: EndingKeeper, status: Box<KeeperStatus> },
}

/// A keeper that was asked to end.
struct EndingKeeper {
    connection: KeeperConnection,
    /// None if the request could not be sent.
    end: Option<RequestTag>,
}

impl EndingKeeper {
    fn new(mut connection: KeeperConnection) -> Self {
        let end = connection.request_end(EndMode::Graceful).ok();
        Self { connection, end }
    }

    fn await_end(&mut self) {
        if let Some(end) = self.end {
            // A keeper that does not respond in time shows by its open connection.
            self.connection.await_end(end).ok();
        }
    }
}

fn request_end(sessions: &SessionFolders, id: &str) -> Option<EndingSession> {
    let keeper_dir = sessions.keeper_dir(id);
    if !is_safe_id(id) || !keeper_dir.path().is_dir() {
        let FormerSession { keeper, status, .. } = sessions.former_session(id)?;
        return Some(EndingSession::Former { keeper: EndingKeeper::new(keeper), status: Box::new(status) });
    }
    let record = SessionRecord::read(keeper_dir.path()).unwrap_or_default();
    // A program in a session can suspend its keeper with SIGSTOP (SECURITY 10).
    resume_keeper(&keeper_dir);
    let keeper = connect(&keeper_dir, UnclaimedPolicy::ForbidStart).ok().map(EndingKeeper::new);
    Some(EndingSession::Own { keeper_dir, record, keeper })
}

/// Waits until a session that was asked to end is gone, or removes the remains of one whose keeper is dead.
fn await_end(keeper_dir: &KeeperDir, record: &SessionRecord, keeper: Option<EndingKeeper>) -> EndedSession {
    let mut pid = None;
    if let Some(mut keeper) = keeper {
        pid = keeper.connection.status(RESPONSE_TIMEOUT_MS).ok().map(|status| status.keeper.pid);
        keeper.await_end();
        if !keeper.connection.is_closed() {
            kill_keeper(keeper_dir, None);
            keeper.connection.await_exit();
        }
    }
    let is_complete = !keeper_dir.path().exists() || clean_up_dead_keeper(keeper_dir);
    if is_complete && !record.mark.is_empty() {
        kill_by_env_entry(&mark_entry(&record.mark));
    }
    EndedSession { is_complete, keeper_pid: pid }
}
