//! Everything that can happen to a run. Requests may be refused; facts are absorbed.
//!
//! This is what the journal holds, so a variant or field that was ever released is never renamed, only added to.

use alloc::{boxed::Box, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    deadline::DeadlineKind,
    delivery::DeliveryFailure,
    effect::EffectNumber,
    engine::{EngineCommand, EngineInteractiveProfile, EngineSessionHandle, RunAbilities},
    failure::RunFailure,
    id::{DeliveryId, RunId, TurnId},
    inbound::{InboundMessage, MessageKey},
    interaction::{GatePurpose, Question},
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    reply::InteractionReply,
    settings::{OnBusy, RunSettings},
    time::Seconds,
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RunEvent {
    // Requests.
    /// Somebody wants a run.
    RunCreated(Box<NewRun>),
    /// A slot was granted.
    Admitted,
    /// Somebody says something to the run.
    MessageArrived {
        /// What.
        message: InboundMessage,
        /// What it does if a turn is at work; the run's own setting where it does not say.
        on_busy: Option<OnBusy>,
    },
    /// Somebody answers a question.
    ReplyArrived {
        /// The answer.
        reply: InteractionReply,
    },
    /// A person wants the turn stopped.
    InterruptRequested {
        /// Who.
        by: String,
    },
    /// A person wants the run ended.
    CancelRequested {
        /// Who.
        by: String,
    },
    /// The daemon stops in order: the run must not hold a process afterwards.
    ShutdownRequested,
    /// From here on the run follows these rules. Written by a daemon that continues a run of an older one.
    RulesAdopted {
        /// See [`crate::run::RULES`].
        rules: u32,
    },

    // Facts about the engine's program.
    /// It is known how the engine waits and what it can do.
    ProfileResolved {
        /// How it waits.
        profile: EngineInteractiveProfile,
        /// What it can do.
        abilities: RunAbilities,
        /// The session id that we chose for it, where engines let us (A6).
        handle: Option<EngineSessionHandle>,
        /// How the program is called in every turn of the run (A9). Absent in journals of the first release.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command: Option<EngineCommand>,
    },
    /// The engine cannot be used at all: not there, not logged in, no usable workspace.
    EngineUnusable {
        /// Why.
        failure: RunFailure,
    },
    /// The process that was ordered is there.
    AttemptStarted {
        /// Which launch.
        attempt: Attempt,
        /// Which process.
        process: ProcessBinding,
    },
    /// It could not be started, and certainly did not run.
    LaunchFailed {
        /// Which launch.
        attempt: Attempt,
        /// Why.
        failure: RunFailure,
        /// Whether it may work another time.
        retry: LaunchRetry,
    },
    /// The process is over, or is found to be gone.
    ProcessExited {
        /// Which launch.
        attempt: Attempt,
        /// How.
        exit: ExitStatus,
    },
    /// The process can no longer be heard, though it may well live.
    ContactLost {
        /// Which launch.
        attempt: Attempt,
        /// How long a lost turn of it may be searched for, over all its losses; [`crate::deadline::RECOVERY_BOUND`]
        /// unless said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<Seconds>,
    },
    /// It can be heard again.
    ContactRestored {
        /// Which launch.
        attempt: Attempt,
        /// Which process.
        process: ProcessBinding,
    },
    /// What became of the turn cannot be found out.
    RecoveryFailed {
        /// Which launch.
        attempt: Attempt,
        /// Why not.
        reason: String,
    },
    /// What the engine keeps of its session was deleted while the run waits without a process: no answer can resume it.
    SessionLost {
        /// What is gone.
        failure: RunFailure,
    },

    // Facts that the engine said.
    /// The engine named its session.
    HandleAnnounced {
        /// Which launch.
        attempt: Attempt,
        /// Where in its speech.
        position: OutputPosition,
        /// The session.
        handle: EngineSessionHandle,
    },
    /// The engine is getting on.
    Progressed {
        /// Which launch.
        attempt: Attempt,
        /// Where in its speech.
        position: OutputPosition,
        /// With what.
        text: String,
    },
    /// The engine asks inside its turn and waits.
    GateRaised {
        /// Which launch.
        attempt: Attempt,
        /// The turn that asks.
        turn_id: TurnId,
        /// Where in its speech.
        position: OutputPosition,
        /// The engine's name for the request, unique within its process: said again, it is the same request.
        gate: String,
        /// What it wants.
        purpose: GatePurpose,
        /// What it asks.
        question: Question,
    },
    /// The engine no longer wants that answer.
    GateWithdrawn {
        /// Which launch.
        attempt: Attempt,
        /// Where in its speech.
        position: OutputPosition,
        /// The engine's name for the request.
        gate: String,
    },
    /// The turn is over.
    TurnEnded {
        /// Which launch.
        attempt: Attempt,
        /// The turn that ends, matched by its id (E7): a process that is held for several turns may repeat itself.
        turn_id: TurnId,
        /// Where in its speech.
        position: OutputPosition,
        /// How.
        ending: TurnOutcome,
        /// What became of its process.
        aftermath: ProcessAfterTurn,
    },

    // Facts about the rest of the world.
    /// A point in time was reached.
    DeadlinePassed {
        /// Which.
        deadline: DeadlineKind,
    },
    /// A delivery arrived.
    DeliveryConfirmed {
        /// Which.
        delivery_id: DeliveryId,
    },
    /// A delivery did not, or perhaps not, arrive.
    DeliveryFailed {
        /// Which.
        delivery_id: DeliveryId,
        /// How sure that is.
        certainty: DeliveryFailure,
    },
    /// The run's conversation was heard from again, so it can be reached.
    ConversationSpoke,
    /// What was owed was done, and nothing else tells of it.
    EffectPerformed {
        /// Which.
        effect: EffectNumber,
    },
    /// What was owed certainly cannot be done any more: what it was meant for is over.
    EffectMissed {
        /// Which.
        effect: EffectNumber,
    },
}

/// A run to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRun {
    /// Its name.
    pub run_id: RunId,
    /// What it should be.
    pub settings: RunSettings,
    /// The task.
    pub message: InboundMessage,
    /// The sender's key, so that asking again makes no second run.
    pub idempotency: Option<IdempotencyClaim>,
    /// The rules that the run follows from its creation on; see [`crate::run::RULES`].
    #[serde(default)]
    pub rules: u32,
}

