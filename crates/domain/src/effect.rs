//! Effects: the actions that a run requests from the outside world after a step was committed, numbered per run.
//!
//! A pending effect stays in the run's state until a fact settles it or makes it obsolete, so it is offered again after
//! a crash. Performing an effect twice must be harmless; its number is the idempotency key. The effects of one run are
//! performed in order, and each is reported before the next input of the run is processed. After a restart, pending
//! effects are performed before new input is processed.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    approval::ApprovalVerdict,
    engine::{EngineSessionHandle, ProbeDepth},
    id::{DeliveryId, InteractionId, TurnId},
    inbound::MessageKey,
    process::Attempt,
    time::{TimeSpan, Timestamp},
};

/// The number of an effect within its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectNumber(pub u32);

/// An effect that has not been performed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEffect {
    pub number: EffectNumber,
    /// The earliest time to perform it.
    pub due_at: Timestamp,
    pub effect: Effect,
}

impl PendingEffect {
    /// Longer than any delay that the rules request.
    const MAX_DELAY: TimeSpan = TimeSpan(60_000_000);

    /// The time until the effect is due. If it exceeds any delay, the clock was set back, and the effect is due now.
    pub fn remaining_delay(&self, now: Timestamp) -> TimeSpan {
        let delay = now.span_until(self.due_at);
        if delay > Self::MAX_DELAY { TimeSpan(0) } else { delay }
    }
}

/// A request to the outside world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Effect {
    /// Determine the wait mode and abilities of the engine. Settled by `ProfileResolved` or `EngineUnusable`.
    Probe { depth: ProbeDepth },
    /// Start a process for the current turn, with the session of the attempt's record. The keeper of an attempt is
    /// never started twice. Settled by `AttemptStarted` or `LaunchFailed`.
    Launch { attempt: Attempt },
    /// Send the prompt of a new turn to a running process.
    SendPrompt { attempt: Attempt, turn_id: TurnId, prompt: String },
    /// Answer a request inside a turn.
    Answer {
        attempt: Attempt,
        interaction_id: InteractionId,
        /// The engine's id of the request.
        gate: String,
        text: String,
        /// The decision, if the request was for permission.
        verdict: Option<ApprovalVerdict>,
    },
    /// Add a message to the running turn. The message counts as waiting until this is reported.
    Steer { attempt: Attempt, message: MessageKey, text: String },
    /// Ask the engine to stop its turn.
    Interrupt { attempt: Attempt },
    /// Terminate the process and all its descendants. Performed before later effects of the same run.
    Terminate { attempt: Attempt },
    /// Find the process again, or read back the outcome of the turn. Settled by the result.
    Recover {
        attempt: Attempt,
        /// Matched by id. It is not necessarily the last turn of the process.
        turn_id: TurnId,
    },
    /// Deliver an item to the conversation. Settled by `DeliveryConfirmed` or `DeliveryFailed`.
    Deliver { delivery_id: DeliveryId },
}

/// The engine session of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchSession {
    /// A new session whose id the engine chooses.
    New,
    /// A new session with an id chosen by Abide.
    Named(EngineSessionHandle),
    /// An existing session.
    Resumed(EngineSessionHandle),
}

impl Effect {
    /// Whether it writes to a process, which then acts on the input.
    pub fn is_input(&self) -> bool {
        match self {
            Self::SendPrompt { .. } | Self::Answer { .. } | Self::Steer { .. } | Self::Interrupt { .. } => {
                true
            }
            Self::Probe { .. }
            | Self::Launch { .. }
            | Self::Terminate { .. }
            | Self::Recover { .. }
            | Self::Deliver { .. } => false,
        }
    }

    /// The attempt that the effect concerns, if any.
    pub fn attempt(&self) -> Option<Attempt> {
        match self {
            Self::Launch { attempt }
            | Self::SendPrompt { attempt, .. }
            | Self::Answer { attempt, .. }
            | Self::Steer { attempt, .. }
            | Self::Interrupt { attempt }
            | Self::Terminate { attempt }
            | Self::Recover { attempt, .. } => Some(*attempt),
            Self::Probe { .. } | Self::Deliver { .. } => None,
        }
    }

    /// Whether this effect answers that request.
    pub(crate) fn answers_gate(&self, request: &str) -> bool {
        matches!(self, Self::Answer { gate, .. } if gate == request)
    }

    /// The name for tables, logs and people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Probe { .. } => "Probe",
            Self::Launch { .. } => "Launch",
            Self::SendPrompt { .. } => "SendPrompt",
            Self::Answer { .. } => "Answer",
            Self::Steer { .. } => "Steer",
            Self::Interrupt { .. } => "Interrupt",
            Self::Terminate { .. } => "Terminate",
            Self::Recover { .. } => "Recover",
            Self::Deliver { .. } => "Deliver",
        }
    }
}
