//! The daemon itself: engines, status, shutdown and error responses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::RunErrorView;

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Page)]
pub struct ListResponse<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page starts; none if there is none.
    pub next_cursor: Option<String>,
}

/// An engine, as it was found here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Engine)]
pub struct EngineView {
    /// The name in requests and settings.
    pub name: String,
    /// The version that its program tells.
    pub version: Option<String>,
    /// Whether it can be used.
    pub available: bool,
    /// How it waits for a person.
    pub waits: Option<String>,
    /// Names of its abilities.
    pub abilities: Vec<String>,
    /// How that was found out, or what to do if it cannot be used.
    pub probe: String,
}

/// State of the daemon, its runs and questions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Status)]
pub struct DaemonStatus {
    /// This program's version.
    pub version: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// Since when it runs.
    pub started_at: String,
    /// Whether everything found at start-up has been taken up again.
    pub ready: bool,
    /// How many turns may work at a time.
    pub slots_max: u64,
    /// How many slots are taken.
    pub slots_held: u64,
    /// How many runs wait for a slot.
    pub queued: u64,
    /// How many questions are open.
    pub open_interactions: u64,
    /// Runs by status.
    pub runs: BTreeMap<String, u64>,
    /// Runs whose turn has said nothing for long.
    pub stalled: Vec<String>,
    /// Runs for which nothing can be done at present, each with the reason.
    #[serde(default)]
    pub troubled: BTreeMap<String, String>,
    /// Why no run starts and nothing new is taken: too little disk space in the home.
    #[serde(default)]
    pub resource_pressure: Option<String>,
    /// Why the store takes nothing.
    #[serde(default)]
    pub store_error: Option<String>,
    /// Terminal sessions.
    pub sessions: u64,
    /// Event streams and WebSockets that are open.
    pub streams: u64,
}

/// How the daemon is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Health)]
pub struct HealthResponse {
    /// `ok` or `ready`.
    pub status: String,
    /// Why nothing new is taken although the daemon is ready: too little disk space in the home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_pressure: Option<String>,
}

/// How the daemon should stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StopRequest)]
pub struct StopDaemonRequest {
    /// Leave sessions and running turns to their keepers for the next start.
    #[serde(default)]
    pub keep: bool,
}

/// Processes and runs that an orderly stop ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Stopping)]
pub struct StopDaemonResponse {
    /// Runs whose turn was stopped.
    pub turns: Vec<String>,
    /// Runs whose waiting process was ended.
    pub waits: Vec<String>,
    /// The runs that had a process or were about to start one.
    #[serde(default)]
    pub runs: Vec<StoppedRunView>,
    /// Terminal sessions that were ended.
    pub sessions: u64,
}

/// The result of an orderly stop for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = StoppedRun)]
pub struct StoppedRunView {
    /// `run_` and 26 digits.
    pub run_id: String,
    /// Its state before: `turn` (a turn was running), `wait` (its process waited) or `start` (nothing was started yet).
    pub was: String,
    /// Its status now.
    pub status: String,
    /// Why it failed, if it did.
    pub error: Option<RunErrorView>,
    /// The question that it asks now, if it asks one.
    pub pending_interaction_id: Option<String>,
    /// Whether its process has ended. One that did not end in time is left to its keeper, and the next daemon takes it up.
    pub stopped: bool,
}

/// Why something was not done (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDetails {
    /// A name for this kind of problem; `about:blank` where the code says it all.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// For programs, such as `STALE_INTERACTION`.
    pub code: String,
    /// For people: the cause and the remedy.
    pub detail: String,
}
