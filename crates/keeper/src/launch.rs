//! How a client starts a keeper, finds one again, and clears away one that died.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::child::spawn_keeper;
use crate::error::KeeperError;
use crate::identity::ProcessIdentity;
use crate::link::{Link, pair};
use crate::place::Place;
use crate::procs;
use crate::protocol::{Act, Answer, News, Order, Spec, Status};

/// How this program is started as a keeper.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program, normally the running one.
    pub program: PathBuf,
    /// Its hidden subcommand.
    pub arguments: Vec<String>,
}

/// A keeper and the connection to it.
#[derive(Debug)]
pub struct Keeper {
    /// Where it lies.
    pub place: Place,
    /// The connection.
    pub link: Link,
    process: Option<Child>,
}

/// The tag of the first answer on every connection: a [`News::Status`] or a [`News::Refused`].
pub const FIRST: u64 = u64::MAX;

/// A keeper that has been started but not told yet what to hold. It ends when it is dropped, or its starter dies.
#[derive(Debug)]
pub struct Spare {
    link: Link,
    process: Child,
}

/// What a keeper is told first: where it lies and what it holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) directory: PathBuf,
    pub(crate) spec: Spec,
}

impl Launcher {
    /// Starts a keeper, or uses one that waits already; what became of the child is the first answer on the link.
    pub fn start(&self, place: Place, spec: Spec, spare: Option<Spare>) -> Result<Keeper, KeeperError> {
        place.create()?;
        let start = Start { directory: place.path().to_owned(), spec };
        let started = self.tell(&start, spare);
        if started.is_err() {
            let _nothing_to_keep = place.remove();
        }
        let Spare { link, process } = started?;
        Ok(Keeper { place, link, process: Some(process) })
    }

    fn tell(&self, start: &Start, spare: Option<Spare>) -> Result<Spare, KeeperError> {
        // One that died while it waited is not worth a word.
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

    /// Starts a keeper that waits to be told what to hold.
    pub fn prepare(&self) -> Result<Spare, KeeperError> {
        let (ours, theirs) =
            pair().map_err(|error| KeeperError::system("cannot make a socket pair", error))?;
        let process = spawn_keeper(&self.program, &self.arguments, theirs).map_err(|error| {
            KeeperError::system(format!("cannot start {}", self.program.display()), error)
        })?;
        Ok(Spare { link: Link::new(ours), process })
    }
}

impl Keeper {
    /// Connects to the keeper in this place; its status is the first answer on the link.
    pub fn attach(place: Place) -> Result<Self, KeeperError> {
        let gone = |_| KeeperError::Gone { path: place.path().to_owned() };
        let secret = place.secret().map_err(gone)?;
        let socket: OwnedFd = place.connect().map_err(gone)?;
        let mut link = Link::new(socket);
        link.send(&Order { tag: FIRST, act: Act::Hello(secret) })?;
        Ok(Self { place, link, process: None })
    }

    /// Waits for the first answer.
    pub fn status(&mut self, milliseconds: u64) -> Result<Status, KeeperError> {
        match self.link.wait::<Answer>(milliseconds)? {
            Some(Answer { tag: FIRST, news: News::Status(status) }) => Ok(*status),
            Some(Answer { news: News::Refused(refusal), .. }) => Err(KeeperError::Refused(refusal)),
            Some(_) => Err(KeeperError::Protocol("the first answer is no status")),
            None => Err(KeeperError::Gone { path: self.place.path().to_owned() }),
        }
    }

    /// Sends an order and waits for its answer, dropping other news.
    pub fn ask(&mut self, tag: u64, act: Act, milliseconds: u64) -> Result<News, KeeperError> {
        self.link.send(&Order { tag, act })?;
        loop {
            match self.link.wait::<Answer>(milliseconds)? {
                Some(answer) if answer.tag == tag => return Ok(answer.news),
                Some(_) => {}
                None => return Err(KeeperError::Gone { path: self.place.path().to_owned() }),
            }
        }
    }

    /// The keeper's own process, if we started it: whoever takes it has to reap it.
    pub fn take_process(&mut self) -> Option<Child> {
        self.process.take()
    }

    /// Reaps the keeper if it was ours and has ended.
    pub fn reap(&mut self) -> bool {
        match &mut self.process {
            Some(process) => process.try_wait().is_ok_and(|status| status.is_some()),
            None => true,
        }
    }
}

/// How far a keeper has got that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It was told what to hold, or perhaps only meant to be.
    Unclaimed,
    /// It lives and will answer soon, or is just going.
    Alive,
    /// It has begun, and is dead.
    Dead,
    /// It never began and never will.
    Never,
}

/// How far the keeper in this place has got.
pub fn stage(place: &Place) -> Stage {
    let of = |keeper: ProcessIdentity| if keeper.is_alive() { Stage::Alive } else { Stage::Dead };
    match (identities(place), place.claimed()) {
        (Some((keeper, _)), _) | (None, Some(Some(keeper))) => of(keeper),
        (None, Some(None)) => Stage::Never,
        (None, None) => Stage::Unclaimed,
    }
}

/// Sees to it that no keeper begins in this place any more, unless one has begun already: [`stage`] tells.
pub fn prevent(place: &Place) {
    let _somebody_was_first = place.claim(None);
}

/// The keeper in this place and its child, once there is a child.
fn identities(place: &Place) -> Option<(ProcessIdentity, ProcessIdentity)> {
    postcard::from_bytes(&place.identity().ok()?).ok()
}

/// The keepers that lie in this directory and live.
pub(crate) fn keepers_in(directory: &Path) -> Vec<u32> {
    let keeper = |place: Place| {
        let known = identities(&place).map(|(keeper, _)| keeper);
        known.or_else(|| place.claimed().flatten()).filter(ProcessIdentity::is_alive)
    };
    Place::all(directory)
        .into_iter()
        .filter_map(|(_, place)| keeper(place))
        .map(|keeper| keeper.pid)
        .collect()
}

/// Clears away a place whose keeper is dead: its child, if it still runs, and its files.
///
/// Returns false if the keeper lives.
pub fn sweep(place: &Place) -> bool {
    let Some((keeper, child)) = identities(place) else {
        if place.claimed() == Some(None) {
            return place.remove().is_ok();
        }
        // No identity yet: it may be starting just now. A directory without a secret's worth of age is left alone.
        let old = place
            .path()
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() > STARTING_SECONDS));
        return old && place.remove().is_ok();
    };
    if keeper.is_alive() {
        return false;
    }
    if child.is_alive() {
        for pid in procs::descendants(child.pid, &[]) {
            procs::signal(pid, Signal::KILL);
        }
        procs::signal(child.pid, Signal::KILL);
    }
    // What the child had left in its own group; a child that is somebody else by now has no such group.
    if keeper.is_of_this_boot() && ProcessIdentity::of(child.pid).is_none_or(|now| now == child) {
        // On pipes it is in its keeper's session, on a terminal in its own.
        for session in [keeper.pid, child.pid] {
            for pid in procs::left_in_group(child.pid, session) {
                procs::signal(pid, Signal::KILL);
            }
        }
    }
    place.remove().is_ok()
}

const STARTING_SECONDS: u64 = 60;
