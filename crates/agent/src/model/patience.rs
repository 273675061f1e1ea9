//! Timeouts and retries of the model client.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::definition::ModelConfig;

/// The timeouts, retries and backoff of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum silence of a server, before or during its response.
    pub idle: Duration,
    /// Maximum number of retries.
    pub retries: u32,
    /// Wait before the first retry. It doubles with each retry, with jitter.
    pub first_wait: Duration,
    /// Maximum wait of the backoff.
    pub longest_wait: Duration,
    /// Maximum wait that a server may request. A run can be continued at any time, so a longer wait in the process is
    /// not useful.
    pub longest_asked: Duration,
    /// Maximum wait for the token usage after a complete reply.
    pub trailing: Duration,
}

impl RetryPolicy {
    /// The policy of a definition.
    pub fn of(model: &ModelConfig) -> Self {
        Self {
            idle: Duration::from_secs(model.timeout_sec),
            retries: model.max_retries,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            longest_asked: Duration::from_secs(600),
            trailing: Duration::from_secs(5),
        }
    }

    /// The waits of the backoff. Jitter prevents many agents from retrying at the same time.
    pub(super) fn waits(&self) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(self.first_wait)
            .with_max_delay(self.longest_wait)
            .with_factor(2.0)
            .with_jitter()
            .without_max_times()
            .build()
    }
}
