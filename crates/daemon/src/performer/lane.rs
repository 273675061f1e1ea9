//! One order or piece of news at a time for each run.
//!
//! Unlike the desk's lanes these are not shared between runs: an order may take seconds.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

use abide_domain::id::RunId;
use tokio::sync::OwnedMutexGuard;

use super::lock;

type RunLock = tokio::sync::Mutex<()>;

/// The lanes that are in use.
#[derive(Debug, Default)]
pub(super) struct KeyedRunLocks(Mutex<KeyedRunLockMap>);

#[derive(Debug, Default)]
struct KeyedRunLockMap {
    of: BTreeMap<RunId, Weak<RunLock>>,
    /// How many there may be before those that nobody uses any more are cleared away.
    room: usize,
}

/// Below this it is not worth clearing away.
const FEW: usize = 64;

impl KeyedRunLocks {
    /// Waits until this run's lane is free.
    pub(super) async fn enter(&self, run: RunId) -> OwnedMutexGuard<()> {
        let lane = {
            let mut lanes = lock(&self.0);
            let used = lanes.of.get(&run).and_then(Weak::upgrade);
            used.unwrap_or_else(|| {
                if lanes.of.len() >= lanes.room {
                    lanes.of.retain(|_, lane| lane.strong_count() > 0);
                    lanes.room = FEW.max(2 * lanes.of.len());
                }
                let lane = Arc::new(RunLock::new(()));
                lanes.of.insert(run, Arc::downgrade(&lane));
                lane
            })
        };
        lane.lock_owned().await
    }
}
