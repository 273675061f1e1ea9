//! Reads the gauges of the metrics from the store and the daemon.

use abide_daemon::Daemon;
use abide_domain::{id::RunId, run::RunStatus, time::TimeSpan};
use abide_observe::metrics::GaugeValues;
use abide_ports::store::{PageRequest, StoreError};

/// Maximum number of running runs that are checked for a stall. There are no more running runs than slots.
const MAX_STALL_CHECKED_RUNS: usize = 10_000;

pub(super) async fn read(daemon: &Daemon) -> Result<GaugeValues, StoreError> {
    let store = daemon.store();
    let oldest = store.open_interactions(PageRequest::first(1)).await?.items.into_iter().next();
    let now = daemon.stamp().at;
    let (slots_held, queued_runs) = daemon.occupancy();
    Ok(GaugeValues {
        runs: store.count_by_status().await?,
        open_interactions: store.count_open_interactions().await?,
        oldest_interaction_age: oldest.map_or(TimeSpan(0), |oldest| oldest.opened_at.span_until(now)),
        journal_head: store.head().await?,
        slots_held,
        slots_max: daemon.config().slots,
        queued_runs,
        stalled_turns: stalled_runs(daemon).await?.len(),
        is_ready: daemon.is_ready(),
    })
}

/// Returns the runs whose turn has produced no output for longer than the stall threshold.
pub(super) async fn stalled_runs(daemon: &Daemon) -> Result<Vec<RunId>, StoreError> {
    let running = daemon
        .store()
        .runs(Some(RunStatus::Running), PageRequest::first(MAX_STALL_CHECKED_RUNS))
        .await?
        .items;
    let mut stalled = Vec::new();
    for run in &running {
        if daemon.stalled_since(run).await.is_some() {
            stalled.push(run.run_id);
        }
    }
    Ok(stalled)
}
