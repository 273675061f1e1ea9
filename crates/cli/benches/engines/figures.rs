//! Medians, and the format of times. It does not depend on the measurements.

use abide_host::clock::SystemClock;
use abide_ports::clock::Clock;

/// Returns the time in microseconds, on the clock that the ledger and the keepers use.
pub(crate) fn now() -> i64 {
    SystemClock.stamp().at.0
}

pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns half of the interquartile range.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |quarter: usize| sorted.get((sorted.len() - 1) * quarter / 4).copied().unwrap_or(f64::NAN);
    if sorted.is_empty() { f64::NAN } else { (at(3) - at(1)) / 2.0 }
}

/// Formats microseconds as milliseconds.
pub(crate) fn ms(micros: f64) -> String {
    format!("{:.1} ms", micros / 1000.0)
}
