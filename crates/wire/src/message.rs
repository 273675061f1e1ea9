//! Messages to a run, and the ledger of received messages.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::OnBusyValue;

/// Something to say to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewMessage)]
pub struct SendMessageRequest {
    /// Your own name for it: the same one is never taken twice, for ever. A fresh one unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub message_id: Option<String>,
    /// The text of the message.
    #[schema(min_length = 1, max_length = 1_000_000)]
    pub text: String,
    /// Effect while a turn runs; the run's own setting unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_busy: Option<OnBusyValue>,
}

/// A message was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = MessageTaken)]
pub struct SendMessageResponse {
    /// Unique in its channel.
    pub message_id: String,
    /// How far it has got.
    pub execution_status: String,
    /// Whether it had been taken before.
    pub duplicate: bool,
}

/// A message, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Inbound)]
pub struct InboundView {
    /// Where it came from.
    pub channel: String,
    /// Unique in its channel.
    pub message_id: String,
    /// The run that it is for.
    pub run_id: String,
    /// The turn that took it.
    pub turn_id: Option<String>,
    /// When it was stored.
    pub created_at: String,
    /// When this last changed.
    pub updated_at: String,
    /// When a turn took it.
    pub accepted_at: Option<String>,
    /// How far it has got: received, accepted, completed, failed, canceled, superseded.
    pub execution_status: String,
}
