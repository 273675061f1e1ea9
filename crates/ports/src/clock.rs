//! The contract of the clock: timestamps and unique numbers.

use abide_domain::time::EventStamp;

/// Supplies the current time and seeds for new ids.
pub trait Clock: Send + Sync {
    /// The current time with an id seed that is unique across all calls.
    fn stamp(&self) -> EventStamp;
}