/// A sender's promise that two requests with this key are one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyClaim {
    /// The key.
    pub key: String,
    /// A digest of the request, to notice another request under the same key.
    pub fingerprint: String,
}

/// Whether something that failed may work another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchRetry {
    /// It may.
    Later,
    /// It will not.
    Never,
}

/// How a turn ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The engine is done.
    Completed {
        /// What it said.
        text: String,
    },
    /// The engine needs an answer before it goes on.
    Asked {
        /// What it said before asking.
        text: String,
        /// What it asks.
        question: Question,
    },
    /// The engine failed.
    Failed {
        /// How.
        failure: RunFailure,
    },
    /// The engine obeyed an order to stop.
    Interrupted,
}

/// What became of a process when its turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessAfterTurn {
    /// It is over.
    Exited(ExitStatus),
    /// It lives and can be spoken to.
    Alive,
}

/// A key that may be used once, for ever. The store refuses a commit that claims a taken one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyClaim {
    /// Among which keys it must be unique.
    pub scope: String,
    /// The key.
    pub key: String,
    /// What it was used for, to tell a repetition from a mistake.
    pub fingerprint: String,
}

/// The scope of run requests' idempotency keys.
pub const RUN_REQUESTS: &str = "run-requests";

impl KeyClaim {
    /// The claim that a message makes: its name, once, for ever (E13).
    pub fn of_message(key: &MessageKey) -> Self {
        let mut scope = String::from("inbound/");
        scope.push_str(&key.channel);
        Self { scope, key: key.message_id.clone(), fingerprint: String::new() }
    }
}

impl RunEvent {
    /// The keys that this event uses up.
    pub fn claims(&self) -> Vec<KeyClaim> {
        let mut claims = Vec::new();
        if let Self::RunCreated(new) = self {
            claims.push(KeyClaim::of_message(&new.message.key));
            claims.extend(new.idempotency.as_ref().map(|idempotency| KeyClaim {
                scope: String::from(RUN_REQUESTS),
                key: idempotency.key.clone(),
                fingerprint: idempotency.fingerprint.clone(),
            }));
        }
        if let Self::MessageArrived { message, .. } = self {
            claims.push(KeyClaim::of_message(&message.key));
        }
        claims
    }

    /// The event's name, for tables, logs and people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RunCreated(_) => "RunCreated",
            Self::Admitted => "Admitted",
            Self::MessageArrived { .. } => "MessageArrived",
            Self::ReplyArrived { .. } => "ReplyArrived",
            Self::InterruptRequested { .. } => "InterruptRequested",
            Self::CancelRequested { .. } => "CancelRequested",
            Self::ShutdownRequested => "ShutdownRequested",
            Self::RulesAdopted { .. } => "RulesAdopted",
            Self::ProfileResolved { .. } => "ProfileResolved",
            Self::EngineUnusable { .. } => "EngineUnusable",
            Self::AttemptStarted { .. } => "AttemptStarted",
            Self::LaunchFailed { .. } => "LaunchFailed",
            Self::ProcessExited { .. } => "ProcessExited",
            Self::ContactLost { .. } => "ContactLost",
            Self::ContactRestored { .. } => "ContactRestored",
            Self::RecoveryFailed { .. } => "RecoveryFailed",
            Self::SessionLost { .. } => "SessionLost",
            Self::HandleAnnounced { .. } => "HandleAnnounced",
            Self::Progressed { .. } => "Progressed",
            Self::GateRaised { .. } => "GateRaised",
            Self::GateWithdrawn { .. } => "GateWithdrawn",
            Self::TurnEnded { .. } => "TurnEnded",
            Self::DeadlinePassed { .. } => "DeadlinePassed",
            Self::DeliveryConfirmed { .. } => "DeliveryConfirmed",
            Self::DeliveryFailed { .. } => "DeliveryFailed",
            Self::ConversationSpoke => "ConversationSpoke",
            Self::EffectPerformed { .. } => "EffectPerformed",
            Self::EffectMissed { .. } => "EffectMissed",
        }
    }
}
