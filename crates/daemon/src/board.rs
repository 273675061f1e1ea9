//! Who holds a slot and who waits for one, as far as the desk knows, and about whom it must look again.
//!
//! What a run's state says is noted inside its lane, after the store has answered. Whoever leaves before that (a
//! client that hangs up, a store that does not answer) leaves a doubt behind, and doubts are cleared up before the
//! next slot is granted.

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
    /// Runs to which a slot is being granted right now: they count as holding it, whatever is noted meanwhile.
    granting: BTreeSet<RunId>,
    doubtful: BTreeSet<RunId>,
    /// Whether slots are granted at all.
    open: bool,
}

/// Somebody is changing a run. Until they say what came of it, nobody knows what the run is.
#[derive(Debug)]
pub(crate) struct PendingChange<'a> {
    board: &'a AdmissionControl,
    run: RunId,
}

/// A slot is being granted. It ends when this is dropped; what the run then is was noted in its lane.
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

    /// From now on nobody is granted a slot.
    pub(crate) fn close(&self) {
        self.notes().open = false;
    }

    /// How many runs hold a slot, and how many wait.
    pub(crate) fn occupancy(&self) -> (usize, usize) {
        let notes = self.notes();
        (notes.slots.held(), notes.slots.queued())
    }

    /// At which place this run waits; 1 is next.
    pub(crate) fn queue_position(&self, run: RunId) -> Option<usize> {
        self.notes().slots.position(run)
    }

    /// To be settled as soon as it is known what became of the run.
    pub(crate) fn doubt(&self, run: RunId) -> PendingChange<'_> {
        PendingChange { board: self, run }
    }

    /// Everyone about whom something was left open.
    pub(crate) fn doubtful(&self) -> Vec<RunId> {
        self.notes().doubtful.iter().copied().collect()
    }

    /// Grants a slot to the longest-waiting run that is not among these.
    pub(crate) fn grant_next(&self, except: &BTreeSet<RunId>) -> Option<SlotGrant<'_>> {
        let mut notes = self.notes();
        let run = notes.slots.candidates().find(|run| !except.contains(run)).filter(|_| notes.open)?;
        notes.grant(run);
        Some(SlotGrant { board: self, run })
    }

    /// Grants a slot to this run, which was something else before, if it is the next in line and nobody is granting it
    /// one already. The slot that it held before is free for itself; for others only after the commit.
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
    /// The run is this now.
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
        // If the grant was not committed, what was noted meanwhile was overridden: look again.
        notes.doubtful.insert(self.run);
    }
}

impl SlotGrant<'_> {
    /// The grant is in the journal, and what the run now is was noted.
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
    fn whoever_leaves_without_a_word_leaves_a_doubt() {
        let board = AdmissionControl::new(AdmissionQueue::new(1));
        drop(board.doubt(run(1)));
        assert_eq!(board.doubtful(), [run(1)]);
        board.doubt(run(1)).settle(None);
        assert_eq!(board.doubtful(), []);
    }

    #[test]
    fn a_slot_that_is_being_granted_is_not_given_to_anyone_else() {
        let board = AdmissionControl::new(AdmissionQueue::new(1));
        board.notes().note(run(1), queued(10));
        let grant = board.grant_next(&BTreeSet::new()).expect("there is room");
        // News of the run comes in before the grant is committed, and somebody queues with an earlier stamp.
        board.notes().note(run(1), queued(30));
        board.notes().note(run(2), queued(20));
        assert!(board.grant_next(&BTreeSet::new()).is_none());
        drop(grant);
        assert_eq!(board.doubtful(), [run(1)], "a grant that came to nothing is looked at again");
    }
}
