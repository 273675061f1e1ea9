//! Runs as this desk committed them last, so that the next event of a run need not ask the store for them.
//!
//! Nothing depends on it: whoever is about to change a run takes it out, and puts back what the store has accepted.
//! A desk that dies, or a caller that leaves in between, loses an entry and no more. What another writer did meanwhile is
//! noticed by the run's revision when the change is committed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use abide_domain::{
    id::RunId,
    run::{Run, RunState},
};

/// How many runs are remembered. More are at work at once on no machine; those that wait for people are read again.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<BTreeMap<RunId, Arc<Run>>>);

impl Recent {
    /// The run as it was committed last, if that is remembered.
    pub(crate) fn look(&self, run: RunId) -> Option<Arc<Run>> {
        self.runs().get(&run).cloned()
    }

    /// The same, to be changed: until it is put back, nobody here knows what it is.
    pub(crate) fn take(&self, run: RunId) -> Option<Arc<Run>> {
        self.runs().remove(&run)
    }

    /// The store has accepted this. A run to which nothing will happen any more is not worth the room.
    pub(crate) fn put(&self, run: Arc<Run>) {
        if run.owed.is_empty() && matches!(run.state, RunState::Finished(_)) {
            return;
        }
        let mut runs = self.runs();
        runs.insert(run.run_id, run);
        if runs.len() > MOST {
            // Ids are in the order of creation: the oldest run is most likely the one that waits longest.
            runs.pop_first();
        }
    }

    fn runs(&self) -> MutexGuard<'_, BTreeMap<RunId, Arc<Run>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
