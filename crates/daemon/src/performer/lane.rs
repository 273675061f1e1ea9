//! A lock for each run, held for one effect or one batch of events.
//!
//! Unlike the locks in `lanes.rs` these are not shared between runs, because an effect may take seconds.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

use abide_domain::id::RunId;
use tokio::sync::OwnedMutexGuard;

use super::lock;

type RunLock = tokio::sync::Mutex<()>;

/// The locks in use.
#[derive(Debug, Default)]
pub(super) struct KeyedRunLocks(Mutex<KeyedRunLockMap>);

#[derive(Debug, Default)]
struct KeyedRunLockMap {
    of: BTreeMap<RunId, Weak<RunLock>>,
    /// Number of entries at which unused locks are removed.
    room: usize,
}

/// Minimum number of entries before a removal.
const FEW: usize = 64;

impl KeyedRunLocks {
    /// Waits for the lock of this run.
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
