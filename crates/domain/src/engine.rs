//! What the domain knows of an engine: its session handle, how it can wait, and which optional abilities it claims.
//!
//! How an engine is started and what its bytes mean is not here; nothing here knows an engine by its name.

use alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::time::Seconds;

/// The engine's own session id (A1). Opaque: everything but its adapter may store and compare it, nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSessionHandle {
    /// The engine that issued it.
    pub engine: String,
    /// What kind of thing the value is.
    pub handle_type: HandleType,
    /// The value.
    pub handle_value: String,
    /// The turn in which it was first announced.
    pub created_at_turn: u32,
}

/// What kind of thing a handle's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandleType {
    /// An id that the engine's command line takes.
    SessionId,
    /// A file that holds the session.
    SessionFile,
    /// Something else.
    Opaque,
}

/// How a run's engine waits for a person (A2): resolved once, before the first launch, and never flipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInteractiveProfile {
    /// The way of waiting.
    pub kind: ProfileKind,
    /// Why this way, for people.
    pub reason: String,
    /// How long a sticky process is held, and how long an unattended question stays open.
    pub session_timeout_sec: Seconds,
}

/// The two ways of waiting (A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileKind {
    /// The process ends, the slot is free, a new process resumes the session.
    Resumable,
    /// The process stays and keeps its slot; the reply goes to that same process.
    StickyProcess,
}

/// How an engine's program is called in every turn of a run (A9). Values of variables are secrets and are not stored: each
/// launch takes them from the configuration of that moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCommand {
    /// The program and the arguments that come first.
    pub command: Vec<String>,
    /// Arguments of the owner for every turn.
    pub args: Vec<String>,
    /// The names of the variables that are set on top of the environment.
    pub env: Vec<String>,
    /// Which variables of the environment it gets: names, or beginnings followed by `*`. None in journals of versions that
    /// passed the whole environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_env: Option<Vec<String>>,
    /// How it is isolated unless the run says so itself. None in journals of versions that isolated nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
}

/// Whether an engine can resume (A3), and how that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineResumeCapability {
    /// Whether it can.
    pub supported: bool,
    /// How that was found out.
    pub probe_method: ProbeMethod,
    /// What was seen, for people.
    pub detail: String,
}

/// How a capability was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeMethod {
    /// By running the program.
    Command,
    /// By asking its interface.
    Api,
    /// By looking at its files.
    Filesystem,
}

/// The optional abilities (E1) on which a rule about state depends. What happens without each is written at its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAbilities {
    /// A message can be put into the running turn. Without it, a message that would steer waits for its own turn.
    pub steer: bool,
    /// A turn's result can be read back after contact was lost. Without it, a lost turn needs a person at once.
    pub recover: bool,
}

/// How thoroughly to ask an engine what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeDepth {
    /// What was collected at start-up is enough: the run will never wait for a person.
    Static,
    /// Try it, cheaply, before the first turn.
    Dynamic,
}
