//! Why a call was not done, by what the caller can do next.

use abide_keeper::KeeperError;
use abide_keeper::protocol::KeeperRefusal;

/// The codes that clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalErrorCode {
    /// There is no such session.
    SessionNotFound,
    /// A command is running in it.
    SessionBusy,
    /// It has ended.
    SessionTerminated,
    /// The pool is full.
    MaxSessionsReached,
    /// The shell is not there.
    ShellNotFound,
    /// The shell did not start, or could not be brought back.
    ShellFailed,
    /// The working directory cannot be used.
    CwdUnusable,
    /// The request makes no sense.
    InvalidParams,
    /// Something is full for now.
    ResourcePressure,
    /// Our bug or the machine's trouble.
    Internal,
}

impl TerminalErrorCode {
    /// As it is written on the wire.
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

/// Why a call was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TerminalError {
    /// What kind of trouble.
    pub code: TerminalErrorCode,
    /// For people.
    pub message: String,
}

impl TerminalError {
    /// An error of this kind.
    pub fn new(code: TerminalErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// What a keeper's refusal means to a caller; while a session is being created, other trouble is the shell's.
    pub(crate) fn refused(refusal: &KeeperRefusal) -> Self {
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
            KeeperError::Refused(refusal) => Self::refused(&refusal),
            KeeperError::Gone { .. } => Self::new(TerminalErrorCode::SessionTerminated, error.to_string()),
            KeeperError::Silent { .. } => Self::new(TerminalErrorCode::Internal, error.to_string()),
            KeeperError::System { what, source } => {
                let full = matches!(source.raw_os_error(), Some(11 | 12 | 23 | 24 | 28));
                let code =
                    if full { TerminalErrorCode::ResourcePressure } else { TerminalErrorCode::Internal };
                Self::new(code, format!("{what}: {source}"))
            }
            KeeperError::Protocol(_) => Self::new(TerminalErrorCode::Internal, error.to_string()),
        }
    }
}
