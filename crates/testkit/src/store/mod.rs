//! The conformance suite for stores.
//!
//! It checks each guarantee of the contract in `ports` with a small scenario. The behaviour with a damaged disk or a
//! lost connection is tested in the store's own crate.

#![expect(clippy::unwrap_used, reason = "a suite is a test, and a failed answer fails it")]

mod claims;
mod commits;
mod journal_order;
mod listings;
mod maintenance;
mod random;
mod read_view;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_ports::store::{JournalCommit, Store, StoreFuture};

pub use read_view::{assert_equal, read_view};

use crate::history::HistoryGenerator;

/// Creates places for stores of one kind.
pub trait TestStoreProvider: Sync {
    /// Creates an unused place.
    fn new_place(&self) -> Box<dyn TestStorePlace>;

    /// Creates an empty reference store.
    fn reference(&self) -> Arc<dyn Store>;
}

/// A place that holds one store.
pub trait TestStorePlace: Send + Sync {
    /// Opens the store. A store opened here earlier must have been closed.
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>>;

    /// Whether the content survives closing.
    fn durability(&self) -> TestStoreDurability;

    fn open_backup(&self, backup: &Path) -> StoreFuture<'_, Arc<dyn Store>>;

    /// Returns the path of a file that does not exist.
    fn new_file(&self) -> PathBuf;
}

/// Whether a store's content survives closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestStoreDurability {
    /// Each opening finds an empty store.
    Volatile,
    /// Each acknowledged commit survives.
    Durable,
}

/// Checks all guarantees of the contract. `name` is used in messages only.
pub async fn check(name: &str, places: &dyn TestStoreProvider) {
    let check_name = |check: &str| println!("{name}: {check}");
    check_name("commits");
    commits::check(places).await;
    check_name("claims");
    claims::check(places).await;
    check_name("listings");
    listings::check(places).await;
    check_name("order");
    journal_order::check(places).await;
    check_name("maintenance");
    maintenance::check(places).await;
    check_name("random histories");
    random::check(places).await;
}

/// Opens a store and panics if that fails.
async fn open(place: &dyn TestStorePlace) -> Arc<dyn Store> {
    place.open().await.expect("the store opens")
}

/// Creates a store with a random history of `commits` commits, and returns it with the history's generator.
async fn store_with_history(
    place: &dyn TestStorePlace,
    seed: u64,
    commits: usize,
) -> (Arc<dyn Store>, HistoryGenerator) {
    let store = open(place).await;
    let mut generator = HistoryGenerator::new(seed, 1).with_runs(12);
    for commit in generator.commits(commits) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    (store, generator)
}

fn single_commit(change: abide_ports::store::RunChange) -> JournalCommit {
    JournalCommit { changes: vec![change] }
}
