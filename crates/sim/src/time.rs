//! A clock that moves when it is told to.

use std::sync::Mutex;

use abide_domain::{
    id::Fresh,
    time::{Stamp, Timestamp},
};
use abide_ports::clock::Clock;

/// The time of the simulated world.
#[derive(Debug)]
pub(crate) struct FakeClock(Mutex<(i64, u128)>);

/// Ids that one event may mint, with room to spare.
const IDS_PER_EVENT: u128 = 256;

impl FakeClock {
    pub(crate) fn new() -> Self {
        Self(Mutex::new((0, 0)))
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.lock().0)
    }

    pub(crate) fn advance(&self, micros: i64) {
        self.lock().0 += micros;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (i64, u128)> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for FakeClock {
    fn stamp(&self) -> Stamp {
        let mut time = self.lock();
        // Every event takes a moment, so no two have the same time.
        time.0 += 1;
        time.1 += IDS_PER_EVENT;
        Stamp { at: Timestamp(time.0), fresh: Fresh(time.1) }
    }
}
