//! Medians, and times as people read them. What is measured is not known here.

use abide::clock::SystemClock;
use abide_ports::clock::Clock;

/// Now, on the clock that the ledger and the keepers use, in microseconds.
pub(crate) fn now() -> i64 {
    SystemClock.stamp().at.0
}

/// The middle one.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How far the values typically are from their middle: half of what lies between the quartiles.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |quarter: usize| sorted.get((sorted.len() - 1) * quarter / 4).copied().unwrap_or(f64::NAN);
    if sorted.is_empty() { f64::NAN } else { (at(3) - at(1)) / 2.0 }
}

/// Microseconds as milliseconds.
pub(crate) fn ms(micros: f64) -> String {
    format!("{:.1} ms", micros / 1000.0)
}
