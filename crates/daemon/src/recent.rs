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
    id::{InteractionId, RunId},
    run::{Run, RunState},
};

/// How many runs are remembered. More are at work at once on no machine; those that wait for people are read again.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct RecentRuns(Mutex<RecentRunMap>);

#[derive(Debug, Default)]
struct RecentRunMap {
    runs: BTreeMap<RunId, Arc<Run>>,
    /// Whose question each is that can be answered, of the runs that are remembered.
    askers: BTreeMap<InteractionId, RunId>,
}

impl RecentRuns {
    /// The run as it was committed last, if that is remembered.
    pub(crate) fn look(&self, run: RunId) -> Option<Arc<Run>> {
        self.known().runs.get(&run).cloned()
    }

    /// Whose question this is, if that is remembered: a question never changes its run.
    pub(crate) fn asker(&self, question: InteractionId) -> Option<RunId> {
        self.known().askers.get(&question).copied()
    }

    /// A run, to be changed: until it is put back, nobody here knows what it is.
    pub(crate) fn take(&self, run: RunId) -> Option<Arc<Run>> {
        self.known().remove(run)
    }

    /// The store has accepted this. A run to which nothing will happen any more is not worth the room.
    pub(crate) fn put(&self, run: Arc<Run>) {
        if run.owed.is_empty() && matches!(run.state, RunState::Finished(_)) {
            return;
        }
        let mut known = self.known();
        if let Some(question) = run.pending_interaction_id() {
            known.askers.insert(question, run.run_id);
        }
        known.runs.insert(run.run_id, run);
        if known.runs.len() > MOST {
            // Ids are in the order of creation: the oldest run is most likely the one that waits longest.
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
