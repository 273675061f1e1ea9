//! Messages to a run, and the ledger of received messages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::OnBusyValue;

/// A message to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendMessageRequest {
    /// Idempotency key of the client, never accepted twice; default: a new id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub message_id: Option<String>,
    #[schema(min_length = 1, max_length = 1_000_000)]
    pub text: String,
    /// The effect on a running turn; default: the setting of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_busy: Option<OnBusyValue>,
}

/// The acknowledgement of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendMessageResponse {
    pub message_id: String,
    /// As in the inbound ledger.
    pub execution_status: String,
    /// Whether it was accepted before.
    pub duplicate: bool,
}

/// An entry of the inbound ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InboundView {
    /// The channel that received it; `api` for HTTP.
    pub channel: String,
    /// Unique within the channel.
    pub message_id: String,
    pub run_id: String,
    /// The turn that accepted it; null before that.
    pub turn_id: Option<String>,
    pub created_at: String,
    pub updated_at: String,
    /// Time at which a turn accepted it.
    pub accepted_at: Option<String>,
    /// `received`, `accepted`, `completed`, `failed`, `canceled` or `superseded`.
    pub execution_status: String,
}
