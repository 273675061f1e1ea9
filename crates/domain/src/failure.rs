//! Failures of runs and turns, with stable codes for people and programs.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// A failure that is shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// The kind of failure, for programs.
    pub code: FailureCode,
    /// The description, for people.
    pub message: String,
}

impl RunFailure {
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
    /// A sticky process received no answer before the timeout (A10).
    InteractionWaitTimeout,
    /// The process that waited for an answer is gone (A10).
    InteractionProcessLost,
    /// The question's policy was to abort instead of deciding (D7).
    InteractionAborted,
    /// The engine's program is not installed.
    EngineNotFound,
    EngineFailed,
    /// The engine requires a login.
    EngineAuthRequired,
    /// The turn exceeded its time limit.
    TurnTimeout,
    /// The outcome of the turn cannot be determined (E8).
    RecoveryFailed,
    /// The workspace cannot be used.
    WorkspaceUnusable,
    /// A person ended the run.
    CanceledByUser,
    /// A shutdown of the daemon ended a process without which the run could not continue.
    StoppedByShutdown,
}
