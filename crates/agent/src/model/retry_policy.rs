//! Timeouts and retries of the model client.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::definition::ModelConfig;

/// The timeouts, retries and backoff of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum silence of a server, before or during its response.
    pub idle_timeout: Duration,
    /// Maximum number of retries.
    pub max_retries: u32,
    /// Wait before the first retry. It doubles with each retry, with jitter.
    pub initial_backoff: Duration,
    /// Maximum wait of the backoff.
    pub max_backoff: Duration,
    /// Maximum wait that a server may request. A run can be continued at any time, so a longer wait in the process is
    /// not useful.
    pub max_retry_after: Duration,
    /// Maximum wait for the token usage after a complete reply.
    pub usage_timeout: Duration,
}

impl RetryPolicy {
    /// The policy of a definition.
    pub fn from_config(model: &ModelConfig) -> Self {
        Self {
            idle_timeout: Duration::from_secs(model.timeout_sec),
            max_retries: model.max_retries,
            initial_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(30),
            max_retry_after: Duration::from_secs(600),
            usage_timeout: Duration::from_secs(5),
        }
    }

    /// The waits of the backoff. Jitter prevents many agents from retrying at the same time.
    pub(super) fn backoff(&self) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(self.initial_backoff)
            .with_max_delay(self.max_backoff)
            .with_factor(2.0)
            .with_jitter()
            .without_max_times()
            .build()
    }
}
