//! Measures and formats the duration of a step. The only place where commands read a clock.

use std::fmt;
use std::time::{Duration, Instant};

pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "commands report real durations and decide nothing by them"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn read(&self) -> ElapsedTime {
        ElapsedTime(self.elapsed())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A duration, displayed in minutes and seconds.
#[derive(Clone, Copy)]
pub(crate) struct ElapsedTime(Duration);

impl fmt::Display for ElapsedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds / 60 {
            0 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            minutes => write!(f, "{minutes} min {:02} s", seconds % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ElapsedTime;

    #[test]
    fn seconds_and_minutes_read_naturally() {
        assert_eq!(ElapsedTime(Duration::from_millis(840)).to_string(), "0.8 s");
        assert_eq!(ElapsedTime(Duration::from_secs(125)).to_string(), "2 min 05 s");
    }
}
