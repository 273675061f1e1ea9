//! What every store must do: one suite, run on each of them.
//!
//! Everything that the contract in `ports` promises is asked for here, in small stories of their own. How a store
//! copes with a broken disk or a lost connection is its own affair and tested with it.

#![expect(clippy::unwrap_used, reason = "a suite is a test, and a failed answer fails it")]

mod claims;
mod commits;
mod cursors;
mod listings;
mod order;
mod random;
mod sight;
mod upkeep;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_ports::store::{JournalCommit, Store, StoreFuture};

pub use sight::{same, see};

use crate::history::Author;

/// Where stores of one kind can be opened.
pub trait Places: Sync {
    /// A place that nobody has used.
    fn fresh(&self) -> Box<dyn Place>;

    /// A store, empty, that is known to be right.
    fn reference(&self) -> Arc<dyn Store>;
}

/// A place that holds one store.
pub trait Place: Send + Sync {
    /// Opens the store. Whoever had it open before has let go of it.
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>>;

    /// What is still there after it was let go of.
    fn keeps(&self) -> Keeps;

    /// Opens a backup.
    fn restored(&self, backup: &Path) -> StoreFuture<'_, Arc<dyn Store>>;

    /// A name for a file that does not exist.
    fn new_file(&self) -> PathBuf;
}

/// What a place remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing: each opening finds it empty.
    Nothing,
    /// Everything that was acknowledged.
    Everything,
}

/// Asks for everything that the contract promises. The name is only for messages.
pub async fn check(name: &str, places: &dyn Places) {
    let stage = |story: &str| println!("{name}: {story}");
    stage("commits");
    commits::check(places).await;
    stage("claims");
    claims::check(places).await;
    stage("cursors");
    cursors::check(places).await;
    stage("listings");
    listings::check(places).await;
    stage("order");
    order::check(places).await;
    stage("upkeep");
    upkeep::check(places).await;
    stage("random histories");
    random::check(places).await;
}

/// Opens a place that must open.
async fn open(place: &dyn Place) -> Arc<dyn Store> {
    place.open().await.expect("the store opens")
}

/// A new store with a story of so many commits in it, and who told it.
async fn told(place: &dyn Place, seed: u64, commits: usize) -> (Arc<dyn Store>, Author) {
    let store = open(place).await;
    let mut author = Author::new(seed, 1).with_runs(12);
    for commit in author.commits(commits) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    (store, author)
}

/// A commit of one change.
fn single(change: abide_ports::store::RunChange) -> JournalCommit {
    JournalCommit { changes: vec![change] }
}
