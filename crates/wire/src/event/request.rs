//! Events that record a request: of a client, of a person, of a policy, or of the daemon itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    interaction::{AutoDecideReasonValue, DecisionPolicyValue, ResolutionModeValue},
    run::{ExecutionModeValue, OnBusyValue},
};

/// The run was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCreatedEvent {
    pub engine: String,
    /// Absolute path of the working directory of all turns.
    pub workspace: String,
    pub execution_mode: ExecutionModeValue,
    /// Id of the message that holds the prompt.
    pub message_id: String,
    pub prompt: String,
}

/// A slot was granted to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdmittedEvent {}

/// A message for the run was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageArrivedEvent {
    /// The channel that received the message; `api` for HTTP.
    pub channel: String,
    /// Unique within the channel.
    pub message_id: String,
    pub text: String,
    /// Effect on a running turn; null selects the setting of the run.
    pub on_busy: Option<OnBusyValue>,
}

/// A question was answered by a person or by policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplyArrivedEvent {
    pub interaction_id: String,
    pub text: String,
    pub source: ResolutionModeValue,
    /// Name of the person, or `policy`.
    pub by: String,
    /// The reason for an automatic answer; absent for a person's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<AutoDecideReasonValue>,
    /// The policy of an automatic answer; absent for a person's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<DecisionPolicyValue>,
    /// The text of an automatic answer that the engine receives; absent for a person's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
}

/// A person requested that the turn be stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InterruptRequestedEvent {
    /// Name of the person.
    pub by: String,
}

/// A person requested that the run be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelRequestedEvent {
    /// Name of the person.
    pub by: String,
}

/// The daemon was stopped, so the run may no longer hold a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShutdownRequestedEvent {}

/// The run follows another version of the domain rules from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesAdoptedEvent {
    pub rules_version: u32,
}
