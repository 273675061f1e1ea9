//! Requests for runs, and the views of runs and turns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The parameters of a new run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRunRequest {
    /// Name of an engine in `GET /v1/engines`.
    #[schema(min_length = 1, max_length = 100, example = "parrot")]
    pub engine: String,
    /// The task for the engine.
    #[schema(min_length = 1, max_length = 1_000_000, example = "say hello")]
    pub prompt: String,
    /// Working directory of all turns, an absolute path; default: a new directory of the run. Abide's home and its own
    /// folders there are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub workspace: Option<String>,
    /// Default `interactive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_mode: Option<ExecutionModeValue>,
    /// The conversation that receives results and questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub conversation_ref: Option<String>,
    /// A folder with a skill (`SKILL.md`). It is copied to the skill folder of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 4096,
        pattern = r"^(?:[^\x00-\x1f]*/)?[^/.\-`\x00-\x1f\x7f-\x9f][^/`\x00-\x1f\x7f-\x9f]*/*$"
    )]
    pub skill: Option<String>,
    /// Labels of the client, which Abide does not interpret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub options: RunOptions,
}

/// The options of a run. They apply to every turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunOptions {
    /// Whether only a person may answer; default true. If false, the policy of the question answers at the deadline,
    /// and the answer is marked as automatic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interactive_require_user_reply: Option<bool>,
    /// Time that a process is kept for an answer, and after which policy answers, in seconds; default 1200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub session_timeout_sec: Option<u32>,
    /// Time limit of a turn in seconds, without the time spent waiting for a person; default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub turn_timeout_sec: Option<u32>,
    /// The effect of a message on a running turn, if the message does not state it; default `queue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_busy: Option<OnBusyValue>,
    /// Default: the choice of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200, pattern = "^[^-]")]
    pub model: Option<String>,
    /// Default: the choice of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxValue>,
    /// Default: the configured value. A value that may protect less than that needs the permission `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationValue>,
}

/// Whether and how a run may ask questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionModeValue {
    /// Never waits for a person.
    Auto,
    /// May ask questions. The run ends when the engine has finished.
    Interactive,
    /// Open-ended. The run is idle after each answer.
    Chat,
}

/// The effect of a message on a running turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBusyValue {
    /// The message waits for its own turn.
    Queue,
    /// The message is added to the running turn if the engine supports it. Otherwise it waits.
    Steer,
    /// The message ends the running turn, whose output is then not shown.
    Supersede,
}

/// The files that an engine may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxValue {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

/// The isolation of an engine from Abide's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationValue {
    /// A mount namespace if the machine permits it; otherwise none, with a warning.
    Auto,
    /// A mount namespace. Without one, the run is refused.
    Namespace,
    /// Landlock. Without it, the run is refused.
    Landlock,
    /// None.
    Off,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatusValue {
    /// Waits for a slot.
    Queued,
    /// Holds a slot and executes a turn.
    Running,
    /// A question is open.
    WaitingUser,
    /// A chat between turns.
    Idle,
    Succeeded,
    Failed,
    /// Ended by a person.
    Canceled,
}

impl RunStatusValue {
    /// Whether the status is final.
    pub fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::Running | Self::WaitingUser | Self::Idle => false,
            Self::Succeeded | Self::Failed | Self::Canceled => true,
        }
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    pub run_id: String,
    pub engine: String,
    /// Working directory of all turns, without symbolic links.
    pub workspace: String,
    pub execution_mode: ExecutionModeValue,
    pub status: RunStatusValue,
    /// Set if the run failed or was canceled.
    pub error: Option<RunErrorView>,
    /// Index of the latest turn; 0 before the first.
    pub turn_index: u32,
    /// The question that can be answered; null if there is none.
    pub pending_interaction_id: Option<String>,
    /// The wait mode of the engine; null before it is known.
    pub profile: Option<ProfileView>,
    /// The engine's own session id; null before it is known.
    pub engine_session: Option<String>,
    /// Time at which the wait ends without an answer; null if it has no limit.
    pub wait_deadline_at: Option<String>,
    /// Number of questions decided without a person.
    pub auto_decision_count: u32,
    pub last_auto_decision_at: Option<String>,
    pub conversation_ref: Option<String>,
    /// The result of the latest completed turn.
    pub result: Option<RunResultView>,
    /// Labels of the client.
    pub labels: BTreeMap<String, String>,
    pub skill: Option<String>,
    /// The options of the request, with defaults for the others.
    pub options: RunOptions,
    /// Position in the queue, from 1; null if the run does not wait for a slot.
    pub queue_position: Option<u64>,
    /// Time of the last output of the turn, if it is longer ago than `stall_after_sec`. The turn continues.
    pub stalled_since: Option<String>,
    /// Reason why a queued run does not start although a slot may be free: too little disk space.
    #[serde(default)]
    pub blocked_reason: Option<String>,
    pub created_at: String,
    pub updated_at: String,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunResultView {
    pub text: String,
}

/// The error of a run or turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunErrorView {
    /// For programs, such as `ENGINE_NOT_FOUND`.
    pub code: String,
    /// For people.
    pub message: String,
}

/// The wait mode of an engine, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    pub kind: ProfileKindValue,
    /// The evidence, for people.
    pub reason: String,
    /// Time that a process is kept for an answer, in seconds.
    pub session_timeout_sec: u32,
}

/// The wait mode of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProfileKindValue {
    /// The process exits, and a new process resumes the session.
    Resumable,
    /// The process stays alive and keeps its slot.
    StickyProcess,
}

impl ProfileKindValue {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resumable => "resumable",
            Self::StickyProcess => "sticky_process",
        }
    }
}

/// An entry of the turn ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnView {
    pub turn_id: String,
    pub run_id: String,
    /// Position in the run, from 1.
    pub turn_index: u32,
    /// The message that started it; null if an answer did.
    pub message_id: Option<String>,
    /// The question whose answer started it; null if a message did.
    pub interaction_id: Option<String>,
    /// The beginning of the prompt.
    pub prompt_preview: String,
    /// `running`, `waiting_approval`, `waiting_user_input`, `pending_recovery`, `recovery_required`, `completed`,
    /// `failed`, `interrupted` or `superseded`.
    pub execution_status: String,
    /// State of its process, as far as it is known: `starting`, `active`, `lost` or `ended`.
    pub runtime_status: String,
    /// The complete output.
    pub reply: Option<String>,
    /// The beginning of the output.
    pub reply_preview: Option<String>,
    /// Set if the turn failed.
    pub error: Option<RunErrorView>,
    pub started_at: String,
    /// Time at which its end became durable.
    pub result_persisted_at: Option<String>,
    /// State of the delivery of its output: `not_ready`, `pending`, `delivered`, `suppressed` or
    /// `delivery_unavailable`.
    pub delivery_status: String,
    pub delivered_at: Option<String>,
    /// The message that superseded it.
    pub superseded_by_message_id: Option<String>,
    /// The turn that superseded it.
    pub superseded_by_turn_id: Option<String>,
    pub superseded_reason: Option<String>,
    /// One entry for each process launched for it.
    pub attempts: Vec<AttemptView>,
}

/// One process launched for a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// Unique per run; increases by one for each launch.
    pub attempt: u32,
    /// Null before the process was started.
    pub pid: Option<u32>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// 128 + n after death by signal n; null if it is not known.
    pub exit_code: Option<i32>,
}

/// The result of a request to interrupt a turn or to cancel a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedResponse {
    /// False if there was nothing to stop.
    pub accepted: bool,
}
