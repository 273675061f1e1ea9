//! Quarantined runs: after an error each is retried with a growing pause, without delaying other runs.

use std::{collections::BTreeMap, sync::Mutex};

use abide_domain::{
    id::RunId,
    time::{Seconds, Timestamp},
};

use super::lock;

/// The first and the maximum pause; each pause doubles the one before.
const FIRST_PAUSE: Seconds = Seconds(1);
const LONGEST_PAUSE: Seconds = Seconds(600);

/// Runs by id, with the pause, its end and the last error.
#[derive(Debug, Default)]
pub(super) struct QuarantinedRuns(Mutex<BTreeMap<RunId, QuarantineEntry>>);

#[derive(Debug)]
struct QuarantineEntry {
    length: Seconds,
    until: Timestamp,
    reason: String,
}

impl QuarantinedRuns {
    /// Records an error of a run.
    pub(super) fn put(&self, run: RunId, reason: &str, now: Timestamp) {
        let mut runs = lock(&self.0);
        let length = runs
            .get(&run)
            .map_or(FIRST_PAUSE, |last| Seconds(last.length.0.saturating_mul(2).min(LONGEST_PAUSE.0)));
        tracing::error!(%run, %reason, again_in_sec = length.0, "run set aside; see `abide verify`");
        runs.insert(
            run,
            QuarantineEntry { length, until: now.add_seconds(length), reason: reason.to_owned() },
        );
    }

    /// Records a success of a run.
    pub(super) fn take_back(&self, run: RunId) {
        lock(&self.0).remove(&run);
    }

    /// The end of the pause, if the run is quarantined.
    pub(super) fn until(&self, run: RunId) -> Option<Timestamp> {
        lock(&self.0).get(&run).map(|pause| pause.until)
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.0).len()
    }

    pub(super) fn all(&self) -> Vec<(RunId, String)> {
        lock(&self.0).iter().map(|(run, pause)| (*run, pause.reason.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use abide_domain::id::IdSeed;

    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_end_with_the_trouble() {
        let (aside, run) = (QuarantinedRuns::default(), RunId(IdSeed(1)));
        let mut now = Timestamp(0);
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            aside.put(run, "no", now);
            let until = aside.until(run).expect("it is set aside");
            assert_eq!(until, now.add_seconds(Seconds(expected)));
            now = until;
        }
        aside.take_back(run);
        assert_eq!((aside.until(run), aside.count()), (None, 0));
    }
}
