//! The error type of the crate, by the reaction of the caller.

use std::{io, path::PathBuf};

/// Why an operation below a directory failed. Every variant names the path.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// A component of the path is a symbolic link. It was not followed.
    #[error("{path} is a symbolic link, which is not followed; replace it by a file or directory")]
    SymbolicLink {
        /// The path of the link.
        path: PathBuf,
    },
    /// The path is a directory, FIFO, socket or device instead of a regular file.
    #[error("{path} is not a regular file")]
    NotRegular { path: PathBuf },
    /// The file exceeds the caller's limit.
    #[error("{path} has more than {max_bytes} bytes")]
    TooLarge { path: PathBuf, max_bytes: u64 },
    /// The path is empty, absolute, or contains `..` or a NUL byte.
    #[error(
        "{path:?} is not a path below a directory: it is empty, absolute, or contains `..` or a NUL byte"
    )]
    InvalidPath { path: PathBuf },
    /// A system call failed.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// A verb, for example `open`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl OsError {
    /// The kind of the system error; `Other` for the other variants.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::System { source, .. } => source.kind(),
            Self::SymbolicLink { .. }
            | Self::NotRegular { .. }
            | Self::TooLarge { .. }
            | Self::InvalidPath { .. } => io::ErrorKind::Other,
        }
    }

    /// Whether the file or directory does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }
}

impl From<OsError> for io::Error {
    fn from(error: OsError) -> Self {
        Self::new(error.kind(), error)
    }
}
