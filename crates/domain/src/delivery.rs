//! Bringing results, questions and notices to a conversation, at least once and under a stable key (E10).
//!
//! How a channel shows them is not here.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    id::{DeliveryId, InteractionId, RunId, TurnId},
    time::Timestamp,
};

/// One thing to be brought to a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Its name, and the key that stays the same however often it is sent.
    pub delivery_id: DeliveryId,
    /// The run that it speaks for.
    pub run_id: RunId,
    /// Where it goes.
    pub conversation_ref: String,
    /// What it brings.
    pub content: DeliveryContent,
    /// The turn whose outcome the person has once this has arrived.
    pub carries: Option<TurnId>,
    /// Since when it is wanted; a late one is marked with its age.
    pub created_at: Timestamp,
    /// Whether it has arrived.
    pub status: DeliveryStatus,
    /// How it last failed, if it did.
    pub last_failure: Option<DeliveryFailure>,
    /// When it arrived.
    pub delivered_at: Option<Timestamp>,
    /// It has had its second chance, so there is no third.
    pub resent: bool,
}

/// What a delivery brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryContent {
    /// What a turn said, or how it failed.
    Result(TurnId),
    /// A question, with whatever its turn said before it.
    Question(InteractionId),
    /// That a question can no longer be answered here.
    QuestionClosed(InteractionId),
    /// Something that Abide has to say about the run.
    Notice(DeliveryNotice),
}

/// What Abide itself says to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryNotice {
    /// The run ended while nothing of it was at work.
    RunEnded(String),
    /// A turn's outcome could not be found out (E8).
    OutcomeUnknown(TurnId),
    /// A result could not be delivered twice over; it can be read in the ledger.
    Undelivered(DeliveryId),
}

/// Whether something has arrived (E6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// There is nothing to bring yet.
    NotReady,
    /// On its way.
    Pending,
    /// Arrived.
    Delivered,
    /// Must not arrive any more.
    Suppressed,
    /// Could not be brought; waits until the conversation speaks again.
    DeliveryUnavailable,
}

impl DeliveryStatus {
    /// It will not change by itself. An unavailable one may get its second chance, so it is not final.
    pub fn is_final(self) -> bool {
        match self {
            Self::NotReady | Self::Pending | Self::DeliveryUnavailable => false,
            Self::Delivered | Self::Suppressed => true,
        }
    }
}

/// How sure we are that a delivery did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryFailure {
    /// The channel refused it.
    Failed,
    /// It may have arrived. Called unknown, never guessed.
    Unknown,
}

impl Delivery {
    /// Nothing more will happen to it.
    pub fn is_settled(&self) -> bool {
        match self.status {
            DeliveryStatus::DeliveryUnavailable => self.resent,
            DeliveryStatus::NotReady | DeliveryStatus::Pending => false,
            DeliveryStatus::Delivered | DeliveryStatus::Suppressed => true,
        }
    }
}
