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

type Lane = tokio::sync::Mutex<()>;

/// The lanes that are in use.
#[derive(Debug, Default)]
pub(super) struct RunLanes(Mutex<BTreeMap<RunId, Weak<Lane>>>);

impl RunLanes {
    /// Waits until this run's lane is free.
    pub(super) async fn enter(&self, run: RunId) -> OwnedMutexGuard<()> {
        let lane = {
            let mut lanes = lock(&self.0);
            let used = lanes.get(&run).and_then(Weak::upgrade);
            used.unwrap_or_else(|| {
                lanes.retain(|_, lane| lane.strong_count() > 0);
                let lane = Arc::new(Lane::new(()));
                lanes.insert(run, Arc::downgrade(&lane));
                lane
            })
        };
        lane.lock_owned().await
    }
}
