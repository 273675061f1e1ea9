//! Questions and approvals for a person, and their resolution (D1) (D8).
//!
//! [`crate::reply`] decides which reply is accepted. [`crate::policy`] decides unanswered questions.

use alloc::{boxed::Box, string::String, vec::Vec};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    approval::ApprovalVerdict,
    context::{ApprovalContext, HiddenContent},
    id::{InteractionId, RunId, TurnId},
    policy::AutoDecideReason,
    time::Timestamp,
};

/// A question or approval over its whole life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interaction {
    /// Assigned by Abide and unique; not the model's own number.
    pub interaction_id: InteractionId,
    /// The run that waits.
    pub run_id: RunId,
    /// The turn that asked.
    pub turn_id: TurnId,
    /// The origin of the question, which determines the target of the answer.
    pub origin: InteractionOrigin,
    pub question: Question,
    /// The time since which it can be answered.
    pub opened_at: Timestamp,
    /// The time at which it is decided without a person, or given up.
    pub deadline_at: Option<Timestamp>,
    pub state: InteractionState,
}

/// The origin of a question, which determines the target of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionOrigin {
    /// The engine, at the end of its turn. The answer is the prompt of the next turn.
    TurnEnd,
    /// The engine, inside its turn. The answer goes to that process, with the engine's own gate id.
    Gate {
        /// The engine's id of the request.
        gate: String,
        purpose: GatePurpose,
    },
    /// Abide itself, because the run cannot continue without a decision.
    Abide(RuntimeQuestion),
}

/// The purpose of a request inside a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatePurpose {
    /// Permission. Only a person can give it.
    Approval,
    /// Information.
    Input,
}

/// The reason for a question of Abide itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeQuestion {
    /// A person stopped the turn, so a person decides how to continue.
    Interrupted,
    /// Contact was lost and the outcome of the turn could not be determined (E8).
    OutcomeUnknown,
    /// The turn could not be started after all retries. It had no effects.
    FailedRepeatedly,
    /// The process of a turn ended while a request inside it was open, so the request is void (A10).
    RequestVoid,
    /// A shutdown of the daemon stopped the turn.
    StoppedByShutdown,
}

/// The text and form of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// A hint for front ends. It does not restrict the answer (D2).
    pub kind: InteractionKind,
    pub prompt: String,
    /// Suggested answers.
    #[serde(default)]
    pub options: Vec<InteractionOption>,
    /// Display hints of the engine, as opaque JSON text.
    #[serde(default)]
    pub ui_hints: Option<String>,
    /// The decision if there is no answer and the run permits one without a person.
    pub default_decision_policy: DecisionPolicy,
    /// The scope of an approval. The prompt is then its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Box<ApprovalContext>>,
    /// The part that the prompt does not show because it is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<Box<HiddenContent>>,
}

/// The five kinds of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    /// One of the options.
    ChooseOne,
    /// Yes or no.
    Confirm,
    /// Several values.
    FillFields,
    /// Any text.
    OpenText,
    /// Acknowledgement of a risk. A timeout never acknowledges it.
    RiskAck,
}

impl InteractionKind {
    /// The kind with this name; an unknown name is `open_text` (D1).
    pub fn from_name(name: &str) -> Self {
        match name {
            "choose_one" => Self::ChooseOne,
            "confirm" => Self::Confirm,
            "fill_fields" => Self::FillFields,
            "risk_ack" => Self::RiskAck,
            _ => Self::OpenText,
        }
    }
}

impl<'de> Deserialize<'de> for InteractionKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|name| Self::from_name(&name))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractionOption {
    pub label: String,
    /// Whether the engine marked it as harmless.
    #[serde(default)]
    pub safe: bool,
}

/// The decision on an unanswered question (D1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionPolicy {
    /// The engine decides for itself.
    EngineJudgement,
    /// The option that is marked safe, or no.
    SafeDefault,
    /// The run ends.
    Abort,
}

impl DecisionPolicy {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::EngineJudgement => "engine_judgement",
            Self::SafeDefault => "safe_default",
            Self::Abort => "abort",
        }
    }
}

/// Whether an interaction can still be answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionState {
    Open,
    /// It was answered; the answer is final.
    Answered(InteractionResolution),
    /// It was closed without an answer.
    Closed {
        at: Timestamp,
        reason: CloseReason,
    },
}

/// The answer to an interaction (D8).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractionResolution {
    pub resolution_mode: ResolutionMode,
    pub resolved_at: Timestamp,
    /// The name of a person as the channel reports it, or `policy`.
    pub resolved_by: String,
    /// The reason for an answer by policy; otherwise none.
    pub auto_decide_reason: Option<AutoDecideReason>,
    pub text: String,
    /// The key under which the same answer may be repeated.
    pub idempotency_key: Option<String>,
    /// The decision, if the interaction is an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ApprovalVerdict>,
}

/// The origin of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolutionMode {
    /// A person answered.
    UserReply,
    /// There was no answer in time, so the question's policy was applied.
    AutoDecideTimeout,
}

/// The reason for closing an interaction without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// The engine withdrew it.
    Withdrawn,
    /// A newer message made it obsolete.
    Superseded,
    /// A person stopped the turn or run.
    Stopped,
    RunFailed,
    /// The policy was to abort.
    Aborted,
    /// The process that needed the answer has exited (A10).
    Void,
}

impl Interaction {
    pub fn is_open(&self) -> bool {
        self.state == InteractionState::Open
    }

    /// Whether it asks for permission: a request inside a turn, or the acknowledgement of a risk.
    pub fn is_approval(&self) -> bool {
        self.question.kind == InteractionKind::RiskAck
            || matches!(&self.origin, InteractionOrigin::Gate { purpose: GatePurpose::Approval, .. })
    }

    /// Whether it is the engine's request with this id.
    pub(crate) fn is_gate(&self, gate: &str) -> bool {
        match &self.origin {
            InteractionOrigin::Gate { gate: its, .. } => its == gate,
            InteractionOrigin::TurnEnd | InteractionOrigin::Abide(_) => false,
        }
    }

    pub(crate) fn close(&mut self, reason: CloseReason, at: Timestamp) {
        if self.is_open() {
            self.state = InteractionState::Closed { at, reason };
        }
    }
}
