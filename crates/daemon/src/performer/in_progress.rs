//! A run whose orders are being performed, and what happens to it if that panics.

use abide_domain::id::RunId;

use super::{BROKEN_PAUSE, EffectExecutor, lock};

/// Somebody is looking after a run. A broken assumption on the way stops that run for a while, and nothing else.
pub(super) struct RunInProgress {
    pub(super) performer: EffectExecutor,
    pub(super) run: RunId,
}

impl Drop for RunInProgress {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(run = %self.run, "a broken assumption in performing orders");
            lock(&self.performer.shared.busy).remove(&self.run);
            self.performer.look_later(self.run, BROKEN_PAUSE);
        }
    }
}
