//! Random but valid histories: sequences of events that the domain accepts.
//!
//! A generator writes only about its own runs, so several generators can write to one store at once. The same seed
//! gives the same history. `event_guess.rs` proposes the events; the domain decides their effect.

mod event_guess;
mod texts;

use std::collections::BTreeMap;

use abide_domain::{
    event::{NewRun, RunEvent},
    id::{IdSeed, RunId},
    run::{self, ApplyOutcome, Run, RunState},
    time::{EventStamp, Timestamp},
};
use abide_ports::store::{JournalCommit, RunChange};

use crate::seeded_rng::SeededRng;

/// The start time of each history, in microseconds.
const START_MICROS: i64 = 1_790_000_000_000_000;

/// Generates a random valid history of several runs.
#[derive(Clone, Debug)]
pub struct HistoryGenerator {
    rng: SeededRng,
    writer: u16,
    now: i64,
    counter: u32,
    runs: BTreeMap<RunId, Run>,
    /// The event that must come next, if the last one demands it.
    next: Option<(RunId, RunEvent)>,
    max_runs: usize,
}

impl HistoryGenerator {
    /// Creates a generator. `name` keeps the ids of generators on one store apart.
    pub fn new(seed: u64, name: u16) -> Self {
        let dice = SeededRng::new(seed ^ (u64::from(name) << 48));
        Self {
            rng: dice,
            writer: name,
            now: START_MICROS,
            counter: 0,
            runs: BTreeMap::new(),
            next: None,
            max_runs: 16,
        }
    }

    /// Sets the approximate maximum of runs at a time.
    #[must_use]
    pub fn with_runs(mut self, max_runs: usize) -> Self {
        self.max_runs = max_runs;
        self
    }

    /// Returns the runs after all changes so far.
    pub fn runs(&self) -> &BTreeMap<RunId, Run> {
        &self.runs
    }

    /// Returns the next commit: one to four changes of one or more runs.
    pub fn commit(&mut self) -> JournalCommit {
        let changes = if self.rng.chance(70) { 1 } else { 1 + self.rng.below(4) };
        JournalCommit { changes: (0..changes).map(|_| self.change()).collect() }
    }

    pub fn commits(&mut self, count: usize) -> Vec<JournalCommit> {
        (0..count).map(|_| self.commit()).collect()
    }

    /// Returns the next change of a random run, or the creation of a new run.
    pub fn change(&mut self) -> RunChange {
        const TRIES: usize = 40;
        if let Some((run_id, event)) = self.next.take()
            && let Some(change) = self.apply(run_id, event)
        {
            return change;
        }
        for _ in 0..TRIES {
            let everyone = self.rng.chance(5);
            let ids: Vec<_> = self
                .runs
                .values()
                .filter(|run| everyone || !is_finished(run))
                .map(|run| run.run_id)
                .collect();
            if ids.is_empty() || (ids.len() < self.max_runs && self.rng.chance(8)) {
                break;
            }
            let run_id = self.rng.choose_nonempty(&ids);
            let event = self.propose_event(run_id);
            if let Some(change) = self.apply(run_id, event) {
                return change;
            }
        }
        self.create()
    }

    pub fn create(&mut self) -> RunChange {
        let new = self.new_run();
        let run_id = new.run_id;
        self.apply(run_id, RunEvent::RunCreated(Box::new(new))).expect("a new run is never refused")
    }

    /// Applies an event and returns the change; `None` if it is refused or changes nothing.
    pub fn apply(&mut self, run_id: RunId, event: RunEvent) -> Option<RunChange> {
        let stamp = self.stamp();
        let before = self.runs.get(&run_id);
        let step =
            run::apply(before, &stamp, &event).ok().filter(|step| step.outcome == ApplyOutcome::Changed)?;
        self.next = step.follow_up.clone().map(|event| (run_id, event));
        let change = RunChange::new(before, stamp, event, step);
        self.runs.insert(run_id, Run::clone(&change.run));
        Some(change)
    }

    /// Removes a run whose change was not written.
    pub fn remove_run(&mut self, run_id: RunId) {
        self.runs.remove(&run_id);
    }

    fn stamp(&mut self) -> EventStamp {
        self.now += 1 + self.rng.below(3_000_000) as i64;
        EventStamp { at: Timestamp(self.now), id_seed: self.next_id() }
    }

    /// Returns an id seed that increases with time and never repeats. The lowest bits are left to the domain.
    fn next_id(&mut self) -> IdSeed {
        self.counter += 1;
        let (time, name) = (self.now as u128 / 1000, u128::from(self.writer));
        IdSeed((time << 80) | (name << 64) | (u128::from(self.counter) << 16))
    }

    fn new_run(&mut self) -> NewRun {
        let run_id = RunId(self.next_id());
        let settings = self.settings();
        NewRun {
            run_id,
            settings,
            message: self.message(),
            idempotency: self.idempotency(),
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        }
    }
}

fn is_finished(run: &Run) -> bool {
    matches!(run.state, RunState::Finished(_)) && run.pending_effects.is_empty()
}
