//! Statistics of durations, for comparison and printing.

use std::time::Duration;

/// The statistics of a series of durations, in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct TimeSeries {
    pub(crate) median: f64,
    pub(crate) mean: f64,
    pub(crate) worst: f64,
}

impl TimeSeries {
    pub(crate) fn of(times: &[Duration]) -> Self {
        let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        times.sort_by(f64::total_cmp);
        let at = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        Self { median: at(times.len() / 2), mean, worst: at(times.len().saturating_sub(1)) }
    }
}

/// Prints whether a limit was met, and returns it.
pub(crate) fn report_limit(kept: bool, budget: &str) -> bool {
    println!("    {}  {budget}", if kept { "PASS" } else { "MISS" });
    kept
}
