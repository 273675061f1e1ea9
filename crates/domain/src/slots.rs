//! Who may work now: a fixed number of slots, and a queue in the order of asking.
//!
//! Nobody takes or returns a slot. Whether a run holds one is read off its state ([`crate::run::Run::occupancy`]),
//! so there is no path on which one could be forgotten.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::{id::RunId, time::Timestamp};

/// What a run's state says about slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// It needs none.
    None,
    /// It waits for one since then.
    Queued(Timestamp),
    /// It holds one.
    Holding,
}

/// All slots and everyone who waits for one.
#[derive(Clone, Debug)]
pub struct Slots {
    limit: usize,
    holding: BTreeSet<RunId>,
    queue: BTreeSet<(Timestamp, RunId)>,
    queued_since: BTreeMap<RunId, Timestamp>,
}

impl Slots {
    /// So many slots, all free.
    pub fn new(limit: usize) -> Self {
        Self { limit, holding: BTreeSet::new(), queue: BTreeSet::new(), queued_since: BTreeMap::new() }
    }

    /// Takes note of what a run's state now says. Saying the same twice changes nothing.
    pub fn observe(&mut self, run: RunId, occupancy: Occupancy) {
        if let Some(since) = self.queued_since.remove(&run) {
            self.queue.remove(&(since, run));
        }
        self.holding.remove(&run);
        match occupancy {
            Occupancy::None => {}
            Occupancy::Queued(since) => {
                self.queue.insert((since, run));
                self.queued_since.insert(run, since);
            }
            Occupancy::Holding => {
                self.holding.insert(run);
            }
        }
    }

    /// The run to be admitted next, if there is room. Ask again after its admission was committed.
    pub fn next(&self) -> Option<RunId> {
        if self.holding.len() >= self.limit {
            return None;
        }
        self.queue.first().map(|(_, run)| *run)
    }

    /// Runs that could be admitted now, the longest-waiting first; nobody where there is no room.
    pub fn candidates(&self) -> impl Iterator<Item = RunId> {
        let room = self.holding.len() < self.limit;
        self.queue.iter().filter(move |_| room).map(|(_, run)| *run)
    }

    /// How many runs stand before this one in the queue.
    pub fn position(&self, run: RunId) -> Option<usize> {
        let since = self.queued_since.get(&run)?;
        Some(self.queue.range(..(*since, run)).count())
    }

    /// How many runs wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many slots are taken.
    pub fn held(&self) -> usize {
        self.holding.len()
    }

    /// How many there are.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Fresh;

    fn run(n: u128) -> RunId {
        RunId(Fresh(n))
    }

    #[test]
    fn the_longest_waiting_run_is_admitted_while_there_is_room() {
        let mut slots = Slots::new(1);
        slots.observe(run(1), Occupancy::Queued(Timestamp(20)));
        slots.observe(run(2), Occupancy::Queued(Timestamp(10)));
        assert_eq!((slots.next(), slots.position(run(1)), slots.queued()), (Some(run(2)), Some(1), 2));
        slots.observe(run(2), Occupancy::Holding);
        assert_eq!((slots.next(), slots.held()), (None, 1));
        slots.observe(run(2), Occupancy::None);
        assert_eq!(slots.next(), Some(run(1)));
    }

    #[test]
    fn a_run_that_stands_in_the_queue_anew_loses_its_old_place() {
        let mut slots = Slots::new(1);
        slots.observe(run(1), Occupancy::Queued(Timestamp(10)));
        slots.observe(run(2), Occupancy::Queued(Timestamp(20)));
        slots.observe(run(1), Occupancy::Queued(Timestamp(30)));
        assert_eq!((slots.next(), slots.queued()), (Some(run(2)), 2));
    }
}
