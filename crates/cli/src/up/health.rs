//! Logs when the store fails or its witness cannot be written. `/readyz` reports the same to clients.

use std::{sync::Arc, time::Duration};

use abide_ports::store::Store;

/// Polling interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Logs each change of the store's health. Never returns.
pub(super) async fn watch(store: Arc<dyn Store>) {
    let (mut gone, mut concern) = (None, None);
    loop {
        let gone_now = store.health().err().map(|error| error.to_string());
        if gone_now != gone {
            match &gone_now {
                Some(error) => tracing::error!(error, "no input is accepted"),
                None => tracing::info!("input is accepted again"),
            }
            gone = gone_now;
        }
        let concern_now = store.concern();
        if concern_now != concern {
            if let Some(warning) = &concern_now {
                tracing::warn!(warning, "store");
            }
            concern = concern_now;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
