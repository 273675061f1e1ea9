//! Confines the calling process before it executes a program: hides a directory, and restricts writing to files.
//!
//! - [`namespace`] hides a directory behind an empty file system, in a new user and mount namespace.
//! - [`files`] restricts access to files with Landlock.
//!
//! Both apply to every program that the process executes and to all its descendants, and cannot be undone. They must be
//! called while the process has one thread.
//!
//! The caller chooses the directory that is hidden from each program.

pub mod files;
pub mod namespace;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::OsError;
use crate::beneath::open_path_without_links;

/// A hidden directory, and the paths below it that remain visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenTree {
    /// Absolute, without symbolic links.
    pub directory: PathBuf,
    /// Files and directories below it that remain visible, without symbolic links. Paths that do not exist are ignored.
    pub shown: Vec<PathBuf>,
}

impl HiddenTree {
    /// The shown paths below the directory. Others are visible anyway.
    fn shown_below(&self) -> impl Iterator<Item = &Path> {
        let is_below = |path: &&PathBuf| path.starts_with(&self.directory) && **path != self.directory;
        self.shown.iter().filter(is_below).map(PathBuf::as_path)
    }
}

/// Errors of the confinement.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel or its configuration does not provide the mechanism to this process.
    #[error("{mechanism} cannot be used: {source}")]
    Unavailable {
        /// For messages.
        mechanism: &'static str,
        source: io::Error,
    },
    /// The mechanism is available, but a step failed.
    #[error("cannot {action} {path}: {source}")]
    Step {
        /// A verb, for example `mount`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// Opens a path that the caller has resolved. None if it does not exist or cannot be opened. A symbolic link that was put
/// into the path since then is an error.
fn open_resolved(path: &Path) -> Result<Option<OwnedFd>, ConfineError> {
    match open_path_without_links(path) {
        Ok(opened) => Ok(Some(opened)),
        Err(link @ OsError::SymbolicLink { .. }) => {
            Err(ConfineError::Step { action: "open", path: path.to_owned(), source: link.into() })
        }
        Err(_) => Ok(None),
    }
}

fn step_error(action: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> ConfineError {
    move |error| ConfineError::Step { action, path: path.to_owned(), source: error.into() }
}
