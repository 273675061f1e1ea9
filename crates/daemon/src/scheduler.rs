//! Decides which run starts next and when deadlines are checked. A pure value: its inputs are the states of runs.
//!
//! Slots and deadlines are derived from the states (decision 0001), so nothing is acquired or released. A run that is
//! admitted counts as holding its slot until its actor has reported the outcome of the commit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use abide_domain::{
    deadline::{Deadline, DeadlineKind},
    id::RunId,
    run::Run,
    slots::{AdmissionQueue, SlotOccupancy},
    time::{Seconds, TimeSpan, Timestamp},
};

/// The slots and the queue. The scheduler is the only writer; clients read it.
#[derive(Clone, Debug)]
pub(crate) struct SharedQueue(Arc<Mutex<AdmissionQueue>>);

impl SharedQueue {
    pub(crate) fn lock(&self) -> MutexGuard<'_, AdmissionQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Owns slots, queue and deadlines.
#[derive(Debug)]
pub(crate) struct RunScheduler {
    queue: SharedQueue,
    /// Runs that are being admitted. They count as holding a slot until [`Self::settle`].
    granting: BTreeSet<RunId>,
    /// Runs that could not be admitted, for lack of disk space or because of an error. They are tried again when all
    /// others were tried, or when one is admitted.
    skipped: BTreeSet<RunId>,
    /// Number of runs that were skipped since the last tick.
    skips: usize,
    /// Whether slots are granted.
    is_open: bool,
    quarantine: BTreeMap<RunId, QuarantineEntry>,
    /// The time for which a tick is planned.
    planned_tick: Option<Timestamp>,
    /// The run that commits a long text. Its copies, as states and as rows, take several times its size, so there is
    /// only one, and the other runs wait.
    long_commit: Option<RunId>,
    waiting_long: BTreeSet<RunId>,
}

/// A run that is retried after a pause, because of an error.
#[derive(Debug)]
struct QuarantineEntry {
    pause: Seconds,
    until: Timestamp,
    reason: String,
}

/// The first and the maximum pause of a quarantined run; each pause doubles the one before.
const FIRST_PAUSE: Seconds = Seconds(1);
const LONGEST_PAUSE: Seconds = Seconds(600);

/// Minimum and maximum delay of a tick. A new deadline is never nearer than the minimum; the maximum also limits the
/// effect of a clock that is changed.
const MIN_TICK_DELAY: Duration = Duration::from_millis(100);
const MAX_TICK_DELAY: Duration = Duration::from_secs(60);
/// Delay of a tick after due deadlines, whose runs may not have handled them yet, and after a failed query.
const REPEATED_TICK: Seconds = Seconds(1);
/// Delay of a tick while runs cannot be admitted. There is no notification for freed space.
const SKIPPED_TICK: Seconds = Seconds(2);
/// Maximum number of runs between two ticks that cannot be admitted. A full disk may concern thousands of queued runs.
const SKIPS_PER_TICK: usize = 32;
/// Maximum number of due deadlines that are handled in one tick.
const DEADLINES_PER_TICK: usize = 500;

impl RunScheduler {
    pub(crate) fn new(slots: usize, occupancies: Vec<(RunId, SlotOccupancy)>) -> Self {
        let mut queue = AdmissionQueue::new(slots);
        for (run, occupancy) in occupancies {
            queue.observe(run, occupancy);
        }
        Self {
            queue: SharedQueue(Arc::new(Mutex::new(queue))),
            granting: BTreeSet::new(),
            skipped: BTreeSet::new(),
            skips: 0,
            is_open: true,
            quarantine: BTreeMap::new(),
            planned_tick: None,
            long_commit: None,
            waiting_long: BTreeSet::new(),
        }
    }

    pub(crate) fn queue(&self) -> SharedQueue {
        self.queue.clone()
    }

    /// Stops granting slots because of the shutdown.
    pub(crate) fn close(&mut self) {
        self.is_open = false;
    }

    // Slots.

    /// Grants a slot to the longest-waiting run, if a slot is free.
    pub(crate) fn admit_next(&mut self) -> Option<RunId> {
        if !self.is_open || self.skips >= SKIPS_PER_TICK {
            return None;
        }
        let run = self.next_candidate()?;
        self.grant(run);
        Some(run)
    }

    fn next_candidate(&self) -> Option<RunId> {
        let is_candidate = |run: &RunId| !self.skipped.contains(run) && !self.granting.contains(run);
        self.queue.lock().candidates().find(is_candidate)
    }

