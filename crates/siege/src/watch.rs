//! How long something took. Nothing is decided by it; what is slow is said aloud.

use std::{
    fmt,
    time::{Duration, Instant},
};

/// A stopwatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowStopwatch(Instant);

/// What takes longer than this is worth a word.
const SLOW: Duration = Duration::from_secs(15);

impl SlowStopwatch {
    #[expect(clippy::disallowed_methods, reason = "a siege reports real durations")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Says so if it took long.
    pub(crate) fn complain_about(self, what: &impl fmt::Debug) {
        if self.elapsed() > SLOW {
            eprintln!("{:.0} s for {what:?}", self.elapsed().as_secs_f64());
        }
    }
}
