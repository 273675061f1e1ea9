//! How long is waited for what, and how often.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::definition::ModelConfig;

/// The waits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How long a server may be silent, before its answer begins or in the middle of it.
    pub idle: Duration,
    /// How often a request is made again.
    pub retries: u32,
    /// The wait before the first retry; each later one is twice as long, give or take.
    pub first_wait: Duration,
    /// The longest wait that we choose ourselves.
    pub longest_wait: Duration,
    /// The longest wait that a server may ask for. A run can be gone on with at any time, so there is no point in
    /// holding a process for an hour.
    pub longest_asked: Duration,
    /// How long the cost of an answer is waited for when everything else is there.
    pub trailing: Duration,
}

impl RetryPolicy {
    /// As a definition wants it.
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

    /// The waits that we choose, one after the other; a bit of chance keeps many agents from coming back at once.
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
