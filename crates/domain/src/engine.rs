//! The domain's view of an engine: session handle, wait mode and optional abilities.
//!
//! Starting engines and interpreting their output is not part of the domain, and no engine is known by name.

use alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::time::Seconds;

/// The engine's own session id (A1). Opaque: only its adapter may interpret it; other code stores and compares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSessionHandle {
    /// The engine that issued it.
    pub engine: String,
    pub handle_type: HandleType,
    pub handle_value: String,
    /// The index of the turn in which it was first announced.
    pub created_at_turn: u32,
}

/// The kind of a handle's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandleType {
    /// An id for the engine's command line.
    SessionId,
    /// The path of a file with the session.
    SessionFile,
    /// Any other kind.
    Opaque,
}

/// The wait mode of a run (A2). Determined once, before the first launch, and never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInteractiveProfile {
    pub kind: ProfileKind,
    /// The reason for the mode, for people.
    pub reason: String,
    /// The time that a sticky process is kept, and that an unattended question stays open.
    pub session_timeout_sec: Seconds,
}

/// The two wait modes (A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileKind {
    /// The process exits and the slot is released. A new process resumes the session.
    Resumable,
    /// The process stays alive and keeps its slot. The reply goes to the same process.
    StickyProcess,
}

/// The command of an engine's program for all turns of a run (A9). Values of variables are secrets and are not stored.
/// Each launch takes them from the current configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCommand {
    /// The program and its leading arguments.
    pub command: Vec<String>,
    /// Arguments that the owner configured for every turn.
    pub args: Vec<String>,
    /// The names of the variables that are added to the environment.
    pub env: Vec<String>,
    /// Variables that are inherited: names, or prefixes followed by `*`. None in journals of versions that passed the
    /// whole environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_env: Option<Vec<String>>,
    /// The isolation for runs that do not set their own. None in journals of versions without isolation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
}

/// Whether an engine can resume sessions (A3), with the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineResumeCapability {
    pub supported: bool,
    pub probe_method: ProbeMethod,
    /// The observation, for people.
    pub detail: String,
}

/// The method by which a capability was determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeMethod {
    /// Running the program.
    Command,
    /// Calling its API.
    Api,
    /// Examining its files.
    Filesystem,
}

/// The optional abilities (E1) on which the state machine depends. The behaviour without each is described where it is
/// used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAbilities {
    /// A message can be added to the running turn. Without it, such a message waits for its own turn.
    pub steer: bool,
    /// The result of a turn can be read back after contact was lost. Without it, a person is asked immediately.
    pub recover: bool,
}

/// The thoroughness of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeDepth {
    /// The results collected at start-up suffice, because the run never waits for a person.
    Static,
    /// The program is probed, at low cost, before the first turn.
    Dynamic,
}
