//! Questions and approvals that wait for a person, and how each was resolved (D1) (D8).
//!
//! Which reply wins is decided in [`crate::reply`]; what an unanswered question's policy says, in [`crate::policy`].

use alloc::{boxed::Box, string::String, vec::Vec};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    approval::ApprovalVerdict,
    context::{ApprovalContext, HiddenContent},
    id::{InteractionId, RunId, TurnId},
    policy::AutoDecideReason,
    time::Timestamp,
};

/// A question or approval, from its opening to the end of days.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interaction {
    /// Ours, unique for ever; never the model's own number.
    pub interaction_id: InteractionId,
    /// The run that waits.
    pub run_id: RunId,
    /// The turn that asked.
    pub turn_id: TurnId,
    /// Who asked, and where the answer must go.
    pub asker: InteractionOrigin,
    /// What is asked.
    pub question: Question,
    /// Since when it can be answered.
    pub opened_at: Timestamp,
    /// When it will be decided without a person, or be given up.
    pub deadline_at: Option<Timestamp>,
    /// Whether it can still be answered.
    pub state: InteractionState,
}

/// Who asked, and so where the answer must go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InteractionOrigin {
    /// The engine, as the ending of its turn: the answer is the next turn's prompt.
    TurnEnd,
    /// The engine, inside its turn: the answer goes to that process, under the engine's own gate id.
    Gate {
        /// The engine's name for the request.
        gate: String,
        /// What it wants.
        purpose: GatePurpose,
    },
    /// Abide itself, because the run cannot go on alone.
    Abide(RuntimeQuestion),
}

/// What a request inside a turn wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatePurpose {
    /// Permission. Only a person ever gives it.
    Approval,
    /// Information.
    Input,
}

/// Why Abide itself asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeQuestion {
    /// A person stopped the turn; only a person knows what should happen next.
    Interrupted,
    /// Contact was lost and the turn's outcome could not be found out (E8).
    OutcomeUnknown,
    /// The turn could not be started, as often as that is tried. It certainly did nothing.
    FailedRepeatedly,
    /// The process of a turn ended while a request inside it was open, so the request is void (A10).
    RequestVoid,
    /// An orderly stop of the daemon stopped the turn.
    StoppedByShutdown,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// A hint for front ends; it never restricts the answer (D2).
    pub kind: InteractionKind,
    /// The question itself.
    pub prompt: String,
    /// Suggested answers.
    #[serde(default)]
    pub options: Vec<InteractionOption>,
    /// Display hints of the engine, as JSON text that means nothing to us.
    #[serde(default)]
    pub ui_hints: Option<String>,
    /// What to do if nobody answers and the run allows it.
    pub default_decision_policy: DecisionPolicy,
    /// What an approval covers. The prompt is then its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Box<ApprovalContext>>,
    /// What the prompt does not show because it is too long.
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
    /// Anything.
    OpenText,
    /// A risk to be acknowledged. Never acknowledged by a timeout.
    RiskAck,
}

impl InteractionKind {
    /// The kind of that name; an unknown name is `open_text` (D1).
    pub fn named(name: &str) -> Self {
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
        String::deserialize(deserializer).map(|name| Self::named(&name))
    }
}

/// A suggested answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractionOption {
    /// What it says.
    pub label: String,
    /// Marked by the asker as the one that does no harm.
    #[serde(default)]
    pub safe: bool,
}

/// What to do if nobody answers (D1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionPolicy {
    /// The engine decides for itself.
    EngineJudgement,
    /// The option marked safe, or no.
    SafeDefault,
    /// End the run rather than invent an answer.
    Abort,
}

impl DecisionPolicy {
    /// The word itself.
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
    /// It can.
    Open,
    /// It was, once and for all.
    Answered(InteractionResolution),
    /// It never was, and no longer matters.
    Closed {
        /// When that was.
        at: Timestamp,
        /// Why.
        because: CloseReason,
    },
}

/// How an interaction was answered (D8).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractionResolution {
    /// By a person or by policy.
    pub resolution_mode: ResolutionMode,
    /// When.
    pub resolved_at: Timestamp,
    /// By whom: a person's name as the channel gives it, or `policy`.
    pub resolved_by: String,
    /// Why policy answered, if it did.
    pub auto_decide_reason: Option<AutoDecideReason>,
    /// What was answered.
    pub text: String,
    /// The key under which the same answer may be sent again without harm.
    pub idempotency_key: Option<String>,
    /// What the answer means, if it is the answer to an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ApprovalVerdict>,
}

/// By a person or by policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolutionMode {
    /// A person answered.
    UserReply,
    /// Nobody did; the question's policy was applied.
    AutoDecideTimeout,
}

/// Why an interaction was closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// The engine took it back.
    Withdrawn,
    /// A newer message made it moot.
    Superseded,
    /// The turn or run was stopped by a person.
    Stopped,
    /// The run failed.
    RunFailed,
    /// The policy was to abort.
    Aborted,
    /// The process that wanted the answer has ended, so no answer can reach it (A10).
    Void,
}

impl Interaction {
    /// It can be answered.
    pub fn is_open(&self) -> bool {
        self.state == InteractionState::Open
    }

    /// Whether it asks for permission: an engine does inside its turn, or a risk is to be acknowledged.
    pub fn is_approval(&self) -> bool {
        self.question.kind == InteractionKind::RiskAck
            || matches!(&self.asker, InteractionOrigin::Gate { purpose: GatePurpose::Approval, .. })
    }

    /// Whether it is the engine's request of that name.
    pub(crate) fn is_of_gate(&self, gate: &str) -> bool {
        match &self.asker {
            InteractionOrigin::Gate { gate: its, .. } => its == gate,
            InteractionOrigin::TurnEnd | InteractionOrigin::Abide(_) => false,
        }
    }

    pub(crate) fn close(&mut self, because: CloseReason, at: Timestamp) {
        if self.is_open() {
            self.state = InteractionState::Closed { at, because };
        }
    }
}
