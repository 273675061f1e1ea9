//! What a run was asked to be. Set when it is created and never changed, so that turn 2 runs as turn 1 did (A9).

use alloc::{collections::BTreeMap, string::String};

use serde::{Deserialize, Serialize};

use crate::time::Seconds;

/// How long a sticky process is held for an answer unless the run says otherwise (A10).
pub const DEFAULT_SESSION_TIMEOUT: Seconds = Seconds(1200);

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSettings {
    /// The engine's name in the registry; opaque here.
    pub engine: String,
    /// The directory that every turn works in.
    pub workspace: String,
    /// Whether and how it may ask.
    pub execution_mode: ExecutionMode,
    /// Where results go. Without one they are read from the ledger, and being there is being delivered.
    pub conversation_ref: Option<String>,
    /// Strict by default (D4).
    pub unanswered: UnansweredPolicy,
    /// See [`crate::engine::EngineInteractiveProfile::session_timeout_sec`].
    pub session_timeout_sec: Seconds,
    /// The most that one turn may work, the time spent waiting for a person not counted. Default none.
    pub turn_timeout_sec: Option<Seconds>,
    /// What a message does when it finds a turn at work and does not say.
    pub on_busy: OnBusy,
    /// The model, if not the engine's own choice.
    pub model: Option<String>,
    /// The sandbox setting; carried over to every turn, never widened (A4).
    pub sandbox: Option<String>,
    /// How the engine is isolated from Abide's own files, if not as the configuration says; for every turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// A folder with a skill (`SKILL.md`) to be copied to where the engine looks for skills in the workspace. A relative
    /// one is meant from the workspace.
    pub skill: Option<String>,
    /// The owner's own notes.
    pub labels: BTreeMap<String, String>,
}

/// Whether and how a run may ask (SPEC section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionMode {
    /// Never waits for a person: what is asked is decided on the spot.
    Auto,
    /// May ask; over when the engine is done.
    Interactive,
    /// Open-ended: idle after each answer.
    Chat,
}

/// What happens to a question that nobody answers in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnansweredPolicy {
    /// `interactive_require_user_reply = true`: only a person answers.
    Strict,
    /// At the deadline the question's own policy answers, marked as such.
    AutoDecide,
}

/// What a message does when it finds a turn at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBusy {
    /// It waits for its own turn.
    Queue,
    /// It is put into the running turn where the engine can take it; else it waits.
    Steer,
    /// It ends the running turn, whose output is then never shown (E9).
    Supersede,
}
