//! The system clock. All other code gets the time from this type.

use std::time::{SystemTime, UNIX_EPOCH};

use abide_domain::{
    id::IdSeed,
    time::{EventStamp, Timestamp},
};
use abide_ports::clock::Clock;
use uuid::Uuid;

/// System time and version 7 UUIDs.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the only reader of the system clock")]
    fn stamp(&self) -> EventStamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        EventStamp { at: Timestamp(micros), id_seed: IdSeed(Uuid::now_v7().as_u128()) }
    }
}
