//! A clock that moves when it is told to.

use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_domain::{
    id::IdSeed,
    time::{EventStamp, Timestamp},
};
use abide_ports::clock::Clock;

/// The time of a world that is not real.
#[derive(Debug, Default)]
pub struct FakeClock(Mutex<FakeTime>);

#[derive(Debug, Default)]
struct FakeTime {
    now: i64,
    fresh: u128,
}

/// Ids that one event may mint, with room to spare.
const IDS_PER_EVENT: u128 = 256;

impl FakeClock {
    /// A clock that shows the beginning of time.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it shows.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.reading().now)
    }

    /// Lets time pass.
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
        // Every event takes a moment, so no two have the same time.
        reading.now += 1;
        reading.fresh += IDS_PER_EVENT;
        EventStamp { at: Timestamp(reading.now), fresh: IdSeed(reading.fresh) }
    }
}
