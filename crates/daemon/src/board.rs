//! Tracks which runs hold a slot, which wait for one, and which are dirty.
//!
//! The state of a run is recorded while its lock is held, after the store has answered. If a change is abandoned before
//! its outcome is known (a client disconnects, the store does not answer), the run is marked dirty. Dirty runs are
//! re-read before the next slot is granted.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use abide_domain::{
    id::RunId,
    run::Run,
    slots::{AdmissionQueue, SlotOccupancy},
};

#[derive(Debug)]
pub(crate) struct AdmissionControl(Mutex<AdmissionState>);

#[derive(Debug)]
struct AdmissionState {
    slots: AdmissionQueue,
    /// Runs that are being granted a slot. They count as holding it until the grant ends.
    granting: BTreeSet<RunId>,
    doubtful: BTreeSet<RunId>,
    /// Whether slots are granted.
    open: bool,
}

/// A change of a run whose outcome is unknown. If it is dropped without [`Self::settle`], the run is marked dirty.
#[derive(Debug)]
pub(crate) struct PendingChange<'a> {
    board: &'a AdmissionControl,
    run: RunId,
}

/// A slot that is being granted. The grant ends when this is dropped; the new state of the run is recorded under its
/// lock.
#[derive(Debug)]
pub(crate) struct SlotGrant<'a> {
    board: &'a AdmissionControl,
    pub(crate) run: RunId,
}

impl AdmissionControl {
    pub(crate) fn new(slots: AdmissionQueue) -> Self {
        Self(Mutex::new(AdmissionState {
            slots,
            granting: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            open: true,
        }))
    }

    /// Stops granting slots.
    pub(crate) fn close(&self) {
        self.notes().open = false;
    }

    /// Number of runs that hold a slot, and of those that wait.
    pub(crate) fn occupancy(&self) -> (usize, usize) {
        let notes = self.notes();
        (notes.slots.held(), notes.slots.queued())
    }

    /// The position of a waiting run in the queue, from 1.
    pub(crate) fn queue_position(&self, run: RunId) -> Option<usize> {
        self.notes().slots.position(run)
    }

    /// Starts a change of a run. The caller settles it when the outcome is known.
    pub(crate) fn begin_change(&self, run: RunId) -> PendingChange<'_> {
        PendingChange { board: self, run }
    }

    /// All dirty runs.
    pub(crate) fn doubtful(&self) -> Vec<RunId> {
        self.notes().doubtful.iter().copied().collect()
    }

    /// Grants a slot to the longest-waiting run that is not in `except`.
    pub(crate) fn grant_next(&self, except: &BTreeSet<RunId>) -> Option<SlotGrant<'_>> {
        let mut notes = self.notes();
        let run = notes.slots.candidates().find(|run| !except.contains(run)).filter(|_| notes.open)?;
        notes.grant(run);
        Some(SlotGrant { board: self, run })
    }

    /// Grants a slot to this run, if it is the next in the queue and no other grant for it is in progress. The slot
    /// that it held before is available to itself at once, and to others after the commit.
    pub(crate) fn grant_if_next(&self, before: Option<&Run>, run: &Run) -> Option<SlotGrant<'_>> {
        let SlotOccupancy::Queued(_) = run.occupancy() else { return None };
        let mut notes = self.notes();
        if notes.granting.contains(&run.run_id) || !notes.open {
            return None;
        }
        notes.slots.observe(run.run_id, run.occupancy());
        if notes.slots.next() != Some(run.run_id) {
            notes.slots.observe(run.run_id, before.map_or(SlotOccupancy::None, Run::occupancy));
            return None;
        }
        notes.grant(run.run_id);
        Some(SlotGrant { board: self, run: run.run_id })
    }

    fn notes(&self) -> MutexGuard<'_, AdmissionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionState {
    fn grant(&mut self, run: RunId) {
        self.granting.insert(run);
        self.slots.observe(run, SlotOccupancy::Holding);
    }

    fn note(&mut self, run: RunId, occupancy: SlotOccupancy) {
        let granting = self.granting.contains(&run) && matches!(occupancy, SlotOccupancy::Queued(_));
        self.slots.observe(run, if granting { SlotOccupancy::Holding } else { occupancy });
    }
}

impl PendingChange<'_> {
    /// Records the new state of the run.
    pub(crate) fn settle(self, run: Option<&Run>) {
        let mut notes = self.board.notes();
        notes.doubtful.remove(&self.run);
        notes.note(self.run, run.map_or(SlotOccupancy::None, Run::occupancy));
        drop(notes);
        std::mem::forget(self);
    }
}

impl Drop for PendingChange<'_> {
    fn drop(&mut self) {
        self.board.notes().doubtful.insert(self.run);
    }
}

impl Drop for SlotGrant<'_> {
    fn drop(&mut self) {
        let mut notes = self.board.notes();
        notes.granting.remove(&self.run);
        // Without a commit of the grant, states recorded meanwhile were overridden. So the run is re-read.
        notes.doubtful.insert(self.run);
    }
}

impl SlotGrant<'_> {
    /// Ends a committed grant. The new state of the run has been recorded.
    pub(crate) fn done(self) {
        self.board.notes().granting.remove(&self.run);
        std::mem::forget(self);
    }
}

#[cfg(test)]
mod tests {
    use abide_domain::{id::IdSeed, time::Timestamp};

    use super::*;

    fn run(number: u128) -> RunId {
        RunId(IdSeed(number))
    }

    fn queued(at: i64) -> SlotOccupancy {
        SlotOccupancy::Queued(Timestamp(at))
    }

    #[test]
    fn an_abandoned_change_stays_pending() {
        let board = AdmissionControl::new(AdmissionQueue::new(1));
        drop(board.begin_change(run(1)));
        assert_eq!(board.doubtful(), [run(1)]);
        board.begin_change(run(1)).settle(None);
        assert_eq!(board.doubtful(), []);
    }

    #[test]
    fn a_slot_that_is_being_granted_is_not_given_to_anyone_else() {
        let board = AdmissionControl::new(AdmissionQueue::new(1));
        board.notes().note(run(1), queued(10));
        let grant = board.grant_next(&BTreeSet::new()).expect("there is room");
        // An event of the run arrives before the grant is committed, and another run queues with an earlier stamp.
        board.notes().note(run(1), queued(30));
        board.notes().note(run(2), queued(20));
        assert!(board.grant_next(&BTreeSet::new()).is_none());
        drop(grant);
        assert_eq!(board.doubtful(), [run(1)], "a grant that came to nothing is looked at again");
    }
}
