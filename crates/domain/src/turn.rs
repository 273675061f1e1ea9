//! Turns and their attempts: the turn ledger (E6).
//!
//! The transitions of turns are in [`crate::run`].

use alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    delivery::DeliveryStatus,
    effect::LaunchSession,
    failure::RunFailure,
    id::{InteractionId, RunId, TurnId},
    inbound::{InboundStatus, MessageKey},
    process::{Attempt, ExitStatus, ProcessBinding},
    time::Timestamp,
};

/// One unit of engine work, from a prompt to an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub turn_id: TurnId,
    pub run_id: RunId,
    /// The index within the run, counted from 1.
    pub turn_index: u32,
    pub trigger: TurnTrigger,
    pub prompt: String,
    /// The progress of its work.
    pub execution_status: ExecutionStatus,
    /// The state of its process as far as known. It is not shown to people as the state of their task (E11).
    pub runtime_status: RuntimeStatus,
    /// Every process that was launched for it.
    pub attempts: Vec<AttemptRecord>,
    /// Its complete reply.
    pub reply: Option<String>,
    /// The reason of its failure.
    pub error: Option<RunFailure>,
    pub started_at: Timestamp,
    /// The time at which its outcome became durable.
    pub result_persisted_at: Option<Timestamp>,
    /// Whether the person has received the reply. Executed is not delivered (E10).
    pub delivery_status: DeliveryStatus,
    /// The time at which the reply was delivered.
    pub delivered_at: Option<Timestamp>,
    /// The message that replaced it (E9); none if it was not replaced.
    pub superseded: Option<TurnSupersession>,
}

/// The trigger of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnTrigger {
    Message(MessageKey),
    /// The answer to a question.
    Reply(InteractionId),
}

/// The replacement of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnSupersession {
    pub by_message: MessageKey,
    /// The turn that the message started; none before it starts.
    pub by_turn: Option<TurnId>,
    /// The reason, for people.
    pub reason: String,
}

/// The progress of a turn's work (E6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionStatus {
    /// The engine is working.
    Running,
    /// The engine waits for permission.
    WaitingApproval,
    /// The engine waits for information.
    WaitingUserInput,
    /// Contact was lost. The outcome is being recovered.
    PendingRecovery,
    /// The outcome could not be determined. A person must decide.
    RecoveryRequired,
    Completed,
    Failed,
    /// A person stopped it.
    Interrupted,
    /// A newer message replaced it. Its output is not shown.
    Superseded,
}

impl ExecutionStatus {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::WaitingApproval => "waiting_approval",
            Self::WaitingUserInput => "waiting_user_input",
            Self::PendingRecovery => "pending_recovery",
            Self::RecoveryRequired => "recovery_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Superseded => "superseded",
        }
    }

    /// Whether later events of the engine cannot change it.
    pub fn is_final(self) -> bool {
        match self {
            Self::Running | Self::WaitingApproval | Self::WaitingUserInput | Self::PendingRecovery => false,
            Self::RecoveryRequired
            | Self::Completed
            | Self::Failed
            | Self::Interrupted
            | Self::Superseded => true,
        }
    }
}

impl ExecutionStatus {
    /// The status of the messages that the turn accepted.
    pub(crate) fn message_status(self) -> InboundStatus {
        match self {
            Self::Running | Self::WaitingApproval | Self::WaitingUserInput | Self::PendingRecovery => {
                InboundStatus::Accepted
            }
            Self::Completed => InboundStatus::Completed,
            Self::Failed | Self::RecoveryRequired => InboundStatus::Failed,
            Self::Interrupted => InboundStatus::Canceled,
            Self::Superseded => InboundStatus::Superseded,
        }
    }
}

/// The state of a turn's process as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeStatus {
    /// Requested, not observed yet.
    Starting,
    Active,
    /// Contact is lost.
    Lost,
    Ended,
}

/// One process launched for a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Unique per run; increases by one for each launch.
    pub attempt: Attempt,
    /// The engine session of the launch. None if the turn was given to a process that was already running.
    #[serde(default)]
    pub session: Option<LaunchSession>,
    /// None before the process was observed.
    pub process: Option<ProcessBinding>,
    /// The time at which the process was observed.
    pub started_at: Option<Timestamp>,
    /// The time at which its exit was observed.
    pub ended_at: Option<Timestamp>,
    pub exit: Option<ExitStatus>,
}

/// The maximum number of characters of a preview in lists.
const PREVIEW_CHARS: usize = 120;

impl Turn {
    /// Whether the turn cannot change any more: executed, and delivered or given up.
    pub fn is_settled(&self) -> bool {
        self.execution_status.is_final() && self.delivery_status.is_final()
    }

    /// The beginning of the prompt, for lists.
    pub fn prompt_preview(&self) -> String {
        preview(&self.prompt)
    }

    /// The beginning of the reply, for lists.
    pub fn reply_preview(&self) -> Option<String> {
        self.reply.as_deref().map(preview)
    }

    pub(crate) fn attempt_mut(&mut self, attempt: Attempt) -> Option<&mut AttemptRecord> {
        self.attempts.iter_mut().find(|record| record.attempt == attempt)
    }
}

fn preview(text: &str) -> String {
    let mut preview: String = text.chars().take(PREVIEW_CHARS).collect();
    if preview.len() < text.len() {
        preview.push('…');
    }
    preview
}
