//! Events of runs, as sent by the event feed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened to a run. Events are told in the order of `seq`, and none is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Event)]
pub struct EventEnvelope {
    /// Its place among all events, for ever.
    pub seq: u64,
    /// `run_` and 26 digits.
    pub run_id: String,
    /// RFC 3339 in UTC.
    pub at: String,
    /// The kind of event, such as `turn_ended`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The fields of this kind of event. The run's new state is not included; use `GET /v1/runs/{id}`.
    pub data: serde_json::Map<String, serde_json::Value>,
}
