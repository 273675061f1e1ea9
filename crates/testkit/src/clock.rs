//! A clock that moves only when a test advances it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_domain::{
    id::IdSeed,
    time::{EventStamp, Timestamp},
};
use abide_ports::clock::Clock;

/// A simulated clock, and a source of ids.
#[derive(Debug, Default)]
pub struct FakeClock(Mutex<FakeTime>);

#[derive(Debug, Default)]
struct FakeTime {
    now: i64,
    fresh: u128,
}

/// The distance between the id seeds of two events; larger than the number of ids that one event creates.
const IDS_PER_EVENT: u128 = 256;

impl FakeClock {
    /// Creates a clock that shows time 0.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn now(&self) -> Timestamp {
        Timestamp(self.reading().now)
    }

    pub fn advance(&self, micros: i64) {
        self.reading().now += micros;
    }

    fn reading(&self) -> MutexGuard<'_, FakeTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for FakeClock {
    fn stamp(&self) -> EventStamp {
        let mut reading = self.reading();
        // Each event advances the clock by 1 µs, so no two events have the same time.
        reading.now += 1;
        reading.fresh += IDS_PER_EVENT;
        EventStamp { at: Timestamp(reading.now), fresh: IdSeed(reading.fresh) }
    }
}
