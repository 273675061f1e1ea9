//! Questions and answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A question, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interaction {
    /// Its name.
    pub interaction_id: String,
    /// Its run.
    pub run_id: String,
    /// The turn that asks.
    pub turn_id: String,
    /// A hint for front ends; it never restricts the answer.
    pub kind: InteractionKind,
    /// The question itself.
    pub prompt: String,
    /// Suggested answers.
    pub options: Vec<Choice>,
    /// Display hints of the engine.
    pub ui_hints: Option<serde_json::Value>,
    /// What to do if nobody answers and the run allows it.
    pub default_decision_policy: DecisionPolicy,
    /// Who asks: `turn_end`, `approval`, `input` or `abide`.
    pub asked_by: String,
    /// Whether it can be answered.
    pub state: InteractionState,
    /// When it was put.
    pub opened_at: String,
    /// When the wait for it ends.
    pub deadline_at: Option<String>,
    /// By a person or by policy.
    pub resolution_mode: Option<ResolutionMode>,
    /// When it was answered or closed.
    pub resolved_at: Option<String>,
    /// By whom.
    pub resolved_by: Option<String>,
    /// Why policy answered, if it did.
    pub auto_decide_reason: Option<String>,
    /// The answer.
    pub reply: Option<String>,
    /// Why it was closed without an answer.
    pub closed_because: Option<String>,
}

/// The kinds of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// A risk to be acknowledged.
    RiskAck,
}

/// What to do if nobody answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionPolicy {
    /// The engine decides for itself.
    EngineJudgement,
    /// The option marked safe, or no.
    SafeDefault,
    /// End the run rather than invent an answer.
    Abort,
}

/// A suggested answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Choice {
    /// What it says.
    pub label: String,
    /// Marked by the asker as the one that does no harm.
    pub safe: bool,
}

/// Whether a question can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InteractionState {
    /// It can.
    Open,
    /// It was.
    Answered,
    /// It never was, and no longer matters.
    Closed,
}

/// By a person or by policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResolutionMode {
    /// A person answered.
    UserReply,
    /// Nobody did; the question's policy was applied.
    AutoDecideTimeout,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// What is answered: any text.
    #[schema(max_length = 1_000_000)]
    pub text: String,
    /// The same answer under the same key may be sent again without harm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub idempotency_key: Option<String>,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replied {
    /// Whether it was the first.
    pub resolution: ReplyResolution,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyResolution {
    /// It was the first, and counts.
    Accepted,
    /// It came before, under the same key.
    Idempotent,
}
