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

use crate::history::HistoryGenerator;

/// Where stores of one kind can be opened.
pub trait TestStoreProvider: Sync {
    /// A place that nobody has used.
    fn fresh(&self) -> Box<dyn TestStorePlace>;

    /// A store, empty, that is known to be right.
    fn reference(&self) -> Arc<dyn Store>;
}

/// A place that holds one store.
pub trait TestStorePlace: Send + Sync {
    /// Opens the store. Whoever had it open before has let go of it.
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>>;

    /// What is still there after it was let go of.
    fn keeps(&self) -> TestStoreDurability;

    /// Opens a backup.
    fn restored(&self, backup: &Path) -> StoreFuture<'_, Arc<dyn Store>>;

    /// A name for a file that does not exist.
    fn new_file(&self) -> PathBuf;
}

/// What a place remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestStoreDurability {
    /// Nothing: each opening finds it empty.
    Nothing,
    /// Everything that was acknowledged.
    Everything,
}

/// Asks for everything that the contract promises. The name is only for messages.
pub async fn check(name: &str, places: &dyn TestStoreProvider) {
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
async fn open(place: &dyn TestStorePlace) -> Arc<dyn Store> {
    place.open().await.expect("the store opens")
}

/// A new store with a story of so many commits in it, and who told it.
async fn told(place: &dyn TestStorePlace, seed: u64, commits: usize) -> (Arc<dyn Store>, HistoryGenerator) {
    let store = open(place).await;
    let mut author = HistoryGenerator::new(seed, 1).with_runs(12);
    for commit in author.commits(commits) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    (store, author)
}

/// A commit of one change.
fn single(change: abide_ports::store::RunChange) -> JournalCommit {
    JournalCommit { changes: vec![change] }
}
