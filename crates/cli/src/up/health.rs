//! Logs when the store fails or its witness cannot be written. `/readyz` reports the same to clients.

use std::{sync::Arc, time::Duration};

use abide_ports::store::Store;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Logs each change of the store's health. Never returns.
pub(super) async fn log_health_changes(store: Arc<dyn Store>) {
    let (mut failure, mut concern) = (None, None);
    loop {
        let gone_now = store.health().err().map(|error| error.to_string());
        if gone_now != failure {
            match &gone_now {
                Some(error) => tracing::error!(error, "no input is accepted"),
                None => tracing::info!("input is accepted again"),
            }
            failure = gone_now;
        }
        let concern_now = store.warning();
        if concern_now != concern {
            if let Some(warning) = &concern_now {
                tracing::warn!(warning, "store");
            }
            concern = concern_now;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
