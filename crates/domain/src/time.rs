//! Points in time and spans of it, as plain numbers. Where they come from is not here: the clock is a port.

use serde::{Deserialize, Serialize};

use crate::id::Fresh;

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

    /// Whole seconds from `earlier` to here, nothing if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Seconds {
        let seconds = self.0.saturating_sub(earlier.0) / 1_000_000;
        Seconds(u32::try_from(seconds.max(0)).unwrap_or(u32::MAX))
    }
}

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub u32);

/// When an event happened, and the one unrepeatable number from which it may mint new ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// When.
    pub at: Timestamp,
    /// What new ids are made of.
    pub fresh: Fresh,
}
