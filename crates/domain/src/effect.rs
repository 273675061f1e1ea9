//! What a run owes to the world after a step was committed: orders, each with a number of its own.
//!
//! An order stays in the run's state until a fact says that it was carried out or became moot, so it is offered
//! again after a crash. Carrying one out twice must do no harm: the number is the key. The orders of one run are
//! carried out in their sequence, and each is reported before anything else is taken for that run; after a restart,
//! what is owed comes before all news.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    approval::ApprovalVerdict,
    engine::{EngineSessionHandle, ProbeDepth},
    id::{DeliveryId, InteractionId, TurnId},
    inbound::MessageKey,
    process::Attempt,
    time::Timestamp,
};

/// The number of an order within its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectNumber(pub u32);

/// An order that has not been carried out yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEffect {
    /// Its number.
    pub number: EffectNumber,
    /// Not before then; at once if that is past.
    pub due_at: Timestamp,
    /// The order.
    pub effect: Effect,
}

/// An order to the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Effect {
    /// Find out how the engine waits and what it can do. Settled by `ProfileResolved` or `EngineUnusable`.
    Probe {
        /// How thoroughly.
        depth: ProbeDepth,
    },
    /// Start a process for a turn. Settled by `AttemptStarted` or `LaunchFailed`.
    Launch {
        /// Which launch; the keeper of this attempt is never started twice.
        attempt: Attempt,
        /// The turn.
        turn_id: TurnId,
        /// The session to go on with, or the id that a new one shall have.
        session: LaunchSession,
        /// What the engine is told.
        prompt: String,
    },
    /// Give a living process the prompt of a new turn.
    Say {
        /// Which process.
        attempt: Attempt,
        /// The turn.
        turn_id: TurnId,
        /// The prompt.
        prompt: String,
    },
    /// Answer a request inside a turn.
    Answer {
        /// Which process.
        attempt: Attempt,
        /// The question.
        interaction_id: InteractionId,
        /// The engine's name for the request.
        gate: String,
        /// What was answered.
        text: String,
        /// What that means, if permission was asked for.
        verdict: Option<ApprovalVerdict>,
    },
    /// Put a message into the running turn. Until that is reported, the message counts as waiting.
    Steer {
        /// Which process.
        attempt: Attempt,
        /// The message.
        message: MessageKey,
        /// What it says.
        text: String,
    },
    /// Ask the engine to stop its turn.
    Interrupt {
        /// Which process.
        attempt: Attempt,
    },
    /// End the process and everything that it started. Done before anything later of the same run.
    Terminate {
        /// Which process.
        attempt: Attempt,
    },
    /// Find the process again, or read the turn's outcome back. Settled by what was found.
    Recover {
        /// Which process.
        attempt: Attempt,
        /// The turn, matched by its id and never as "the last one".
        turn_id: TurnId,
    },
    /// Bring something to the conversation. Settled by `DeliveryConfirmed` or `DeliveryFailed`.
    Deliver {
        /// What.
        delivery_id: DeliveryId,
    },
}

/// The engine session that a launch is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchSession {
    /// A new one, named by the engine.
    New,
    /// A new one, under the id that we chose.
    Named(EngineSessionHandle),
    /// That one and no other.
    Resumed(EngineSessionHandle),
}

impl Effect {
    /// The attempt that the order is about, if it is about one.
    pub fn attempt(&self) -> Option<Attempt> {
        match self {
            Self::Launch { attempt, .. }
            | Self::Say { attempt, .. }
            | Self::Answer { attempt, .. }
            | Self::Steer { attempt, .. }
            | Self::Interrupt { attempt }
            | Self::Terminate { attempt }
            | Self::Recover { attempt, .. } => Some(*attempt),
            Self::Probe { .. } | Self::Deliver { .. } => None,
        }
    }

    /// Whether this is the answer to that request.
    pub(crate) fn answers(&self, request: &str) -> bool {
        matches!(self, Self::Answer { gate, .. } if gate == request)
    }

    /// The order's name, for tables, logs and people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Probe { .. } => "Probe",
            Self::Launch { .. } => "Launch",
            Self::Say { .. } => "Say",
            Self::Answer { .. } => "Answer",
            Self::Steer { .. } => "Steer",
            Self::Interrupt { .. } => "Interrupt",
            Self::Terminate { .. } => "Terminate",
            Self::Recover { .. } => "Recover",
            Self::Deliver { .. } => "Deliver",
        }
    }
}
