//! Who may work now: a fixed number of slots, and a queue in the order of asking.
//!
//! Nobody takes or returns a slot. Whether a run holds one is read off its state ([`crate::run::Run::occupancy`]),
//! so there is no path on which one could be forgotten.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{id::RunId, time::Timestamp};

/// What a run's state says about slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOccupancy {
    /// It needs none.
    None,
    /// It waits for one since then.
    Queued(Timestamp),
    /// It holds one.
    Holding,
}

/// All slots and everyone who waits for one.
#[derive(Clone, Debug)]
pub struct AdmissionQueue {
    limit: usize,
    holding: BTreeSet<RunId>,
    /// In order, so that a place is found by halving. Nearly everyone joins at the end and leaves at the front.
    queue: VecDeque<(Timestamp, RunId)>,
    queued_since: BTreeMap<RunId, Timestamp>,
}

impl AdmissionQueue {
    /// So many slots, all free.
    pub fn new(limit: usize) -> Self {
        Self { limit, holding: BTreeSet::new(), queue: VecDeque::new(), queued_since: BTreeMap::new() }
    }

    /// Takes note of what a run's state now says. Saying the same twice changes nothing.
    pub fn observe(&mut self, run: RunId, occupancy: SlotOccupancy) {
        if let (SlotOccupancy::Queued(now), Some(before)) = (occupancy, self.queued_since.get(&run))
            && now == *before
        {
            return;
        }
        if let Some(place) = self.place(run) {
            self.queue.remove(place);
        }
        self.queued_since.remove(&run);
        self.holding.remove(&run);
        match occupancy {
            SlotOccupancy::None => {}
            SlotOccupancy::Queued(since) => {
                let place = self.queue.partition_point(|earlier| *earlier < (since, run));
                self.queue.insert(place, (since, run));
                self.queued_since.insert(run, since);
            }
            SlotOccupancy::Holding => {
                self.holding.insert(run);
            }
        }
    }

    /// The run to be admitted next, if there is room. Ask again after its admission was committed.
    pub fn next(&self) -> Option<RunId> {
        if self.holding.len() >= self.limit {
            return None;
        }
        self.queue.front().map(|(_, run)| *run)
    }

    /// Runs that could be admitted now, the longest-waiting first; nobody where there is no room.
    pub fn candidates(&self) -> impl Iterator<Item = RunId> {
        let room = self.holding.len() < self.limit;
        self.queue.iter().filter(move |_| room).map(|(_, run)| *run)
    }

    /// At which place this run waits, if it does; 1 is next.
    pub fn position(&self, run: RunId) -> Option<usize> {
        self.place(run).map(|place| place + 1)
    }

    fn place(&self, run: RunId) -> Option<usize> {
        let since = self.queued_since.get(&run)?;
        self.queue.binary_search(&(*since, run)).ok()
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
    use crate::id::IdSeed;

    fn run(n: u128) -> RunId {
        RunId(IdSeed(n))
    }

    #[test]
    fn the_longest_waiting_run_is_admitted_while_there_is_room() {
        let mut slots = AdmissionQueue::new(1);
        slots.observe(run(1), SlotOccupancy::Queued(Timestamp(20)));
        slots.observe(run(2), SlotOccupancy::Queued(Timestamp(10)));
        assert_eq!((slots.next(), slots.queued()), (Some(run(2)), 2));
        slots.observe(run(2), SlotOccupancy::Holding);
        assert_eq!((slots.next(), slots.held()), (None, 1));
        slots.observe(run(2), SlotOccupancy::None);
        assert_eq!(slots.next(), Some(run(1)));
    }

    #[test]
    fn everyone_who_waits_has_a_place_and_the_first_is_next() {
        let mut slots = AdmissionQueue::new(1);
        for (number, at) in [(1, 30), (2, 10), (3, 20), (4, 20)] {
            slots.observe(run(number), SlotOccupancy::Queued(Timestamp(at)));
            slots.observe(run(number), SlotOccupancy::Queued(Timestamp(at)));
        }
        let places = |slots: &AdmissionQueue| [1, 2, 3, 4].map(|number| slots.position(run(number)));
        assert_eq!(places(&slots), [Some(4), Some(1), Some(2), Some(3)]);
        slots.observe(run(2), SlotOccupancy::Holding);
        slots.observe(run(4), SlotOccupancy::None);
        assert_eq!(places(&slots), [Some(2), None, Some(1), None]);
        assert_eq!((slots.queued(), slots.candidates().count()), (2, 0));
    }

    #[test]
    fn a_run_that_stands_in_the_queue_anew_loses_its_old_place() {
        let mut slots = AdmissionQueue::new(1);
        slots.observe(run(1), SlotOccupancy::Queued(Timestamp(10)));
        slots.observe(run(2), SlotOccupancy::Queued(Timestamp(20)));
        slots.observe(run(1), SlotOccupancy::Queued(Timestamp(30)));
        assert_eq!((slots.next(), slots.queued()), (Some(run(2)), 2));
    }
}
