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
/// Maximum size of the texts of all cached runs, in bytes: prompts, answers and questions.
const MAX_TEXT_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct RecentRuns(Mutex<RecentRunMap>);

#[derive(Debug, Default)]
struct RecentRunMap {
    runs: BTreeMap<RunId, CachedRun>,
    /// The size of the texts of the cached runs.
    text_bytes: usize,
    /// The run of each open question, for the cached runs.
    askers: BTreeMap<InteractionId, RunId>,
}

#[derive(Debug)]
struct CachedRun {
    run: Arc<Run>,
    text_bytes: usize,
}

impl RecentRuns {
    /// The last committed state, if it is cached.
    pub(crate) fn look(&self, run: RunId) -> Option<Arc<Run>> {
        self.known().runs.get(&run).map(|cached| cached.run.clone())
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
        let (run_id, text_bytes) = (run.run_id, text_bytes(&run));
        known.text_bytes += text_bytes;
        if let Some(replaced) = known.runs.insert(run_id, CachedRun { run, text_bytes }) {
            known.text_bytes -= replaced.text_bytes;
        }
        while known.runs.len() > MOST || known.text_bytes > MAX_TEXT_BYTES {
            // Ids are in the order of creation. The oldest run has most likely waited longest.
            let oldest = known.runs.first_key_value().map(|(run, _)| *run);
            if oldest.and_then(|oldest| known.remove(oldest)).is_none() {
                break;
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, RecentRunMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentRunMap {
    fn remove(&mut self, run: RunId) -> Option<Arc<Run>> {
        let CachedRun { run: known, text_bytes } = self.runs.remove(&run)?;
        self.text_bytes -= text_bytes;
        if let Some(question) = known.pending_interaction_id() {
            self.askers.remove(&question);
        }
        Some(known)
    }
}

/// The size of the texts of a run that have no small bound.
pub(crate) fn text_bytes(run: &Run) -> usize {
    let turns = run.turns.iter().map(|turn| turn.prompt.len() + turn.reply.as_ref().map_or(0, String::len));
    let messages = run.inbox.iter().map(|inbound| inbound.message.text.len());
    let questions = run.interactions.iter().map(|interaction| interaction.question.prompt.len());
    let requests = run.waiting_gates.iter().map(|interaction| interaction.question.prompt.len());
    let next_prompt = match &run.state {
        RunState::Queued { next, .. } => next.prompt.len(),
        RunState::Running(_) | RunState::WaitingUser(_) | RunState::Idle { .. } | RunState::Finished(_) => 0,
    };
    let result = run.result.as_ref().map_or(0, String::len);
    turns.chain(messages).chain(questions).chain(requests).sum::<usize>() + next_prompt + result
}
