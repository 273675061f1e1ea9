//! The events of a run. Requests may be refused; facts are always accepted.
//!
//! Events are stored in the journal. A released variant or field is therefore never renamed; new ones may be added.

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

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RunEvent {
    // Requests.
    /// A request to create a run.
    RunCreated(Box<NewRun>),
    /// A slot was granted.
    Admitted,
    /// A message to the run.
    MessageArrived {
        message: InboundMessage,
        /// The effect on a running turn. None selects the run's own setting.
        on_busy: Option<OnBusy>,
    },
    /// An answer to a question.
    ReplyArrived { reply: InteractionReply },
    /// A person requests that the turn be stopped.
    InterruptRequested { by: String },
    /// A person requests that the run be ended.
    CancelRequested { by: String },
    /// The daemon is shutting down. The run must not hold a process afterwards.
    ShutdownRequested,
    /// The run follows these rules from now on. Written by a daemon that continues a run of an older version.
    RulesAdopted {
        /// See [`crate::run::CURRENT_RULES_VERSION`].
        rules: u32,
    },

    // Facts about the engine's program.
    /// The wait mode and abilities of the engine were determined.
    ProfileResolved {
        profile: EngineInteractiveProfile,
        abilities: RunAbilities,
        /// The session id chosen by Abide, for engines that accept one (A6).
        handle: Option<EngineSessionHandle>,
        /// The command for all turns of the run (A9). Absent in journals of the first release.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command: Option<EngineCommand>,
    },
    /// The engine cannot be used: it is not installed or not logged in, or the workspace is unusable.
    EngineUnusable { failure: RunFailure },
    /// The requested process was started.
    AttemptStarted { attempt: Attempt, process: ProcessBinding },
    /// The process could not be started. It did not run.
    LaunchFailed {
        attempt: Attempt,
        failure: RunFailure,
        /// Whether a later try may succeed.
        retry: LaunchRetry,
    },
    /// The process has exited, or was found to be gone.
    ProcessExited { attempt: Attempt, exit: ExitStatus },
    /// Contact with the process was lost. It may still be running.
    ContactLost {
        attempt: Attempt,
        /// The time limit of the search for a lost turn, summed over all losses. The default is
        /// [`crate::deadline::RECOVERY_TIMEOUT`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        search_timeout_sec: Option<Seconds>,
    },
    /// Contact with the process was restored.
    ContactRestored { attempt: Attempt, process: ProcessBinding },
    /// The outcome of the turn cannot be determined.
    RecoveryFailed { attempt: Attempt, reason: String },
    /// The engine's session data was deleted while the run waits without a process. The session cannot be resumed.
    SessionLost { failure: RunFailure },

    // Facts from the engine's output. Each has the attempt and the position in its output.
    /// The engine announced its session.
    HandleAnnounced { attempt: Attempt, position: OutputPosition, handle: EngineSessionHandle },
    /// The engine reported progress.
    Progressed { attempt: Attempt, position: OutputPosition, text: String },
    /// The engine asks inside its turn and waits.
    GateRaised {
        attempt: Attempt,
        turn_id: TurnId,
        position: OutputPosition,
        /// The engine's id of the request, unique within its process. A repeated id is the same request.
        gate: String,
        purpose: GatePurpose,
        question: Question,
    },
    /// The engine no longer needs the answer.
    GateWithdrawn {
        attempt: Attempt,
        position: OutputPosition,
        /// The engine's id of the request.
        gate: String,
    },
    /// The turn has ended.
    TurnEnded {
        attempt: Attempt,
        /// Matched by id (E7), because a process that is held for several turns may repeat its output.
        turn_id: TurnId,
        position: OutputPosition,
        outcome: TurnOutcome,
        process_after: ProcessAfterTurn,
    },

    // Facts about the rest of the world.
    /// A deadline was reached.
    DeadlinePassed { deadline: DeadlineKind },
    /// A delivery arrived.
    DeliveryConfirmed { delivery_id: DeliveryId },
    /// A delivery failed or may have failed.
    DeliveryFailed { delivery_id: DeliveryId, certainty: DeliveryFailure },
    /// The run's conversation was active again, so it can be reached.
    ConversationActive,
    /// A pending effect was performed, and no other event reports it.
    EffectPerformed { effect: EffectNumber },
    /// A pending effect can no longer be performed, because its target is gone.
    EffectObsolete { effect: EffectNumber },
}

/// The parameters of a new run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRun {
    pub run_id: RunId,
    pub settings: RunSettings,
    /// The task.
    pub message: InboundMessage,
    /// The sender's idempotency key. A repeated request creates no second run.
    pub idempotency: Option<IdempotencyClaim>,
    /// The rules that the run follows from its creation on; see [`crate::run::CURRENT_RULES_VERSION`].
    #[serde(default)]
    pub rules: u32,
}

/// An idempotency key of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyClaim {
    pub key: String,
    /// A digest of the request, to detect another request with the same key.
    pub fingerprint: String,
}

/// Whether a failed launch may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchRetry {
    Later,
    Never,
}

/// The outcome of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The engine has finished.
    Completed { text: String },
    /// The engine needs an answer before it can continue.
    Asked {
        /// The text before the question.
        text: String,
        question: Question,
    },
    /// The engine failed.
    Failed { failure: RunFailure },
    /// The engine obeyed a request to stop.
    Interrupted,
}

/// The state of a process after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessAfterTurn {
    Exited(ExitStatus),
    /// The process is alive and accepts input.
    Alive,
}

/// A key that can be claimed only once. The store refuses a commit that claims a key again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyClaim {
    /// The namespace in which the key is unique.
    pub scope: String,
    pub key: String,
    /// A digest of the request, to distinguish a repetition from another request with the same key.
    pub fingerprint: String,
}

/// The namespace of run requests' idempotency keys.
pub const RUN_REQUEST_SCOPE: &str = "run-requests";

impl KeyClaim {
    /// The claim of a message: its key can be used only once (E13).
    pub fn for_message(key: &MessageKey) -> Self {
        let mut scope = String::from("inbound/");
        scope.push_str(&key.channel);
        Self { scope, key: key.message_id.clone(), fingerprint: String::new() }
    }
}

impl RunEvent {
    /// The keys that this event claims.
    pub fn claims(&self) -> Vec<KeyClaim> {
        let mut claims = Vec::new();
        if let Self::RunCreated(new) = self {
            claims.push(KeyClaim::for_message(&new.message.key));
            claims.extend(new.idempotency.as_ref().map(|idempotency| KeyClaim {
                scope: String::from(RUN_REQUEST_SCOPE),
                key: idempotency.key.clone(),
                fingerprint: idempotency.fingerprint.clone(),
            }));
        }
        if let Self::MessageArrived { message, .. } = self {
            claims.push(KeyClaim::for_message(&message.key));
        }
        claims
    }

    /// The name for tables, logs and people.
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
            Self::ConversationActive => "ConversationActive",
            Self::EffectPerformed { .. } => "EffectPerformed",
            Self::EffectObsolete { .. } => "EffectObsolete",
        }
    }
}
