//! One event at a time for each run, many runs at once.
//!
//! A fixed number of locks shared by all runs: two runs in one lane wait for each other for the length of a
//! commit, and nothing grows with the number of runs.

use abide_domain::id::RunId;
use tokio::sync::{Mutex, MutexGuard};

const LANES: usize = 256;

#[derive(Debug)]
pub(crate) struct StripedRunLocks(Vec<Mutex<()>>);

impl StripedRunLocks {
    pub(crate) fn new() -> Self {
        Self((0..LANES).map(|_| Mutex::new(())).collect())
    }

    /// Waits until this run's lane is free.
    pub(crate) async fn enter(&self, run: RunId) -> MutexGuard<'_, ()> {
        // The low bits of an id are random, so runs spread evenly.
        let lane = (run.0.0 % LANES as u128) as usize;
        self.0[lane].lock().await
    }
}