    /// Grants a slot to this run in the commit that queues it, if it is the next in the queue. The slot that it held
    /// before is available to itself at once, and to others after the commit.
    pub(crate) fn admit_if_next(&mut self, before: Option<&Run>, run: &Run) -> bool {
        let SlotOccupancy::Queued(_) = run.occupancy() else { return false };
        if self.granting.contains(&run.run_id) || !self.is_open {
            return false;
        }
        let is_next = {
            let mut queue = self.queue.lock();
            queue.observe(run.run_id, run.occupancy());
            let is_next = queue.next() == Some(run.run_id);
            queue.observe(run.run_id, before.map_or(SlotOccupancy::None, Run::occupancy));
            is_next
        };
        if is_next {
            self.grant(run.run_id);
        }
        is_next
    }

    fn grant(&mut self, run: RunId) {
        self.granting.insert(run);
        self.queue.lock().observe(run, SlotOccupancy::Holding);
    }

    /// Records the state of a run whose grant, if it had one, is settled: committed, or certainly not.
    pub(crate) fn settle(&mut self, run_id: RunId, run: Option<&Run>) {
        let occupancy = run.map_or(SlotOccupancy::None, Run::occupancy);
        if self.granting.remove(&run_id) && occupancy == SlotOccupancy::Holding {
            self.skipped.clear();
        }
        self.queue.lock().observe(run_id, occupancy);
    }

    /// Ends the grant of a run whose state is not known. The slot counts as held until [`Self::settle`].
    pub(crate) fn release_grant(&mut self, run: RunId) {
        self.granting.remove(&run);
    }

    /// Records that a run could not be admitted now.
    pub(crate) fn skip(&mut self, run: RunId) {
        self.skipped.insert(run);
        self.skips += 1;
    }

    // Long texts.

    /// Whether this run may commit a long text now. If not, it is returned by [`Self::next_long`] later.
    pub(crate) fn begin_long(&mut self, run: RunId) -> bool {
        let may_begin = self.long_commit.is_none_or(|other| other == run);
        if may_begin {
            self.long_commit = Some(run);
        } else {
            self.waiting_long.insert(run);
        }
        may_begin
    }

    pub(crate) fn end_long(&mut self, run: RunId) {
        self.long_commit.take_if(|long| *long == run);
    }

    /// The next run that waits to commit a long text, if none is being committed.
    pub(crate) fn next_long(&mut self) -> Option<RunId> {
        if self.long_commit.is_some() { None } else { self.waiting_long.pop_first() }
    }

    // Deadlines.

    /// Plans a tick for a new deadline. Returns the delay, if no earlier tick is planned.
    pub(crate) fn plan_tick(&mut self, at: Timestamp, now: Timestamp) -> Option<Duration> {
        let delay = Duration::from_micros(now.span_until(at).0).clamp(MIN_TICK_DELAY, MAX_TICK_DELAY);
        let at = now.add_span(TimeSpan(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)));
        if self.planned_tick.is_some_and(|planned| planned <= at && planned > now) {
            return None;
        }
        self.planned_tick = Some(at);
        Some(delay)
    }

    /// Begins a tick: further runs are tried, and then the skipped ones again. Returns the number of deadlines to list.
    pub(crate) fn begin_tick(&mut self) -> usize {
        self.planned_tick = None;
        self.skips = 0;
        if self.next_candidate().is_none() {
            self.skipped.clear();
        }
        DEADLINES_PER_TICK.saturating_add(self.quarantine.len())
    }

    /// The due ones of these deadlines, which are the earliest of the store. Runs in quarantine wait for its end. Also
    /// returns the time of the next tick.
    pub(crate) fn due(
        &self,
        deadlines: &[(RunId, Deadline)],
        now: Timestamp,
    ) -> (Vec<(RunId, DeadlineKind)>, Option<Timestamp>) {
        let quarantined_until =
            |run: &RunId| self.quarantine.get(run).map_or(Timestamp(i64::MIN), |entry| entry.until);
        let (due, later): (Vec<_>, Vec<_>) = deadlines
            .iter()
            .copied()
            .partition(|(run, deadline)| deadline.at.max(quarantined_until(run)) <= now);
        let next = later.iter().map(|(run, deadline)| deadline.at.max(quarantined_until(run))).min();
        let repeated = (!due.is_empty()).then(|| now.add_seconds(REPEATED_TICK));
        let kinds = due.into_iter().map(|(run, deadline)| (run, deadline.kind)).collect();
        (kinds, next.into_iter().chain(repeated).min())
    }

    /// The time of the next tick after an error of the store.
    pub(crate) fn after_error(now: Timestamp) -> Timestamp {
        now.add_seconds(REPEATED_TICK)
    }

