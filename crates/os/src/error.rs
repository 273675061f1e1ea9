//! The crate's error, by what the caller can do next.

use std::{io, path::PathBuf};

/// Why an operation below a directory failed. Every variant names the path.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// A symbolic link stands somewhere on the path. It was not followed.
    #[error("{path} is a symbolic link, which is not followed; replace it by a file or directory")]
    SymbolicLink {
        /// The link itself.
        path: PathBuf,
    },
    /// A directory, FIFO, socket or device stands where a regular file is expected.
    #[error("{path} is not a regular file")]
    NotRegular {
        /// What was opened.
        path: PathBuf,
    },
    /// The file has more bytes than the caller accepts.
    #[error("{path} has more than {max_bytes} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The caller's limit.
        max_bytes: u64,
    },
    /// The path is empty, absolute, or contains `..` or a NUL byte.
    #[error(
        "{path:?} is not a path below a directory: it is empty, absolute, or contains `..` or a NUL byte"
    )]
    InvalidPath {
        /// As it was given.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// A verb, such as `open`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
}

impl OsError {
    /// The kind of the system's answer; `Other` if the system was not asked or did not refuse.
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
