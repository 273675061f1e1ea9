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
    next_id: u128,
}

/// The distance between the id seeds of two events; larger than the number of ids that one event creates.
const IDS_PER_EVENT: u128 = 256;

impl FakeClock {
    /// Creates a clock that shows time 0.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn now(&self) -> Timestamp {
        Timestamp(self.lock_time().now)
    }

    pub fn advance(&self, micros: i64) {
        self.lock_time().now += micros;
    }

    fn lock_time(&self) -> MutexGuard<'_, FakeTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for FakeClock {
    fn stamp(&self) -> EventStamp {
        let mut reading = self.lock_time();
        // Each event advances the clock by 1 µs, so no two events have the same time.
        reading.now += 1;
        reading.next_id += IDS_PER_EVENT;
        EventStamp { at: Timestamp(reading.now), id_seed: IdSeed(reading.next_id) }
    }
}
