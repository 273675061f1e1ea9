//! Admission control: a fixed number of slots, and a queue in order of arrival.
//!
//! Slots are derived from the runs' states ([`crate::run::Run::occupancy`]). There is no acquire or release to forget.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{id::RunId, time::Timestamp};

/// The slot that a run's state requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOccupancy {
    /// The run needs no slot.
    None,
    /// The run has waited for a slot since this time.
    Queued(Timestamp),
    /// The run holds a slot.
    Holding,
}

/// All slots, and the runs that wait for one.
#[derive(Clone, Debug)]
pub struct AdmissionQueue {
    limit: usize,
    holding: BTreeSet<RunId>,
    /// Sorted, for binary search. Runs usually join at the end and leave at the front.
    queue: VecDeque<(Timestamp, RunId)>,
    queued_since: BTreeMap<RunId, Timestamp>,
}

impl AdmissionQueue {
    /// A queue with this number of slots, all free.
    pub fn new(limit: usize) -> Self {
        Self { limit, holding: BTreeSet::new(), queue: VecDeque::new(), queued_since: BTreeMap::new() }
    }

    /// Updates the queue with the state of a run. Idempotent.
    pub fn observe(&mut self, run: RunId, occupancy: SlotOccupancy) {
        if let (SlotOccupancy::Queued(now), Some(before)) = (occupancy, self.queued_since.get(&run))
            && now == *before
        {
            return;
        }
        if let Some(index) = self.queue_index(run) {
            self.queue.remove(index);
        }
        self.queued_since.remove(&run);
        self.holding.remove(&run);
        match occupancy {
            SlotOccupancy::None => {}
            SlotOccupancy::Queued(since) => {
                let index = self.queue.partition_point(|earlier| *earlier < (since, run));
                self.queue.insert(index, (since, run));
                self.queued_since.insert(run, since);
            }
            SlotOccupancy::Holding => {
                self.holding.insert(run);
            }
        }
    }

    /// The next run to admit, if a slot is free. Call again after its admission was committed.
    pub fn next(&self) -> Option<RunId> {
        if self.holding.len() >= self.limit {
            return None;
        }
        self.queue.front().map(|(_, run)| *run)
    }

    /// Runs that can be admitted now, longest-waiting first. Empty if no slot is free.
    pub fn candidates(&self) -> impl Iterator<Item = RunId> {
        let room = self.holding.len() < self.limit;
        self.queue.iter().filter(move |_| room).map(|(_, run)| *run)
    }

    /// The position of a run in the queue; 1 is next.
    pub fn position(&self, run: RunId) -> Option<usize> {
        self.queue_index(run).map(|index| index + 1)
    }

    fn queue_index(&self, run: RunId) -> Option<usize> {
        let since = self.queued_since.get(&run)?;
        self.queue.binary_search(&(*since, run)).ok()
    }

    /// The number of waiting runs.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The number of occupied slots.
    pub fn held(&self) -> usize {
        self.holding.len()
    }

    /// The total number of slots.
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
    fn waiting_runs_have_positions_from_1() {
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
    fn a_requeued_run_loses_its_old_position() {
        let mut slots = AdmissionQueue::new(1);
        slots.observe(run(1), SlotOccupancy::Queued(Timestamp(10)));
        slots.observe(run(2), SlotOccupancy::Queued(Timestamp(20)));
        slots.observe(run(1), SlotOccupancy::Queued(Timestamp(30)));
        assert_eq!((slots.next(), slots.queued()), (Some(run(2)), 2));
    }
}
