//! Errors of calls, by the reaction of the caller.

use abide_keeper::KeeperError;
use abide_keeper::protocol::KeeperRefusal;

/// The error codes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalErrorCode {
    /// The session does not exist.
    SessionNotFound,
    /// A command is running in the session.
    SessionBusy,
    /// The session has ended.
    SessionTerminated,
    /// The pool is full.
    MaxSessionsReached,
    /// The shell does not exist.
    ShellNotFound,
    /// The shell did not start, or could not be recovered.
    ShellFailed,
    /// The working directory cannot be used.
    CwdUnusable,
    /// The parameters are invalid.
    InvalidParams,
    /// A limit is reached; a retry may succeed.
    ResourcePressure,
    /// A bug, or a failure of the system.
    Internal,
}

impl TerminalErrorCode {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SessionNotFound => "SESSION_NOT_FOUND",
            Self::SessionBusy => "SESSION_BUSY",
            Self::SessionTerminated => "SESSION_TERMINATED",
            Self::MaxSessionsReached => "MAX_SESSIONS_REACHED",
            Self::ShellNotFound => "SHELL_NOT_FOUND",
            Self::ShellFailed => "SHELL_FAILED",
            Self::CwdUnusable => "CWD_UNUSABLE",
            Self::InvalidParams => "INVALID_PARAMS",
            Self::ResourcePressure => "RESOURCE_PRESSURE",
            Self::Internal => "INTERNAL",
        }
    }
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TerminalError {
    pub code: TerminalErrorCode,
    /// For people, a lower-case fragment.
    pub message: String,
}

impl TerminalError {
    pub fn new(code: TerminalErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Translates a keeper's refusal. During the creation of a session, other failures are attributed to the shell.
    pub(crate) fn from_refusal(refusal: &KeeperRefusal) -> Self {
        let code = match refusal {
            KeeperRefusal::Busy => TerminalErrorCode::SessionBusy,
            KeeperRefusal::Ended => TerminalErrorCode::SessionTerminated,
            KeeperRefusal::NotRunning
            | KeeperRefusal::NoInput
            | KeeperRefusal::Unknown
            | KeeperRefusal::Unsupported(_) => TerminalErrorCode::InvalidParams,
            KeeperRefusal::Full(_) => TerminalErrorCode::ResourcePressure,
            KeeperRefusal::Program(_) => TerminalErrorCode::ShellNotFound,
            KeeperRefusal::Directory(_) => TerminalErrorCode::CwdUnusable,
            KeeperRefusal::Stranger | KeeperRefusal::Owned | KeeperRefusal::System(_) => {
                TerminalErrorCode::Internal
            }
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<KeeperError> for TerminalError {
    fn from(error: KeeperError) -> Self {
        match error {
            KeeperError::Refused(refusal) => Self::from_refusal(&refusal),
            KeeperError::NoKeeper { .. } => {
                Self::new(TerminalErrorCode::SessionTerminated, error.to_string())
            }
            KeeperError::Unresponsive { .. } => Self::new(TerminalErrorCode::Internal, error.to_string()),
            KeeperError::System { action: operation, source } => {
                let full = matches!(source.raw_os_error(), Some(11 | 12 | 23 | 24 | 28));
                let code =
                    if full { TerminalErrorCode::ResourcePressure } else { TerminalErrorCode::Internal };
                Self::new(code, format!("{operation}: {source}"))
            }
            KeeperError::Protocol(_) => Self::new(TerminalErrorCode::Internal, error.to_string()),
        }
    }
}
