//! Removes a directory tree that a hostile program created and may still be changing.
//!
//! - Iterative: a tree of any depth needs a constant stack and four descriptors. Directories deeper than `MAX_DEPTH`
//!   are first moved to the top of the tree.
//! - Never follows a link and never enters another file system or a mount: every directory is opened by name from its
//!   parent, and the way back up (`..`) is accepted only if it leads to the same inode as before.
//! - Changes modes: a directory that its owner cannot list or change gets `u+rwx`.
//! - An entry that cannot be removed does not stop the removal of others. [`TreeRemoval`] lists the remaining entries
//!   with the reasons.
//! - Bounded in time. A removal that timed out, or whose process died, is continued by calling it again.
//!
//! The caller decides which tree may be removed. Entries that a hostile program moves into the tree meanwhile are
//! removed with it.

mod descend;
#[cfg(test)]
mod tests;
mod walk;

use std::{
    ffi::{CString, OsStr},
    fmt, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{fs::AtFlags, io::Errno};

use crate::{beneath::Directory, clock, error::OsError};
use walk::RemovalWalk;

/// Maximum depth of the walk. Deeper directories are moved up.
const MAX_DEPTH: usize = 256;
/// Maximum number of described failures. Further ones are counted.
const MAX_FAILURES: usize = 8;

/// The result of a removal.
#[derive(Debug, Default)]
pub struct TreeRemoval {
    /// Number of removed files, links and directories.
    pub removed: u64,
    /// The first entries that could not be removed. Their parent directories are not listed.
    pub failures: Vec<RemovalFailure>,
    /// Number of failures that are not described.
    pub more_failures: u64,
    /// Whether the time limit was reached before the end.
    pub timed_out: bool,
}

/// An entry that could not be removed.
#[derive(Debug)]
pub struct RemovalFailure {
    /// Relative to the parent of the tree. Long paths are shortened to their last components.
    pub path: PathBuf,
    pub error: io::Error,
}

impl TreeRemoval {
    /// Whether nothing of the tree is left.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.more_failures == 0 && !self.timed_out
    }

    /// An error with the first remaining entry, if there is one.
    pub fn into_result(self) -> Result<(), OsError> {
        if self.is_complete() {
            return Ok(());
        }
        let message = self.to_string();
        let (path, kind) = self.failures.first().map_or_else(
            || (PathBuf::new(), io::ErrorKind::TimedOut),
            |failure| (failure.path.clone(), failure.error.kind()),
        );
        Err(OsError::System { action: "remove", path, source: io::Error::new(kind, message) })
    }

    fn record_failure(&mut self, path: PathBuf, error: impl Into<io::Error>) {
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(RemovalFailure { path, error: error.into() });
        } else {
            self.more_failures += 1;
        }
    }
}

impl fmt::Display for TreeRemoval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries removed", self.removed)?;
        for RemovalFailure { path, error } in &self.failures {
            write!(f, "; {path:?}: {error}")?;
        }
        if self.more_failures > 0 {
            write!(f, "; {} more failures", self.more_failures)?;
        }
        if self.timed_out {
            write!(f, "; the time limit was reached, and the other entries remain")?;
        }
        Ok(())
    }
}

/// Removes `name` in `directory`: a file, a link, or a directory with its contents. Succeeds if it does not exist.
pub fn remove(directory: &Directory, name: &OsStr, max_time: Duration) -> TreeRemoval {
    let mut removal = TreeRemoval::default();
    let path = PathBuf::from(name);
    let is_one_component = Path::new(name).file_name() == Some(name);
    let (Ok(name), true) = (CString::new(name.as_bytes()), is_one_component) else {
        removal.record_failure(
            path,
            io::Error::new(io::ErrorKind::InvalidInput, "the name is not one component of a path"),
        );
        return removal;
    };
    match remove_one(directory, &name) {
        RemovalStep::Removed => removal.removed += 1,
        RemovalStep::Missing => {}
        RemovalStep::NotEmpty => {
            let deadline = clock::monotonic().saturating_add(max_time);
            RemovalWalk::new(directory, name, deadline, &mut removal).run();
        }
        RemovalStep::Failed(errno) => removal.record_failure(path, errno),
    }
    removal
}

/// Removes a path. Links on the way to its parent are followed, the last component is not.
pub fn remove_path(path: &Path, max_time: Duration) -> Result<TreeRemoval, OsError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(OsError::InvalidPath { path: path.to_owned() });
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match Directory::open(parent) {
        Ok(directory) => Ok(remove(&directory, name, max_time)),
        Err(error) if error.is_not_found() => Ok(TreeRemoval::default()),
        Err(error) => Err(error),
    }
}

/// The result for one entry.
enum RemovalStep {
    Removed,
    Missing,
    /// A directory with entries.
    NotEmpty,
    Failed(Errno),
}

/// Removes an entry that is not a directory, or is an empty one.
fn remove_one(directory: impl std::os::fd::AsFd, name: &std::ffi::CStr) -> RemovalStep {
    match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) => return RemovalStep::Removed,
        Err(Errno::NOENT) => return RemovalStep::Missing,
        Err(Errno::ISDIR) => {}
        Err(errno) => return RemovalStep::Failed(errno),
    }
    match rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR) {
        Ok(()) => RemovalStep::Removed,
        Err(Errno::NOENT) => RemovalStep::Missing,
        // A directory that was replaced meanwhile is handled by the next pass.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => RemovalStep::NotEmpty,
        Err(errno) => RemovalStep::Failed(errno),
    }
}
