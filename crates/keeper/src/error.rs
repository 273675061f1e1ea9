//! Errors of keepers and of connections to them, by the reaction of the caller.

use std::io;
use std::path::PathBuf;

use crate::protocol::KeeperRefusal;

/// An error of a keeper or of the connection to it.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The keeper refused the request; the caller has to change it or retry later.
    #[error("{0}")]
    Refused(KeeperRefusal),
    /// No keeper runs in this directory; its records can still be read.
    #[error("no keeper answers in {path}")]
    NoKeeper { path: PathBuf },
    /// The keeper may be alive but did not answer in time, because it is stopped or the machine is busy.
    #[error("the keeper in {path} does not answer")]
    Unresponsive { path: PathBuf },
    /// The peer violated the protocol, or its identity does not match.
    #[error("the keeper protocol was broken: {0}")]
    Protocol(&'static str),
    /// A system call failed; the operator has to find the cause.
    #[error("{action}")]
    System {
        action: String,
        #[source]
        source: io::Error,
    },
}

impl KeeperError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { action: what.into(), source: source.into() }
    }
}
