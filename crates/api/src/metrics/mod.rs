//! `/metrics`: metrics for operators, in the text format of Prometheus and OpenMetrics.
//!
//! Counters count committed events since the start of this process. Gauges (queued, open, running) are read from the
//! store and the daemon at each scrape, so they are correct after a restart. No label value comes from a client, so the
//! number of series is bounded.

mod families;
mod requests;

use std::{fmt, sync::Arc, time::Duration};

use abide_daemon::Daemon;
use abide_domain::{
    id::RunId,
    run::{Run, RunStatus},
    time::TimeSpan,
};
use abide_ports::{
    store::{PageRequest, StoreError},
    watch::{CommitObserver, CommitReport, CompletedItem},
};

use families::{KindLabel, MetricFamilies, OutcomeLabel};
pub use requests::count_requests;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of this process. Clones share the same values.
#[derive(Clone)]
pub struct DaemonMetrics(Arc<MetricFamilies>);

/// Counts one reader of a stream until it is dropped.
#[derive(Debug)]
pub struct StreamReaderGuard(DaemonMetrics);

/// Kinds of items that retention removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionItem {
    PrivateFolder,
    Workspace,
    /// Files that a keeper left of a process.
    Process,
}

/// Maximum number of running runs that are checked for a stall. There are no more running runs than slots.
const MAX_STALL_CHECKED_RUNS: usize = 10_000;

impl Default for DaemonMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl DaemonMetrics {
    pub fn new() -> Self {
        Self(Arc::new(MetricFamilies::new()))
    }

    /// Encodes all metrics as text.
    pub async fn encode(&self, daemon: &Daemon) -> Result<String, StoreError> {
        self.update_gauges(daemon).await?;
        Ok(self.0.encode())
    }

    pub fn stream_reader(&self) -> StreamReaderGuard {
        self.0.stream_readers.inc();
        StreamReaderGuard(self.clone())
    }

    /// Counts an item removed by retention.
    pub fn count_removed(&self, item: RetentionItem) {
        let kind = match item {
            RetentionItem::PrivateFolder => "private",
            RetentionItem::Workspace => "workspace",
            RetentionItem::Process => "process",
        };
        self.0.removed.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts log lines or spans that were dropped because they could not be delivered.
    pub fn count_dropped(&self, kind: &'static str, count: u64) {
        self.0.dropped.get_or_create(&KindLabel { kind }).inc_by(count);
    }

    async fn update_gauges(&self, daemon: &Daemon) -> Result<(), StoreError> {
        let families = &*self.0;
        let store = daemon.store();
        let tally = store.count_by_status().await?;
        for status in STATUSES {
            let count = tally.get(&status).copied().unwrap_or(0);
            families.runs(status.name()).set(count.cast_signed());
        }
        families.interactions_open.set(store.count_open_interactions().await?.cast_signed());
        let oldest = store.open_interactions(PageRequest::first(1)).await?.items.into_iter().next();
        let now = daemon.stamp().at;
        let age = oldest.map_or(TimeSpan(0), |oldest| oldest.opened_at.span_until(now));
        families.oldest_interaction_age.set(seconds(age).as_secs_f64());
        families.journal_head.set(store.head().await?.0.cast_signed());
        let (held, queued) = daemon.occupancy();
        families.slots_held.set(held as i64);
        families.slots_max.set(daemon.habits().slots as i64);
        families.queued.set(queued as i64);
        families.ready.set(i64::from(daemon.is_ready()));
        families.turns_stalled.set(stalled_runs(daemon).await?.len() as i64);
        families.resident_bytes.set(resident_bytes().unwrap_or(0));
        Ok(())
    }
}

/// Returns the runs whose turn has produced no output for longer than the stall threshold.
pub async fn stalled_runs(daemon: &Daemon) -> Result<Vec<RunId>, StoreError> {
    let running = daemon
        .store()
        .runs(Some(RunStatus::Running), PageRequest::first(MAX_STALL_CHECKED_RUNS))
        .await?
        .items;
    if running.is_empty() {
        return Ok(vec![]);
    }
    // The time of the last output is read from the files of the process, so this runs on a blocking thread.
    let daemon = daemon.clone();
    let look = move || {
        let is_stalled = |run: &Run| daemon.stalled_since(run).is_some();
        running.iter().filter(|run| is_stalled(run)).map(|run| run.run_id).collect()
    };
    Ok(tokio::task::spawn_blocking(look).await.unwrap_or_default())
}

/// All statuses, so that a status without runs is exported as 0.
pub(crate) const STATUSES: [RunStatus; 7] = [
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
        for milestone in report.completed_items {
            match milestone {
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
