//! Messages that reached us, and how far each has got (E5).
//!
//! That the same message is never taken twice is not decided here: the store holds its key for ever (E13).

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    id::{RunId, TurnId},
    time::Timestamp,
};

/// A message's name: the channel it came by and that channel's own id for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageKey {
    /// The channel, `api` for HTTP.
    pub channel: String,
    /// The channel's id for the message.
    pub message_id: String,
}

/// What somebody said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundMessage {
    /// Its name.
    pub key: MessageKey,
    /// What it says.
    pub text: String,
}

/// A message in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inbound {
    /// What was said.
    pub message: InboundMessage,
    /// The run that it is for.
    pub run_id: RunId,
    /// The turn that took it, once one has.
    pub turn_id: Option<TurnId>,
    /// When it was received.
    pub created_at: Timestamp,
    /// When anything about it last changed.
    pub updated_at: Timestamp,
    /// When a turn took it.
    pub accepted_at: Option<Timestamp>,
    /// How far it has got.
    pub execution_status: InboundStatus,
}

/// How far a message has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundStatus {
    /// Ours and durable; no turn has taken it yet.
    Received,
    /// A turn has taken it.
    Accepted,
    /// That turn has said what it had to say.
    Completed,
    /// That turn failed, or the run ended badly before one could take it.
    Failed,
    /// It was stopped by a person, or the run was.
    Canceled,
    /// A newer message took its place.
    Superseded,
}

impl Inbound {
    /// Nothing more will happen to it.
    pub fn is_settled(&self) -> bool {
        match self.execution_status {
            InboundStatus::Received | InboundStatus::Accepted => false,
            InboundStatus::Completed
            | InboundStatus::Failed
            | InboundStatus::Canceled
            | InboundStatus::Superseded => true,
        }
    }

    pub(crate) fn becomes(&mut self, status: InboundStatus, at: Timestamp) {
        self.execution_status = status;
        self.updated_at = at;
    }
}
