//! What can go wrong with a keeper, by what the caller can do next.

use std::io;
use std::path::PathBuf;

use crate::protocol::KeeperRefusal;

/// An error of the keeper or of talking to one.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The keeper said no; the request has to change or wait.
    #[error("{0}")]
    Refused(KeeperRefusal),
    /// There is no keeper behind this directory any more; what it recorded can still be read.
    #[error("no keeper answers in {path}")]
    Gone {
        /// The keeper's directory.
        path: PathBuf,
    },
    /// The keeper may live, but it does not answer in time: it is stopped, or the machine is busy.
    #[error("the keeper in {path} does not answer")]
    Silent {
        /// The keeper's directory.
        path: PathBuf,
    },
    /// The other side does not speak our protocol, or not as who it claims to be.
    #[error("the keeper protocol was broken: {0}")]
    Protocol(&'static str),
    /// The operating system refused; the operator has to look.
    #[error("{what}")]
    System {
        /// What was being done.
        what: String,
        /// What the system answered.
        #[source]
        source: io::Error,
    },
}

impl KeeperError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }
}
