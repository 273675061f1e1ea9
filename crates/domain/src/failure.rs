//! Why a run or turn failed, in codes that people and programs rely on.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// A failure that people see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// What kind, for programs.
    pub code: FailureCode,
    /// What happened, for people.
    pub message: String,
}

impl RunFailure {
    /// A failure of this kind.
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The run error codes of SPEC section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// The engine's session could not be continued (A11).
    SessionResumeFailed,
    /// Nobody answered a sticky process in time (A10).
    InteractionWaitTimeout,
    /// The process that waited for an answer is gone (A10).
    InteractionProcessLost,
    /// The question's policy was to abort rather than to invent an answer (D7).
    InteractionAborted,
    /// The engine's program is not there.
    EngineNotFound,
    /// The engine ended badly.
    EngineFailed,
    /// The engine wants a login.
    EngineAuthRequired,
    /// The turn worked longer than it may.
    TurnTimeout,
    /// What became of the turn cannot be found out (E8).
    RecoveryFailed,
    /// The workspace cannot be used.
    WorkspaceUnusable,
    /// A person ended the run.
    CanceledByUser,
    /// An orderly stop of the daemon ended the process that the run could not go on without.
    StoppedByShutdown,
}
