//! Points in time and spans of it, as plain numbers. Where they come from is not here: the clock is a port.

use serde::{Deserialize, Serialize};

use crate::id::IdSeed;

/// Microseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The point `span` later; the end of time rather than an overflow.
    #[must_use]
    pub fn plus(self, span: Seconds) -> Self {
        Self(self.0.saturating_add(i64::from(span.0) * 1_000_000))
    }

    /// The point a span later.
    #[must_use]
    pub fn after(self, span: TimeSpan) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// The time from here to `later`, nothing if that is earlier.
    #[must_use]
    pub fn until(self, later: Self) -> TimeSpan {
        TimeSpan(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// Whole seconds from `earlier` to here, nothing if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Seconds {
        let seconds = self.0.saturating_sub(earlier.0) / 1_000_000;
        Seconds(u32::try_from(seconds.max(0)).unwrap_or(u32::MAX))
    }
}

/// A measured span of time, in microseconds: what is left of something must not be rounded each time it is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TimeSpan(pub u64);

impl TimeSpan {
    /// Both together.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// What remains of it.
    #[must_use]
    pub fn less(self, used: Self) -> Self {
        Self(self.0.saturating_sub(used.0))
    }
}

impl From<Seconds> for TimeSpan {
    fn from(seconds: Seconds) -> Self {
        Self(u64::from(seconds.0) * 1_000_000)
    }
}

/// A span of time as people set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub u32);

/// When an event happened, and the one unrepeatable number from which it may mint new ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStamp {
    /// When.
    pub at: Timestamp,
    /// What new ids are made of.
    pub fresh: IdSeed,
}
