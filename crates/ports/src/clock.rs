//! What time it is, and numbers that never come again.

use abide_domain::time::EventStamp;

/// The source of time and of fresh ids.
pub trait Clock: Send + Sync {
    /// Now, with a number that no other call has given or will give.
    fn stamp(&self) -> EventStamp;
}
