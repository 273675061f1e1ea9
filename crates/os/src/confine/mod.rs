//! Confinement of the calling process before it executes a program: a directory that it cannot see, and files that it cannot
//! write.
//!
//! - [`namespace`] hides a directory behind an empty file system, in a user and mount namespace of the process's own.
//! - [`files`] restricts access to files with Landlock.
//!
//! Both hold for every program that the process executes and for everything that these start, and cannot be undone. They
//! must be called while the process has one thread.
//!
//! Not here: which directory is hidden from which program. The caller decides.

pub mod files;
pub mod namespace;

use std::io;
use std::path::{Path, PathBuf};

/// A directory that is hidden, and what of it remains visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenTree {
    /// The directory. It must be absolute and contain no symbolic link.
    pub directory: PathBuf,
    /// Files and directories below it that remain visible. What does not exist is left out.
    pub shown: Vec<PathBuf>,
}

impl HiddenTree {
    /// The shown paths that lie below the directory. Others are visible anyway.
    fn shown_below(&self) -> impl Iterator<Item = &Path> {
        let is_below = |path: &&PathBuf| path.starts_with(&self.directory) && **path != self.directory;
        self.shown.iter().filter(is_below).map(PathBuf::as_path)
    }
}

/// Why a process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel, or its configuration, does not offer the mechanism to this process.
    #[error("{mechanism} cannot be used: {source}")]
    Unavailable {
        /// The mechanism, for people.
        mechanism: &'static str,
        /// What the system answered.
        source: io::Error,
    },
    /// The mechanism is there, but a step failed.
    #[error("cannot {action} {path}: {source}")]
    Step {
        /// A verb, such as `mount`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
}

fn step(action: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> ConfineError {
    move |error| ConfineError::Step { action, path: path.to_owned(), source: error.into() }
}
