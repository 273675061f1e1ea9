//! The settings of a run. They are fixed at its creation, so that turn 2 runs as turn 1 did (A9).

use alloc::{collections::BTreeMap, string::String};

use serde::{Deserialize, Serialize};

use crate::time::Seconds;

/// The default time that a sticky process is kept for an answer (A10).
pub const DEFAULT_SESSION_TIMEOUT: Seconds = Seconds(1200);

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSettings {
    /// The engine's name in the registry; opaque to the domain.
    pub engine: String,
    /// The working directory of all turns.
    pub workspace: String,
    /// Whether and how the run may ask questions.
    pub execution_mode: ExecutionMode,
    /// The target of results. Without one, results are read from the ledger and count as delivered there.
    pub conversation_ref: Option<String>,
    /// Strict by default (D4).
    pub unanswered: UnansweredPolicy,
    /// See [`crate::engine::EngineInteractiveProfile::session_timeout_sec`].
    pub session_timeout_sec: Seconds,
    /// The maximum execution time of one turn, without the time spent waiting for a person. Default: no limit.
    pub turn_timeout_sec: Option<Seconds>,
    /// The default for messages that arrive during a turn.
    pub on_busy: OnBusy,
    /// None selects the engine's default.
    pub model: Option<String>,
    /// Applies to every turn and is never widened (A4).
    pub sandbox: Option<String>,
    /// The isolation from Abide's own files. None selects the configured one. Applies to every turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// A folder with a skill (`SKILL.md`), absolute or relative to the workspace. It is copied to the folder of the
    /// workspace in which the engine looks for skills.
    pub skill: Option<String>,
    /// Arbitrary labels of the owner.
    pub labels: BTreeMap<String, String>,
}

/// Whether and how a run may ask questions (SPEC section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionMode {
    /// Never waits for a person. Questions are decided immediately.
    Auto,
    /// May ask questions. The run ends when the engine has finished.
    Interactive,
    /// Open-ended. The run is idle after each answer.
    Chat,
}

/// The treatment of a question that is not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnansweredPolicy {
    /// `interactive_require_user_reply = true`: only a person answers.
    Strict,
    /// At the deadline the question's own policy answers. The answer is marked as automatic.
    AutoDecide,
}

/// The effect of a message that arrives during a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBusy {
    /// The message waits for its own turn.
    Queue,
    /// The message is added to the running turn if the engine supports it. Otherwise it waits.
    Steer,
    /// The message ends the running turn, whose output is then not shown (E9).
    Supersede,
}
