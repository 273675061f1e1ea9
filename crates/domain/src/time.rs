//! Timestamps and durations as plain numbers. The clock is a port and not part of the domain.

use serde::{Deserialize, Serialize};

use crate::id::IdSeed;

/// Microseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time `span` later. Saturates at the maximum.
    #[must_use]
    pub fn add_seconds(self, span: Seconds) -> Self {
        Self(self.0.saturating_add(i64::from(span.0) * 1_000_000))
    }

    /// The time `span` later.
    #[must_use]
    pub fn add_span(self, span: TimeSpan) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// The time from here to `later`, 0 if `later` is earlier.
    #[must_use]
    pub fn span_until(self, later: Self) -> TimeSpan {
        TimeSpan(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// Whole seconds from `earlier` to here, 0 if `earlier` is later.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> Seconds {
        let seconds = self.0.saturating_sub(earlier.0) / 1_000_000;
        Seconds(u32::try_from(seconds.max(0)).unwrap_or(u32::MAX))
    }
}

/// A measured duration in microseconds. Remaining time is not rounded, because it may be stored and resumed repeatedly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TimeSpan(pub u64);

impl TimeSpan {
    /// The sum of both.
    #[must_use]
    pub fn saturating_add(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }

    /// The difference, at least 0.
    #[must_use]
    pub fn saturating_sub(self, used: Self) -> Self {
        Self(self.0.saturating_sub(used.0))
    }
}

impl From<Seconds> for TimeSpan {
    fn from(seconds: Seconds) -> Self {
        Self(u64::from(seconds.0) * 1_000_000)
    }
}

/// A configured duration in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub u32);

/// The time of an event, and the seed from which its new ids are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStamp {
    pub at: Timestamp,
    pub id_seed: IdSeed,
}
