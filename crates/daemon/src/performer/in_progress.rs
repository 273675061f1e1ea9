//! A run whose effects are being executed, and the reaction to a panic.

use abide_domain::id::RunId;

use super::{BROKEN_PAUSE, EffectExecutor, lock};

/// Marks a run as in progress. A panic pauses this run for a while, and no other.
pub(super) struct RunInProgress {
    pub(super) performer: EffectExecutor,
    pub(super) run: RunId,
}

impl Drop for RunInProgress {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(run = %self.run, "an effect panicked");
            lock(&self.performer.shared.busy).remove(&self.run);
            self.performer.look_later(self.run, BROKEN_PAUSE);
        }
    }
}
