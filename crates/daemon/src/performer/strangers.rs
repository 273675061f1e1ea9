//! Processes that no run counts on, found at start-up.

use abide_ports::store::StoreError;

use super::{EffectExecutor, parse};
use crate::error::RequestError;

impl EffectExecutor {
    /// Ends processes that no run counts on: their last news was committed, but not that they may go.
    pub(super) async fn forget_strangers(&self, found: Vec<String>) -> Result<(), RequestError> {
        for name in found {
            let forgotten = match parse(&name) {
                Some((run, attempt)) => {
                    match self.world.store.run(run).await {
                        Ok(Some(state)) => state.attempt() != Some(attempt),
                        // A store that was restored, or that has lost input, knows less than the keepers.
                        Ok(None) => {
                            tracing::warn!(%run, attempt = attempt.0, "ending the process of a run that the store does not know");
                            true
                        }
                        // Nobody knows whether its run counts on it.
                        Err(StoreError::Damaged { .. }) => false,
                        Err(error) => return Err(error.into()),
                    }
                }
                // A check of an earlier daemon; what else lies here, such as terminals, is not ours.
                None => crate::probe::is_check(&name),
            };
            if forgotten {
                let processes = self.world.processes.clone();
                // Not one after the other: one that does not answer takes a while.
                self.runtime.spawn_blocking(move || {
                    if let Err(error) = processes.end(&name) {
                        tracing::warn!(name, %error, "what no run counts on is left until the next start");
                    }
                });
            }
        }
        Ok(())
    }
}
