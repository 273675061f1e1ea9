//! The conformance suite for stores.
//!
//! It checks each guarantee of the contract in `ports` with a small scenario. The behaviour with a damaged disk or a
//! lost connection is tested in the store's own crate.

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

/// Creates places for stores of one kind.
pub trait TestStoreProvider: Sync {
    /// Creates an unused place.
    fn fresh(&self) -> Box<dyn TestStorePlace>;

    /// Creates an empty reference store.
    fn reference(&self) -> Arc<dyn Store>;
}

/// A place that holds one store.
pub trait TestStorePlace: Send + Sync {
    /// Opens the store. A store opened here earlier must have been closed.
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>>;

    /// Whether the content survives closing.
    fn keeps(&self) -> TestStoreDurability;

    /// Opens a backup.
    fn restored(&self, backup: &Path) -> StoreFuture<'_, Arc<dyn Store>>;

    /// Returns the path of a file that does not exist.
    fn new_file(&self) -> PathBuf;
}

/// Whether a store's content survives closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestStoreDurability {
    /// Each opening finds an empty store.
    Nothing,
    /// Each acknowledged commit survives.
    Everything,
}

/// Checks all guarantees of the contract. `name` is used in messages only.
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

/// Opens a store and panics if that fails.
async fn open(place: &dyn TestStorePlace) -> Arc<dyn Store> {
    place.open().await.expect("the store opens")
}

/// Creates a store with a random history of `commits` commits, and returns it with the history's generator.
async fn told(place: &dyn TestStorePlace, seed: u64, commits: usize) -> (Arc<dyn Store>, HistoryGenerator) {
    let store = open(place).await;
    let mut author = HistoryGenerator::new(seed, 1).with_runs(12);
    for commit in author.commits(commits) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    (store, author)
}

fn single(change: abide_ports::store::RunChange) -> JournalCommit {
    JournalCommit { changes: vec![change] }
}
