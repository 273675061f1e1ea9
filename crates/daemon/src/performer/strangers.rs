//! Ends orphaned processes at start-up.

use abide_ports::store::StoreError;

use super::{EffectExecutor, parse};
use crate::error::RequestError;

impl EffectExecutor {
    /// Ends processes that belong to no run. Their last events were committed, but the daemon stopped before it ended
    /// them.
    pub(super) async fn forget_strangers(&self, found: Vec<String>) -> Result<(), RequestError> {
        for name in found {
            let forgotten = match parse(&name) {
                Some((run, attempt)) => {
                    match self.world.store.run(run).await {
                        Ok(Some(state)) => state.attempt() != Some(attempt),
                        // A restored or truncated store may lack runs that the keepers have.
                        Ok(None) => {
                            tracing::warn!(%run, attempt = attempt.0, "ending the process of a run that the store does not know");
                            true
                        }
                        // The run cannot be read, so the process may still belong to it.
                        Err(StoreError::Damaged { .. }) => false,
                        Err(error) => return Err(error.into()),
                    }
                }
                // A probe of an earlier daemon. Other keepers, such as terminals, are not touched.
                None => crate::probe::is_check(&name),
            };
            if forgotten {
                let processes = self.world.processes.clone();
                // Concurrently, because a keeper that does not answer takes seconds.
                self.runtime.spawn_blocking(move || {
                    if let Err(error) = processes.terminate(&name) {
                        tracing::warn!(name, %error, "a process without a run is left until the next start");
                    }
                });
            }
        }
        Ok(())
    }
}
