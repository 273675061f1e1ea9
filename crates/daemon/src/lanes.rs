//! Serializes the events of each run, while different runs proceed concurrently.
//!
//! A fixed number of locks is shared by all runs. Two runs with the same lock wait for each other for one commit, and
//! memory does not grow with the number of runs.

use abide_domain::id::RunId;
use tokio::sync::{Mutex, MutexGuard};

const LANES: usize = 256;

#[derive(Debug)]
pub(crate) struct StripedRunLocks(Vec<Mutex<()>>);

impl StripedRunLocks {
    pub(crate) fn new() -> Self {
        Self((0..LANES).map(|_| Mutex::new(())).collect())
    }

    /// Waits for the lock of this run.
    pub(crate) async fn enter(&self, run: RunId) -> MutexGuard<'_, ()> {
        // The low bits of an id are random, so runs spread evenly.
        let lane = (run.0.0 % LANES as u128) as usize;
        self.0[lane].lock().await
    }
}
