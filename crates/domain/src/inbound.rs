//! Received messages and their progress (E5).
//!
//! Duplicates are detected by the store, which keeps the key of each message (E13).

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    id::{RunId, TurnId},
    time::Timestamp,
};

/// The identity of a message: its channel and the channel's own id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageKey {
    /// The channel; `api` for HTTP.
    pub channel: String,
    pub message_id: String,
}

/// A message to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundMessage {
    pub key: MessageKey,
    pub text: String,
}

/// A message in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inbound {
    pub message: InboundMessage,
    pub run_id: RunId,
    /// The turn that accepted it; none before that.
    pub turn_id: Option<TurnId>,
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
    /// The time at which a turn accepted it.
    pub accepted_at: Option<Timestamp>,
    pub execution_status: InboundStatus,
}

/// The progress of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundStatus {
    /// Durable, but not yet accepted by a turn.
    Received,
    Accepted,
    /// Its turn has completed.
    Completed,
    /// Its turn failed, or the run failed before a turn could accept it.
    Failed,
    /// A person stopped its turn or the run.
    Canceled,
    /// A newer message replaced it.
    Superseded,
}

impl Inbound {
    /// Whether the message cannot change any more.
    pub fn is_settled(&self) -> bool {
        match self.execution_status {
            InboundStatus::Received | InboundStatus::Accepted => false,
            InboundStatus::Completed
            | InboundStatus::Failed
            | InboundStatus::Canceled
            | InboundStatus::Superseded => true,
        }
    }

    pub(crate) fn set_status(&mut self, status: InboundStatus, at: Timestamp) {
        self.execution_status = status;
        self.updated_at = at;
    }
}