    /// The time of the next tick while runs cannot be admitted.
    pub(crate) fn retry_skipped_at(&self, now: Timestamp) -> Option<Timestamp> {
        (!self.skipped.is_empty()).then(|| now.add_seconds(SKIPPED_TICK))
    }

    // Quarantine.

    /// Records an error of a run, and returns the pause before it is retried. Other runs are not delayed.
    pub(crate) fn quarantine(&mut self, run: RunId, reason: &str, now: Timestamp) -> Duration {
        let doubled = |last: &QuarantineEntry| Seconds(last.pause.0.saturating_mul(2).min(LONGEST_PAUSE.0));
        let pause = self.quarantine.get(&run).map_or(FIRST_PAUSE, doubled);
        tracing::error!(%run, %reason, again_in_sec = pause.0, "run set aside; see `abide verify`");
        let until = now.add_seconds(pause);
        self.quarantine.insert(run, QuarantineEntry { pause, until, reason: reason.to_owned() });
        Duration::from_secs(u64::from(pause.0))
    }

    /// Records a success of a run.
    pub(crate) fn end_quarantine(&mut self, run: RunId) {
        self.quarantine.remove(&run);
    }

    /// The quarantined runs, with the reasons.
    pub(crate) fn quarantined(&self) -> Vec<(RunId, String)> {
        self.quarantine.iter().map(|(run, entry)| (*run, entry.reason.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use abide_domain::id::IdSeed;

    use super::*;

    fn run(number: u128) -> RunId {
        RunId(IdSeed(number))
    }

    #[test]
    fn pauses_of_a_quarantined_run_grow_to_a_bound_and_end_with_a_success() {
        let (mut scheduler, run) = (RunScheduler::new(1, vec![]), run(1));
        let mut now = Timestamp(0);
        let deadline =
            Deadline { at: Timestamp(0), kind: DeadlineKind::Turn(abide_domain::process::Attempt(1)) };
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            let pause = scheduler.quarantine(run, "no", now);
            assert_eq!(pause, Duration::from_secs(expected));
            let end = now.add_span(TimeSpan(expected * 1_000_000));
            assert_eq!(scheduler.due(&[(run, deadline)], now), (vec![], Some(end)));
            now = end;
            assert_eq!(scheduler.due(&[(run, deadline)], now).0, [(run, deadline.kind)]);
        }
        scheduler.end_quarantine(run);
        assert_eq!(scheduler.quarantined(), []);
    }

    #[test]
    fn a_slot_that_is_being_granted_is_not_granted_again() {
        let queued = |at| SlotOccupancy::Queued(Timestamp(at));
        let mut scheduler = RunScheduler::new(1, vec![(run(1), queued(10)), (run(2), queued(20))]);
        assert_eq!(scheduler.admit_next(), Some(run(1)));
        assert_eq!(scheduler.admit_next(), None);
        // The commit failed, and the run was deleted meanwhile.
        scheduler.settle(run(1), None);
        assert_eq!(scheduler.admit_next(), Some(run(2)));
    }

    #[test]
    fn a_run_that_cannot_be_admitted_does_not_block_the_next_one() {
        let queued = |at| SlotOccupancy::Queued(Timestamp(at));
        let mut scheduler = RunScheduler::new(1, vec![(run(1), queued(10)), (run(2), queued(20))]);
        scheduler.skip(run(1));
        assert_eq!(scheduler.admit_next(), Some(run(2)));
        scheduler.settle(run(2), None);
        assert_eq!(scheduler.admit_next(), None);
        scheduler.begin_tick();
        assert_eq!(scheduler.admit_next(), Some(run(1)));
    }

    #[test]
    fn a_full_disk_costs_a_bounded_number_of_attempts_in_each_tick_and_every_run_gets_its_turn() {
        let queue = (1..=100).map(|number| (run(number), SlotOccupancy::Queued(Timestamp(number as i64))));
        let mut scheduler = RunScheduler::new(1, queue.collect());
        let mut tried = BTreeSet::new();
        for _ in 0..4 {
            let mut attempts = 0;
            while let Some(next) = scheduler.admit_next() {
                scheduler.skip(next);
                let mut queue = scheduler.queue.lock();
                queue.observe(next, SlotOccupancy::Queued(Timestamp(0)));
                drop(queue);
                scheduler.release_grant(next);
                tried.insert(next);
                attempts += 1;
            }
            assert!(attempts <= SKIPS_PER_TICK);
            scheduler.begin_tick();
        }
        assert_eq!(tried.len(), 100);
    }
}
