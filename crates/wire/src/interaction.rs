//! Questions, approvals and their answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A question or an approval request, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InteractionView {
    pub interaction_id: String,
    pub run_id: String,
    /// The turn that asked.
    pub turn_id: String,
    /// A hint for front ends; it never restricts the answer.
    pub kind: InteractionKindValue,
    pub prompt: String,
    /// Suggested answers.
    pub options: Vec<InteractionOptionView>,
    /// Display hints of the engine, as the engine sent them.
    pub ui_hints: Option<serde_json::Value>,
    /// The content of an approval. The prompt is its text.
    #[serde(default)]
    pub context: Option<ApprovalContextView>,
    /// Set if the content is too long for the prompt. `GET /v1/interactions/{interaction_id}/content` returns all of
    /// it, and a yes is accepted only with the digits at its end.
    #[serde(default)]
    pub hidden: Option<HiddenContentView>,
    /// The decision at the deadline, if the run permits one without a person.
    pub default_decision_policy: DecisionPolicyValue,
    /// `turn_end`, `approval`, `input` or `abide`.
    pub asked_by: String,
    pub state: InteractionStateValue,
    pub opened_at: String,
    /// Null if the question waits without a limit.
    pub deadline_at: Option<String>,
    /// Null before the answer.
    pub resolution_mode: Option<ResolutionModeValue>,
    /// Time of the answer, or of closing without an answer.
    pub resolved_at: Option<String>,
    /// Name of the person, or `policy`.
    pub resolved_by: Option<String>,
    /// Set if policy answered.
    pub auto_decide_reason: Option<AutoDecideReasonValue>,
    /// Text of the answer.
    pub reply: Option<String>,
    /// Reason for closing without an answer.
    pub closed_because: Option<String>,
    /// Set for an answered approval.
    #[serde(default)]
    pub verdict: Option<VerdictValue>,
}

/// The content of an approval. The fields depend on the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalContextView {
    #[serde(rename = "type")]
    pub kind: ApprovalContextType,
    /// `command`: the command line for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// `command`: the program and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// `command`: the working directory, if the engine states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// `file_change`: the files with their changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileChangeView>>,
    /// `tool`: the name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `tool`: the arguments. A repeated name is followed by its number, such as `path (2)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<serde_json::Map<String, serde_json::Value>>,
    /// The engine's name for the tool that runs the command or changes the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// All other fields of the request.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub other_fields: serde_json::Map<String, serde_json::Value>,
    /// The engine's own description of the action.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Whether texts were shortened. The complete text is the interaction's content.
    #[serde(default)]
    pub truncated: bool,
}

/// The type of an action that needs approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalContextType {
    Command,
    FileChange,
    Tool,
}

/// The change of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChangeView {
    /// As the engine states it.
    pub path: String,
    /// `write`, `edit` or `delete`.
    pub change: String,
    /// Removed lines begin with `-`, added lines with `+`.
    pub diff: String,
    /// Whether the diff was shortened.
    pub truncated: bool,
}

/// Content that is too long for a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HiddenContentView {
    /// Number of bytes that the prompt does not show.
    pub bytes: u64,
    /// Size of the content in bytes.
    pub content_bytes: u64,
    /// SHA-256 of the content, 64 hexadecimal digits. A yes must name the first 8 of them.
    pub sha256: String,
}

/// The meaning of the answer to an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictValue {
    Approved,
    Declined,
}

/// The kind of a question. It never restricts the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKindValue {
    /// One of the options.
    ChooseOne,
    /// Yes or no.
    Confirm,
    /// Several values.
    FillFields,
    OpenText,
    /// The acknowledgement of a risk; an approval.
    RiskAck,
}

/// The decision on a question that is not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionPolicyValue {
    /// The engine decides.
    EngineJudgement,
    /// The option that is marked safe; without one, no.
    SafeDefault,
    /// The run ends.
    Abort,
}

impl DecisionPolicyValue {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EngineJudgement => "engine_judgement",
            Self::SafeDefault => "safe_default",
            Self::Abort => "abort",
        }
    }
}

/// A suggested answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InteractionOptionView {
    pub label: String,
    /// Whether the engine marked it as harmless.
    pub safe: bool,
    /// Whether it gives permission; null if the question is not an approval, or if the label is unclear.
    #[serde(default)]
    pub approves: Option<bool>,
}

/// The state of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InteractionStateValue {
    /// It can be answered.
    Open,
    Answered,
    /// It was not answered and can no longer be answered.
    Closed,
}

/// The origin of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResolutionModeValue {
    /// A person.
    UserReply,
    /// The policy of the question, without a person.
    AutoDecideTimeout,
}

/// The reason for an answer by policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AutoDecideReasonValue {
    /// The deadline passed without an answer.
    UserNoReply,
    /// The run never waits for a person.
    AutoMode,
}

impl AutoDecideReasonValue {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserNoReply => "user_no_reply",
            Self::AutoMode => "auto_mode",
        }
    }
}

/// An answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplyRequest {
    /// Any text.
    #[schema(max_length = 1_000_000)]
    pub text: String,
    /// Sending the same answer with the same key again has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub idempotency_key: Option<String>,
}

/// The result of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplyResponse {
    pub resolution: ReplyResolution,
    /// Set if the question is an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictValue>,
}

/// Whether an answer was the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyResolution {
    /// It is the answer.
    Accepted,
    /// The same answer with the same key was accepted before.
    Idempotent,
}
