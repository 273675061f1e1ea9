//! Requests for runs, and the views of runs and turns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A run to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRun)]
pub struct CreateRunRequest {
    /// The engine, by its name in `GET /v1/engines`.
    #[schema(min_length = 1, max_length = 100, example = "parrot")]
    pub engine: String,
    /// The task for the engine.
    #[schema(min_length = 1, max_length = 1_000_000, example = "say hello")]
    pub prompt: String,
    /// The directory that every turn works in, an absolute path; a fresh one of the run's own unless given. Abide's home
    /// and its own folders there are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub workspace: Option<String>,
    /// Whether and how it may ask; `interactive` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_mode: Option<ExecutionModeValue>,
    /// The conversation that receives the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1000)]
    pub conversation_ref: Option<String>,
    /// A folder with a skill (`SKILL.md`), copied to where the engine looks for skills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 4096,
        pattern = r"^(?:[^\x00-\x1f]*/)?[^/.\-`\x00-\x1f\x7f-\x9f][^/`\x00-\x1f\x7f-\x9f]*/*$"
    )]
    pub skill: Option<String>,
    /// Notes of your own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Everything else that can be set.
    #[serde(default)]
    pub options: RunOptions,
}

/// Options of a run. They apply to every turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunOptions {
    /// Whether only a person may answer (strict); true unless given. If false, the question's own policy answers at the
    /// deadline, and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interactive_require_user_reply: Option<bool>,
    /// How long a process is held for an answer, and when policy answers; 1200 seconds unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub session_timeout_sec: Option<u32>,
    /// The most that a turn may work, the time spent waiting for a person not counted; no limit unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub turn_timeout_sec: Option<u32>,
    /// Effect of a message without its own setting while a turn runs; `queue` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_busy: Option<OnBusyValue>,
    /// The model, if not the engine's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200, pattern = "^[^-]")]
    pub model: Option<String>,
    /// Files that the engine may change: `read-only`, `workspace-write` or `danger-full-access`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxValue>,
    /// How the engine is kept from Abide's own files: `auto`, `namespace`, `landlock` or `off`; as configured unless given.
    /// A value that may protect less than the configured one needs the permission `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationValue>,
}

/// Whether and how a run may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ExecutionMode)]
pub enum ExecutionModeValue {
    /// Never asks.
    Auto,
    /// May ask; over when the engine is done.
    Interactive,
    /// Open-ended: idle after each answer.
    Chat,
}

/// Effect of a message while a turn runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnBusy)]
pub enum OnBusyValue {
    /// It waits for its own turn.
    Queue,
    /// It is put into the running turn where the engine can take it; else it waits.
    Steer,
    /// It ends the running turn, whose output is then never shown.
    Supersede,
}

/// Files that an engine may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Sandbox)]
pub enum SandboxValue {
    /// No files.
    ReadOnly,
    /// Files of the workspace.
    WorkspaceWrite,
    /// All files; no sandbox.
    DangerFullAccess,
}

/// How an engine is kept from Abide's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = Isolation)]
pub enum IsolationValue {
    /// By a namespace where the machine allows one; otherwise not, with a warning.
    Auto,
    /// By a namespace, or the run is refused.
    Namespace,
    /// By Landlock, or the run is refused.
    Landlock,
    /// No isolation.
    Off,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RunStatus)]
