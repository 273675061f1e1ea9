//! Caches the last committed state of runs, so that the next event need not read the store.
//!
//! Correctness does not depend on the cache. A run is removed before it is changed, and put back after the commit. A
//! crash or an abandoned request only loses an entry. Changes by another writer are detected by the revision at the
//! commit.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use abide_domain::{
    id::{InteractionId, RunId},
    run::{Run, RunState},
};

/// Maximum number of cached runs. It exceeds the number of concurrently active runs; runs that wait for people are read
/// again.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct RecentRuns(Mutex<RecentRunMap>);

#[derive(Debug, Default)]
struct RecentRunMap {
    runs: BTreeMap<RunId, Arc<Run>>,
    /// The run of each open question, for the cached runs.
    askers: BTreeMap<InteractionId, RunId>,
}

impl RecentRuns {
    /// The last committed state, if it is cached.
    pub(crate) fn look(&self, run: RunId) -> Option<Arc<Run>> {
        self.known().runs.get(&run).cloned()
    }

    /// The run of this question, if it is cached. It never changes.
    pub(crate) fn asker(&self, question: InteractionId) -> Option<RunId> {
        self.known().askers.get(&question).copied()
    }

    /// Removes a run from the cache in order to change it.
    pub(crate) fn take(&self, run: RunId) -> Option<Arc<Run>> {
        self.known().remove(run)
    }

    /// Caches a committed state. A finished run without pending effects is not cached.
    pub(crate) fn put(&self, run: Arc<Run>) {
        if run.pending_effects.is_empty() && matches!(run.state, RunState::Finished(_)) {
            return;
        }
        let mut known = self.known();
        if let Some(question) = run.pending_interaction_id() {
            known.askers.insert(question, run.run_id);
        }
        known.runs.insert(run.run_id, run);
        if known.runs.len() > MOST {
            // Ids are in the order of creation. The oldest run has most likely waited longest.
            let oldest = known.runs.first_key_value().map(|(run, _)| *run);
            oldest.and_then(|oldest| known.remove(oldest));
        }
    }

    fn known(&self) -> MutexGuard<'_, RecentRunMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentRunMap {
    fn remove(&mut self, run: RunId) -> Option<Arc<Run>> {
        let known = self.runs.remove(&run)?;
        if let Some(question) = known.pending_interaction_id() {
            self.askers.remove(&question);
        }
        Some(known)
    }
}
