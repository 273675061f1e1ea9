//! The daemon itself: engines, status, shutdown and error responses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::{ProfileKindValue, RunErrorView};

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListResponse<T> {
    pub items: Vec<T>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// An engine on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineView {
    pub name: String,
    /// The version that its program reports.
    pub version: Option<String>,
    pub available: bool,
    /// Null if the engine is not available.
    pub wait_mode: Option<ProfileKindValue>,
    pub abilities: Vec<String>,
    /// The evidence for the wait mode, or the remedy if the engine is not available.
    pub probe: String,
}

/// The status of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonStatus {
    pub version: String,
    pub pid: u32,
    pub started_at: String,
    /// Whether the recovery at start-up is complete.
    pub ready: bool,
    /// Maximum number of runs that hold a slot.
    pub slots_max: u64,
    pub slots_held: u64,
    /// Number of runs that wait for a slot.
    pub queued: u64,
    pub open_interactions: u64,
    /// Number of runs by status.
    pub runs: BTreeMap<String, u64>,
    /// Runs whose turn has had no output for `stall_after_sec`.
    pub stalled: Vec<String>,
    /// Runs that cannot be processed at present, each with the reason.
    #[serde(default)]
    pub unprocessable_runs: BTreeMap<String, String>,
    /// Reason why no run starts and no new input is accepted: too little disk space in the home.
    #[serde(default)]
    pub resource_pressure: Option<String>,
    /// Reason why the store accepts no writes.
    #[serde(default)]
    pub store_error: Option<String>,
    /// Number of terminal sessions.
    pub sessions: u64,
    /// Number of open event streams and WebSockets.
    pub streams: u64,
}

/// The health of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthResponse {
    /// `ok` or `ready`.
    pub status: String,
    /// Reason why no new input is accepted although the daemon is ready: too little disk space in the home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_pressure: Option<String>,
}

/// The parameters of a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopDaemonRequest {
    /// Leaves sessions and running turns to their keepers for the next start.
    #[serde(default)]
    pub keep: bool,
}

/// The result of a stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopDaemonResponse {
    /// Runs whose turn was interrupted.
    pub turns: Vec<String>,
    /// Runs whose waiting process was ended.
    pub waiting_runs: Vec<String>,
    /// Each run that held a process or was about to start one.
    #[serde(default)]
    pub runs: Vec<StoppedRunView>,
    /// Number of terminal sessions that were ended.
    pub sessions: u64,
}

/// A run after a stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoppedRunView {
    pub run_id: String,
    /// `turn` (a turn was running), `wait` (a process waited for an answer) or `start` (no process was started yet).
    pub activity_before_stop: String,
    /// Status after the stop.
    pub status: String,
    /// Set if the run failed.
    pub error: Option<RunErrorView>,
    /// The question that the run asks after the stop.
    pub pending_interaction_id: Option<String>,
    /// Whether its process has ended. A process that did not end in time is left to its keeper, and the next daemon
    /// continues with it.
    pub stopped: bool,
}

/// An error response (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemDetails {
    /// Always `about:blank`; `code` identifies the problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// For programs, such as `STALE_INTERACTION`.
    pub code: String,
    /// For people, with the remedy.
    pub detail: String,
}