pub enum RunStatusValue {
    /// Waits for a slot.
    Queued,
    /// Holds a slot and works.
    Running,
    /// A question is open.
    WaitingUser,
    /// A chat between turns.
    Idle,
    /// Ended with a result.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Ended by a person or a policy.
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

/// A run as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Run)]
pub struct RunView {
    /// `run_` and 26 digits.
    pub run_id: String,
    /// Name of the engine.
    pub engine: String,
    /// The directory that it works in.
    pub workspace: String,
    /// Whether and how it may ask.
    pub execution_mode: ExecutionModeValue,
    pub status: RunStatusValue,
    /// Why it failed or was canceled.
    pub error: Option<RunErrorView>,
    /// The number of its latest turn, 0 before the first.
    pub turn_index: u32,
    /// The open question.
    pub pending_interaction_id: Option<String>,
    /// How its engine waits, once that is known.
    pub profile: Option<ProfileView>,
    /// The engine's own name for its session, once that is known. It means something to the engine alone.
    pub engine_session: Option<String>,
    /// When the wait ends without an answer.
    pub wait_deadline_at: Option<String>,
    /// Questions decided without a person.
    pub auto_decision_count: u32,
    /// When that last happened.
    pub last_auto_decision_at: Option<String>,
    /// The conversation that receives the results.
    pub conversation_ref: Option<String>,
    /// The result of the latest completed turn.
    pub result: Option<RunResultView>,
    /// Labels of the client.
    pub labels: BTreeMap<String, String>,
    /// The skill that its engine was given.
    pub skill: Option<String>,
    /// The options in force for every turn: those of the request, and defaults for the others.
    pub options: RunOptions,
    /// Its place in the queue, 1 being next; none if it does not wait for a slot.
    pub queue_position: Option<u64>,
    /// Since when its working turn has said nothing, if that is long enough to be worth a look. Nothing is done about it.
    pub stalled_since: Option<String>,
    /// Why a queued run does not start although there may be a slot for it: too little disk space.
    #[serde(default)]
    pub held_back: Option<String>,
    /// When it was created.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunResult)]
pub struct RunResultView {
    /// The answer of the engine.
    pub text: String,
}

/// Why a run or turn failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunError)]
pub struct RunErrorView {
    /// For programs, such as `ENGINE_NOT_FOUND`.
    pub code: String,
    /// For people.
    pub message: String,
}

/// How an engine waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Profile)]
pub struct ProfileView {
    /// `resumable` or `sticky_process`.
    pub kind: ProfileKindValue,
    /// How that is known.
    pub reason: String,
    /// How long a process is held for an answer.
    pub session_timeout_sec: u32,
}

/// How an engine waits for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ProfileKind)]
pub enum ProfileKindValue {
    /// Waits without a process.
    Resumable,
    /// Keeps its process while it waits.
    StickyProcess,
}

/// A turn, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Turn)]
pub struct TurnView {
    /// `turn_` and 26 digits.
    pub turn_id: String,
    /// `run_` and 26 digits.
    pub run_id: String,
    /// Its place in the run, from 1.
    pub turn_index: u32,
    /// The message that started it.
    pub message_id: Option<String>,
    /// The question whose answer started it.
    pub interaction_id: Option<String>,
    /// The beginning of what the engine was told.
    pub prompt_preview: String,
    /// Whether its work is done.
    pub execution_status: String,
    /// The last known state of its process.
    pub runtime_status: String,
    /// The complete answer.
    pub reply: Option<String>,
    /// The beginning of that.
    pub reply_preview: Option<String>,
    /// Why it failed.
    pub error: Option<RunErrorView>,
    /// RFC 3339 in UTC.
    pub started_at: String,
    /// When its ending became durable.
    pub result_persisted_at: Option<String>,
    /// Whether the person has what it said.
    pub delivery_status: String,
    /// When they got it.
    pub delivered_at: Option<String>,
    /// The message that took its place.
    pub superseded_by_message_id: Option<String>,
    /// The turn that took its place.
    pub superseded_by_turn_id: Option<String>,
    /// The reason.
    pub superseded_reason: Option<String>,
    /// Every process launched for it.
    pub attempts: Vec<AttemptView>,
}

/// One process launched for a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptView {
    /// Its number within the run.
    pub attempt: u32,
    /// Its process, once it was seen.
    pub pid: Option<u32>,
    /// When it was seen.
    pub started_at: Option<String>,
    /// When it was seen to be over.
    pub ended_at: Option<String>,
    /// How; 128 + n for death by signal n.
    pub exit_code: Option<i32>,
}

/// The result of a request to stop a turn or run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Stopped)]
pub struct AcceptedResponse {
    /// Whether there was anything to stop.
    pub accepted: bool,
}
