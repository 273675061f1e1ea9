//! Events of runs, as sent by the event feed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened to a run. Events are told in the order of `seq`, and none is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Event)]
pub struct EventEnvelope {
    /// Its place among all events, for ever.
    pub seq: u64,
    /// The run.
    pub run_id: String,
    /// When.
    pub at: String,
    /// What, such as `turn_ended`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What is particular to this kind of event. What the run then is is not part of it: ask for the run.
    pub data: serde_json::Map<String, serde_json::Value>,
}
