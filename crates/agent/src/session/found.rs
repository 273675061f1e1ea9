//! Sessions as they really are: asked of their keepers, who are known by a secret.
//!
//! A pid on disk is never believed. A keeper that answers to the secret in its directory is the one that was started
//! there; what it holds, it says itself. Where none answers, leftovers are ended only if pid, start time and boot all
//! are those that the keeper recorded.

use std::path::Path;

use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::{Keeper, kill, resume, sweep};
use abide_keeper::leftovers::end_marked;
use abide_keeper::place::Place;
use abide_keeper::protocol::{Act, Answer, News, Order, Owner, Status};

use super::record::{SessionRecord, is_id};
use crate::tool::execution::mark_entry;
use crate::tool::once::{attach, reap};
use crate::tool::workbench::ToolError;

/// A session as it is.
#[derive(Debug)]
pub(crate) enum Found {
    /// Its program runs.
    Living(Box<Living>),
    /// Its program has ended, or its keeper is gone. The exit code is known if the keeper lived to see it.
    Dead(Option<i32>),
    /// There is none of this name.
    Unknown,
}

/// A session that runs, and the connection to it.
#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) id: String,
    pub(crate) keeper: Keeper,
    pub(crate) status: Status,
    pub(crate) record: SessionRecord,
}

/// How long a keeper may take to answer.
pub(crate) const PATIENCE_MS: u64 = 10_000;
/// How long a keeper may take to end everything: longer than its own ladder.
const END_MS: u64 = 20_000;

/// Looks for a session.
pub(crate) fn find(sessions: &Path, id: &str) -> Found {
    let place = Place::new(sessions, id);
    if !is_id(id) || !place.path().is_dir() {
        return Found::Unknown;
    }
    let Some(mut keeper) = attach(&place) else {
        return Found::Dead(place.exit_record().map(|exit| exit.code));
    };
    match keeper.status(PATIENCE_MS) {
        Ok(Status { exit: Some(exit), .. }) => Found::Dead(Some(exit.code)),
        Ok(status) => {
            let record = serde_json::from_slice(&status.meta).unwrap_or_default();
            Found::Living(Box::new(Living { id: id.to_owned(), keeper, status, record }))
        }
        Err(_) => Found::Dead(place.exit_record().map(|exit| exit.code)),
    }
}

/// All names of sessions, with what is known about each.
pub(crate) fn all(sessions: &Path) -> Vec<(String, SessionRecord)> {
    let known = |(id, place): (String, Place)| {
        let record = SessionRecord::read(place.path()).or_else(|| match find(sessions, &id) {
            // Whoever started it may have died before writing it down.
            Found::Living(living) => Some(living.record),
            Found::Dead(_) | Found::Unknown => None,
        });
        Some((id, record?))
    };
    Place::all(sessions).into_iter().filter_map(known).collect()
}

impl Living {
    /// Makes this process answer for it, if whoever did is dead.
    pub(crate) fn own(&mut self) -> Result<(), ToolError> {
        let own = Owner::Process(ProcessIdentity::own());
        if self.status.owner == own {
            return Ok(());
        }
        match self.keeper.ask(OWN, Act::Own(own), PATIENCE_MS)? {
            News::Status(status) => self.status = *status,
            News::Refused(refusal) => return Err(abide_keeper::KeeperError::Refused(refusal).into()),
            News::Done
            | News::Started(_)
            | News::Ran(_)
            | News::Output(_)
            | News::Ended(_)
            | News::Piece(_)
            | News::Exited(_)
            | News::Settled(_)
            | News::ShellRestarted(_) => {}
        }
        Ok(())
    }
}

const OWN: u64 = 100;
const END: u64 = 101;

/// What was done about the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    /// Nothing of it is left.
    pub(crate) wholly: bool,
    /// The pid of its keeper, which may be our child.
    pub(crate) keeper: Option<u32>,
}

/// Whether there is a session of this name, living or not.
pub(crate) fn exists(sessions: &Path, id: &str) -> bool {
    is_id(id) && sessions.join(id).is_dir()
}

/// Ends sessions and everything of them, however they are. Every keeper is told before any is waited for, so that many
/// stubborn sessions take no longer than one.
pub(crate) fn end(sessions: &Path, ids: &[String]) -> Vec<Gone> {
    let ids = ids.iter().filter(|id| exists(sessions, id));
    let told: Vec<(Place, SessionRecord, Option<Keeper>)> = ids
        .map(|id| {
            let place = Place::new(sessions, id);
            let record = SessionRecord::read(place.path()).unwrap_or_default();
            // What a session runs can stop its keeper (SECURITY 10).
            resume(&place);
            let mut keeper = attach(&place);
            if let Some(keeper) = &mut keeper {
                // One that is gone by now needs no order.
                keeper.link.send(&Order { tag: END, act: Act::End { force: false } }).ok();
            }
            (place, record, keeper)
        })
        .collect();
    told.into_iter().map(|(place, record, keeper)| finish(&place, &record, keeper)).collect()
}

/// Waits until a session that was told to end is gone, and clears away what is left of one whose keeper is dead.
fn finish(place: &Place, record: &SessionRecord, keeper: Option<Keeper>) -> Gone {
    let mut pid = None;
    if let Some(mut keeper) = keeper {
        pid = keeper.status(PATIENCE_MS).ok().map(|status| status.keeper.pid);
        while let Ok(Some(answer)) = keeper.link.wait::<Answer>(END_MS)
            && answer.tag != END
        {}
        reap(&mut keeper);
        if !keeper.link.is_closed() {
            kill(place, None);
            reap(&mut keeper);
        }
    }
    let wholly = !place.path().exists() || sweep(place);
    if wholly && !record.mark.is_empty() {
        end_marked(&mark_entry(&record.mark));
    }
    Gone { wholly, keeper: pid }
}
