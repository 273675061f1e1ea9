//! Questions, approvals and their answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A question, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Interaction)]
pub struct InteractionView {
    /// `int_` and 26 digits.
    pub interaction_id: String,
    /// `run_` and 26 digits.
    pub run_id: String,
    /// The turn that asks.
    pub turn_id: String,
    /// A hint for front ends; it never restricts the answer.
    pub kind: InteractionKindValue,
    /// The question itself.
    pub prompt: String,
    /// Suggested answers.
    pub options: Vec<InteractionOptionView>,
    /// Display hints of the engine.
    pub ui_hints: Option<serde_json::Value>,
    /// The subject of an approval. The prompt is its text.
    #[serde(default)]
    pub context: Option<ApprovalContextView>,
    /// Present if the prompt is too long to be shown completely. Its full text is the interaction's content, and a yes counts
    /// only with the digits that stand at the end of it.
    #[serde(default)]
    pub hidden: Option<HiddenContentView>,
    /// Applied if no answer comes and the run allows it.
    pub default_decision_policy: DecisionPolicyValue,
    /// Origin of the question: `turn_end`, `approval`, `input` or `abide`.
    pub asked_by: String,
    /// Whether it can be answered.
    pub state: InteractionStateValue,
    /// When it was put.
    pub opened_at: String,
    /// When the wait for it ends.
    pub deadline_at: Option<String>,
    /// By a person or by policy.
    pub resolution_mode: Option<ResolutionModeValue>,
    /// When it was answered or closed.
    pub resolved_at: Option<String>,
    /// The name of the person, or of the policy.
    pub resolved_by: Option<String>,
    /// Why policy answered, if it did.
    pub auto_decide_reason: Option<String>,
    /// The answer.
    pub reply: Option<String>,
    /// Why it was closed without an answer.
    pub closed_because: Option<String>,
    /// The decision of an answer to an approval.
    #[serde(default)]
    pub verdict: Option<VerdictValue>,
}

/// The subject of an approval. The fields depend on the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Context)]
pub struct ApprovalContextView {
    /// The action that needs approval.
    #[serde(rename = "type")]
    pub kind: ApprovalContextType,
    /// `command`: the text that a shell reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// `command`: the program and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// `command`: the directory that it is run in, if the engine tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// `file_change`: each file with its change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileChangeView>>,
    /// `tool`: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `tool`: its arguments. A repeated name has a number appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<serde_json::Map<String, serde_json::Value>>,
    /// The engine's name for the tool that would run the command or change the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Every other part of the request.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub rest: serde_json::Map<String, serde_json::Value>,
    /// The description by the engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Whether texts were shortened because the whole is too large; it is the interaction's content.
    #[serde(default)]
    pub cut: bool,
}

/// The kind of action that needs approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ContextType)]
pub enum ApprovalContextType {
    /// A command is run.
    Command,
    /// Files are changed.
    FileChange,
    /// A tool is used.
    Tool,
}

/// The change of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FileChange)]
pub struct FileChangeView {
    /// The path as the engine gives it.
    pub path: String,
    /// `write`, `edit` or `delete`.
    pub change: String,
    /// The lines that go, with `-`, and those that come, with `+`.
    pub diff: String,
    /// Whether the diff was shortened.
    pub cut: bool,
}

/// Content that is too long for a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Hidden)]
pub struct HiddenContentView {
    /// How many bytes of the content the prompt does not show.
    pub bytes: u64,
    /// How many bytes the content has.
    pub content_bytes: u64,
    /// The SHA-256 of the content, 64 hexadecimal digits. A yes names the first 8 of them.
    pub sha256: String,
}

/// The decision of an answer to an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Verdict)]
pub enum VerdictValue {
    /// The action may be performed.
    Approved,
    /// The action is not performed.
    Declined,
}

/// The kinds of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = InteractionKind)]
pub enum InteractionKindValue {
    /// One of the options.
    ChooseOne,
    /// Yes or no.
    Confirm,
    /// Several values.
    FillFields,
    /// Free text.
    OpenText,
    /// A risk to be acknowledged.
    RiskAck,
}

/// The decision if no answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DecisionPolicy)]
pub enum DecisionPolicyValue {
    /// The engine decides for itself.
    EngineJudgement,
    /// The option marked safe, or no.
    SafeDefault,
    /// End the run rather than invent an answer.
    Abort,
}

/// A suggested answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Choice)]
pub struct InteractionOptionView {
    pub label: String,
    /// Marked by the asker as the one that does no harm.
    pub safe: bool,
    /// Whether choosing it gives permission; null where no permission is asked for, or where that is not plain.
    #[serde(default)]
    pub approves: Option<bool>,
}

/// Whether a question can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = InteractionState)]
pub enum InteractionStateValue {
    /// Not answered yet.
    Open,
    /// Answered by a person or a policy.
    Answered,
    /// It never was, and no longer matters.
    Closed,
}

/// By a person or by policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResolutionMode)]
pub enum ResolutionModeValue {
    /// A person answered.
    UserReply,
    /// No person answered; the question's policy was applied.
    AutoDecideTimeout,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Reply)]
pub struct ReplyRequest {
    /// Any text.
    #[schema(max_length = 1_000_000)]
    pub text: String,
    /// The same answer under the same key may be sent again without harm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub idempotency_key: Option<String>,
}

/// The result of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Replied)]
pub struct ReplyResponse {
    /// Whether it was the first.
    pub resolution: ReplyResolution,
    /// The decision, if it answers an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictValue>,
}

/// The result of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyResolution {
    /// It was the first, and counts.
    Accepted,
    /// It came before, under the same key.
    Idempotent,
}
