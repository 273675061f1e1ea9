//! Events that record a fact: about the engine's process, from the engine's output, about deadlines and deliveries.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    interaction::{ApprovalContextView, HiddenContentView, InteractionKindValue, InteractionOptionView},
    run::{ProfileKindValue, RunErrorView},
};

/// The wait mode of the engine was determined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileResolvedEvent {
    pub kind: ProfileKindValue,
    /// The evidence for the wait mode.
    pub reason: String,
}

/// The engine cannot be used: it is not installed or not logged in, or the workspace is unusable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineUnusableEvent {
    pub error: RunErrorView,
}

/// The process of an attempt was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptStartedEvent {
    /// Unique per run; increases by one for each launch.
    pub attempt: u32,
    pub pid: u32,
}

/// The process of an attempt could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LaunchFailedEvent {
    pub attempt: u32,
    pub error: RunErrorView,
    pub retry: LaunchRetryValue,
}

/// Whether a failed launch is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaunchRetryValue {
    Later,
    Never,
}

/// The process of an attempt has exited, or was found to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessExitedEvent {
    pub attempt: u32,
    /// 128 + n after death by signal n; null if it is not known.
    pub exit_code: Option<i32>,
}

/// Contact with the process was lost. It may still be running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContactLostEvent {
    pub attempt: u32,
}

/// Contact with the process was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContactRestoredEvent {
    pub attempt: u32,
    pub pid: u32,
}

/// The outcome of the turn cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryFailedEvent {
    pub attempt: u32,
    pub reason: String,
}

/// The engine's session data was deleted while the run waited, so the session cannot be resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionLostEvent {
    pub error: RunErrorView,
}

/// The engine announced its session. The id is not part of the event, because any reader could resume the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HandleAnnouncedEvent {
    pub attempt: u32,
}

/// The engine reported progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProgressedEvent {
    pub attempt: u32,
    pub text: String,
}

/// The engine asks inside its turn, and its process waits for the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GateRaisedEvent {
    pub attempt: u32,
    pub turn_id: String,
    pub purpose: GatePurposeValue,
    pub question: QuestionView,
}

/// Whether a question inside a turn asks for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GatePurposeValue {
    Approval,
    Input,
}

/// A question at the time of its event. `GET /v1/interactions` has its present state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuestionView {
    pub kind: InteractionKindValue,
    pub prompt: String,
    pub options: Vec<InteractionOptionView>,
    /// The content of an approval; null for other questions.
    pub context: Option<Box<ApprovalContextView>>,
    /// Set if the prompt does not show all of the content.
    pub hidden: Option<Box<HiddenContentView>>,
}

/// The engine withdrew a question inside its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GateWithdrawnEvent {
    pub attempt: u32,
}

/// The turn has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnEndedEvent {
    pub attempt: u32,
    pub turn_id: String,
    pub outcome: TurnOutcomeValue,
    /// `completed`: the result. `asked`: the text before the question.
    pub text: Option<String>,
    /// Set if the outcome is `asked`.
    pub question: Option<QuestionView>,
    /// Set if the outcome is `failed`.
    pub error: Option<RunErrorView>,
    /// Null if the process is alive, or if the exit code is not known.
    pub exit_code: Option<i32>,
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcomeValue {
    /// The engine has finished.
    Completed,
    /// The engine needs an answer before it can continue.
    Asked,
    Failed,
    /// The engine obeyed a request to stop.
    Interrupted,
}

/// A deadline was reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadlinePassedEvent {
    pub deadline: DeadlineKindValue,
    /// Set if the deadline is `answer`.
    pub interaction_id: Option<String>,
}

/// The wait that a deadline ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineKindValue {
    /// The wait for an answer.
    Answer,
    /// The execution of a turn.
    Turn,
    /// The grace period in which an engine can stop by itself.
    Stop,
    /// The search for a process with which contact was lost.
    Recovery,
    /// The time for which an idle chat keeps its process.
    Idle,
}

impl DeadlineKindValue {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Turn => "turn",
            Self::Stop => "stop",
            Self::Recovery => "recovery",
            Self::Idle => "idle",
        }
    }
}

/// A result, question or notice was delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryConfirmedEvent {
    pub delivery_id: String,
}

/// A result, question or notice was not delivered, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryFailedEvent {
    pub delivery_id: String,
    pub outcome: DeliveryFailureValue,
}

/// The outcome of a delivery that was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryFailureValue {
    /// The channel refused it.
    Failed,
    /// It may have arrived.
    Unknown,
}

impl DeliveryFailureValue {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// The run's conversation was active again, so it can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConversationActiveEvent {}

/// A pending effect was performed, and no other event reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectPerformedEvent {
    /// Unique per run.
    pub effect: u32,
}

/// A pending effect can no longer be performed, because its target is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectObsoleteEvent {
    /// Unique per run.
    pub effect: u32,
}
