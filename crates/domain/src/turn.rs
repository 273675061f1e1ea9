//! Turns and the attempts at them: the turn ledger (E6).
//!
//! What makes a turn start, wait and end is in [`crate::run`]; here is what is known of one.

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

/// One stretch of engine work, from a prompt to an ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Its name.
    pub turn_id: TurnId,
    /// The run that it belongs to.
    pub run_id: RunId,
    /// Its place in the run, from 1.
    pub turn_index: u32,
    /// What started it.
    pub cause: TurnTrigger,
    /// What the engine was told.
    pub prompt: String,
    /// Whether its work is done.
    pub execution_status: ExecutionStatus,
    /// What its process does, as far as we know. Never told to people as the state of their task (E11).
    pub runtime_status: RuntimeStatus,
    /// Every process launched for it.
    pub attempts: Vec<AttemptRecord>,
    /// What it said, whole.
    pub reply: Option<String>,
    /// Why it failed.
    pub error: Option<RunFailure>,
    /// When it began.
    pub started_at: Timestamp,
    /// When its ending became durable.
    pub result_persisted_at: Option<Timestamp>,
    /// Whether the person has what it said. Executed is not delivered (E10).
    pub delivery_status: DeliveryStatus,
    /// When they got it.
    pub delivered_at: Option<Timestamp>,
    /// What took its place, if something did (E9).
    pub superseded: Option<TurnSupersession>,
}

/// What starts a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnTrigger {
    /// A message.
    Message(MessageKey),
    /// The answer to a question.
    Reply(InteractionId),
}

/// What took a turn's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnSupersession {
    /// The message that did.
    pub by_message: MessageKey,
    /// The turn that it started, once it has.
    pub by_turn: Option<TurnId>,
    /// Why, for people.
    pub reason: String,
}

/// Whether a turn's work is done (E6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionStatus {
    /// It works.
    Running,
    /// It wants permission for something.
    WaitingApproval,
    /// It wants to know something.
    WaitingUserInput,
    /// Contact was lost; its outcome is being read back.
    PendingRecovery,
    /// Its outcome could not be found out; a person must decide.
    RecoveryRequired,
    /// Done.
    Completed,
    /// Ended badly.
    Failed,
    /// Stopped by a person.
    Interrupted,
    /// Replaced by a newer message; what it says is never shown.
    Superseded,
}

impl ExecutionStatus {
    /// The word itself.
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

    /// Nothing that its engine does can change it any more.
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
    /// What a turn's status means for the messages that it took.
    pub(crate) fn of_its_messages(self) -> InboundStatus {
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

/// What a turn's process does, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeStatus {
    /// Ordered, not seen yet.
    Starting,
    /// Alive.
    Active,
    /// Out of contact.
    Lost,
    /// Over.
    Ended,
}

/// One process launched for a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Its number within the run.
    pub attempt: Attempt,
    /// The engine session that it was launched for; none for a turn that was given to a process already held.
    #[serde(default)]
    pub session: Option<LaunchSession>,
    /// Which process it is, once it was seen.
    pub process: Option<ProcessBinding>,
    /// When it was seen.
    pub started_at: Option<Timestamp>,
    /// When it was seen to be over.
    pub ended_at: Option<Timestamp>,
    /// How.
    pub exit: Option<ExitStatus>,
}

/// How much of a prompt a listing shows.
const PREVIEW_CHARS: usize = 120;

impl Turn {
    /// Nothing more will happen to it: executed, and delivered or given up.
    pub fn is_settled(&self) -> bool {
        self.execution_status.is_final() && self.delivery_status.is_final()
    }

    /// The beginning of the prompt, for listings.
    pub fn prompt_preview(&self) -> String {
        preview(&self.prompt)
    }

    /// The beginning of the reply, for listings.
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
