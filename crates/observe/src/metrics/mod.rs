//! Metrics for operators, in the text format of Prometheus and OpenMetrics.
//!
//! Counters count committed events since the start of this process. Gauges (queued, open, running) are passed in at each
//! scrape, so they are correct after a restart. No label value comes from a client, so the
//! number of series is bounded.

mod families;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use abide_domain::{run::RunStatus, time::TimeSpan};
use abide_ports::{
    observer::{CommitObserver, CommitReport, CompletedItem},
    store::JournalSeq,
};

use families::{KindLabel, MetricFamilies, OutcomeLabel, RequestLabels};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of this process. Clones share the same values.
#[derive(Clone)]
pub struct DaemonMetrics(Arc<MetricFamilies>);

/// Counts one reader of a stream until it is dropped.
#[derive(Debug)]
pub struct StreamReaderGuard(DaemonMetrics);

/// Values that are read from the store and the daemon at each scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GaugeValues {
    /// A missing status has no runs.
    pub runs: BTreeMap<RunStatus, u64>,
    pub open_interactions: u64,
    /// 0 if no interaction is open.
    pub oldest_interaction_age: TimeSpan,
    pub journal_head: JournalSeq,
    pub slots_held: usize,
    pub slots_max: usize,
    pub queued_runs: usize,
    pub stalled_turns: usize,
    pub is_ready: bool,
}

impl Default for DaemonMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl DaemonMetrics {
    pub fn new() -> Self {
        Self(Arc::new(MetricFamilies::new()))
    }

    /// Encodes all metrics as text, with these gauges.
    pub fn encode(&self, gauges: &GaugeValues) -> String {
        self.set_gauges(gauges);
        self.0.encode()
    }

    /// Counts an HTTP request. `route` is the template of the route, never a path.
    pub fn count_request(&self, method: &'static str, route: String, status: u16) {
        self.0.requests.get_or_create(&RequestLabels { method, route, status }).inc();
    }

    pub fn stream_reader(&self) -> StreamReaderGuard {
        self.0.stream_readers.inc();
        StreamReaderGuard(self.clone())
    }

    /// Counts an item removed by retention. `kind` must be one of a few constants.
    pub fn count_removed(&self, kind: &'static str) {
        self.0.removed.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts log lines or spans that were dropped because they could not be delivered.
    pub fn count_dropped(&self, kind: &'static str, count: u64) {
        self.0.dropped.get_or_create(&KindLabel { kind }).inc_by(count);
    }

    fn set_gauges(&self, gauges: &GaugeValues) {
        let families = &*self.0;
        for status in STATUSES {
            let count = gauges.runs.get(&status).copied().unwrap_or(0);
            families.runs(status.name()).set(count.cast_signed());
        }
        families.interactions_open.set(gauges.open_interactions.cast_signed());
        families.oldest_interaction_age.set(seconds(gauges.oldest_interaction_age).as_secs_f64());
        families.journal_head.set(gauges.journal_head.0.cast_signed());
        families.slots_held.set(gauges.slots_held as i64);
        families.slots_max.set(gauges.slots_max as i64);
        families.queued.set(gauges.queued_runs as i64);
        families.ready.set(i64::from(gauges.is_ready));
        families.turns_stalled.set(gauges.stalled_turns as i64);
        families.resident_bytes.set(resident_bytes().unwrap_or(0));
    }
}

/// All statuses, so that a status without runs is exported as 0.
pub const STATUSES: [RunStatus; 7] = [
    RunStatus::Queued,
    RunStatus::Running,
    RunStatus::WaitingUser,
    RunStatus::Idle,
    RunStatus::Succeeded,
    RunStatus::Failed,
    RunStatus::Canceled,
];

/// Returns the resident memory of this process, if the system reports it.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()? * 1024)
}

fn seconds(span: TimeSpan) -> Duration {
    Duration::from_micros(span.0)
}

impl CommitObserver for DaemonMetrics {
    fn on_commit(&self, report: &CommitReport<'_>) {
        let families = &*self.0;
        families.commit_seconds.observe(report.duration.as_secs_f64());
        if report.outcome.is_err() {
            families.commits_failed.inc();
            return;
        }
        for item in report.completed_items {
            match item {
                CompletedItem::Turn(turn) => {
                    families.turns(turn.status.name()).inc();
                    let took = seconds(turn.started_at.span_until(turn.ended_at));
                    families.turn_seconds.observe(took.as_secs_f64());
                }
                CompletedItem::Run(run) => {
                    families.runs_finished.get_or_create(&OutcomeLabel { outcome: run.status.name() }).inc();
                }
                CompletedItem::Delivery(lag) => {
                    families.delivery_lag_seconds.observe(seconds(*lag).as_secs_f64())
                }
            }
        }
    }
}

impl Drop for StreamReaderGuard {
    fn drop(&mut self) {
        self.0.0.stream_readers.dec();
    }
}

impl fmt::Debug for DaemonMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DaemonMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
