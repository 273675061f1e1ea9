//! Deliveries of results, questions and notices to a conversation, at least once and with a stable key (E10).
//!
//! Formatting is left to the channels.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    id::{DeliveryId, InteractionId, RunId, TurnId},
    time::Timestamp,
};

/// One item to be delivered to a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Also the idempotency key, which is the same for every try.
    pub delivery_id: DeliveryId,
    pub run_id: RunId,
    pub conversation_ref: String,
    pub content: DeliveryContent,
    /// The turn whose outcome is delivered by this item.
    pub outcome_turn_id: Option<TurnId>,
    /// The time of the request. Late deliveries are marked with their age.
    pub created_at: Timestamp,
    pub status: DeliveryStatus,
    /// The last failure, if any.
    pub last_failure: Option<DeliveryFailure>,
    pub delivered_at: Option<Timestamp>,
    /// Whether the single retry has been used.
    pub resent: bool,
}

/// The content of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryContent {
    /// The reply or failure of a turn.
    Result(TurnId),
    /// A question, with the text that its turn produced before it.
    Question(InteractionId),
    /// A note that a question can no longer be answered.
    QuestionClosed(InteractionId),
    /// A message of Abide about the run.
    Notice(DeliveryNotice),
}

/// A message of Abide to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryNotice {
    /// The run ended while no turn was running.
    RunEnded(String),
    /// The outcome of a turn could not be determined (E8).
    OutcomeUnknown(TurnId),
    /// A result could not be delivered after a retry; it can be read in the ledger.
    Undelivered(DeliveryId),
}

/// The progress of a delivery (E6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// There is nothing to deliver yet.
    NotReady,
    /// The delivery is in progress.
    Pending,
    /// The conversation has received it.
    Delivered,
    /// It must not be delivered any more.
    Suppressed,
    /// The delivery failed. It is retried when the conversation is active again.
    DeliveryUnavailable,
}

impl DeliveryStatus {
    /// Whether the status is final. An unavailable delivery may be retried, so it is not final.
    pub fn is_final(self) -> bool {
        match self {
            Self::NotReady | Self::Pending | Self::DeliveryUnavailable => false,
            Self::Delivered | Self::Suppressed => true,
        }
    }
}

/// The certainty that a delivery failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryFailure {
    /// The channel refused it.
    Failed,
    /// It may have arrived.
    Unknown,
}

impl Delivery {
    /// Whether the delivery cannot change any more.
    pub fn is_settled(&self) -> bool {
        match self.status {
            DeliveryStatus::DeliveryUnavailable => self.resent,
            DeliveryStatus::NotReady | DeliveryStatus::Pending => false,
            DeliveryStatus::Delivered | DeliveryStatus::Suppressed => true,
        }
    }
}
