//! Measures and reports slow steps. It affects no result.

use std::{
    fmt,
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowStopwatch(Instant);

/// The duration from which a step is reported as slow.
const SLOW_STEP: Duration = Duration::from_secs(15);

impl SlowStopwatch {
    #[expect(clippy::disallowed_methods, reason = "a crash test reports real durations")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Prints a message if the step was slow.
    pub(crate) fn report_if_slow(self, step: &impl fmt::Debug) {
        if self.elapsed() > SLOW_STEP {
            eprintln!("{:.0} s for {step:?}", self.elapsed().as_secs_f64());
        }
    }
}
