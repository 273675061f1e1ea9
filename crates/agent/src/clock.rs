//! Wall-clock time for this crate.
//!
//! Timeouts are not here: keepers enforce those of tools, and the model client enforces its own.

/// The current time as RFC 3339 in UTC, with milliseconds.
pub(crate) fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}
