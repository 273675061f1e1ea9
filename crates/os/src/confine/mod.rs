//! Confines the calling process before it executes a program: hides directories, and restricts writing to files.
//!
//! - [`namespace`] hides directories behind empty file systems, in a new user and mount namespace.
//! - [`files`] restricts access to files with Landlock.
//!
//! Both apply to every program that the process executes and to all its descendants, and cannot be undone. They must be
//! called while the process has one thread.
//!
//! A directory is hidden at every place at which it is mounted when the program starts. The caller chooses the
//! directories that are hidden from each program.

pub mod files;
pub mod namespace;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::OsError;
use crate::beneath::open_path_without_links;
use crate::mount_table;

/// Hidden directories, and the paths below them that remain visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenTree {
    /// Absolute, without symbolic links.
    pub directories: Vec<PathBuf>,
    /// Files and directories below them that remain visible, without symbolic links. Paths that do not exist are ignored.
    pub shown: Vec<PathBuf>,
}

/// Which second places of a hidden directory are hidden with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliasScope {
    /// Those through which the directory can be reached. Sufficient for a mechanism that hides paths.
    Reachable,
    /// All of them. Required for a mechanism that permits access by inode: a permitted parent of an unreachable place
    /// would permit the directory at its other places.
    All,
}

impl HiddenTree {
    /// All places to hide: the directories, and their second places in the mount table. A place comes after those that
    /// contain it. A shown path is not a place, even if it is mounted a second time.
    pub fn places(&self, scope: AliasScope) -> Result<Vec<PathBuf>, ConfineError> {
        let mut places = self.directories.clone();
        for directory in &self.directories {
            let aliases = mount_table::find_aliases(directory).map_err(|source| ConfineError::Step {
                action: "find the mounts of",
                path: directory.clone(),
                source,
            })?;
            let aliases =
                aliases.into_iter().filter(|alias| scope == AliasScope::All || alias.is_reachable());
            places.extend(aliases.map(|alias| alias.place).filter(|place| !self.shown.contains(place)));
        }
        places.sort_by_key(|place| place.components().count());
        let mut kept: Vec<PathBuf> = Vec::new();
        for place in places {
            if !kept.iter().any(|outer| self.is_covered(&place, outer)) {
                kept.push(place);
            }
        }
        Ok(kept)
    }

    /// The shown paths below a place. Others are visible anyway.
    pub fn shown_below<'a>(&'a self, place: &'a Path) -> impl Iterator<Item = &'a Path> {
        let is_below = move |path: &&PathBuf| path.starts_with(place) && **path != *place;
        self.shown.iter().filter(is_below).map(PathBuf::as_path)
    }

    /// Whether a place is hidden with another one that contains it.
    fn is_covered(&self, place: &Path, outer: &Path) -> bool {
        place.starts_with(outer) && !self.shown_below(outer).any(|shown| place.starts_with(shown))
    }
}

/// Errors of the confinement.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel or its configuration does not provide the mechanism to this process.
    #[error("{mechanism} cannot be used: {source}")]
    Unavailable {
        /// The name of the kernel's mechanism, for messages.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_inside_a_hidden_one_is_hidden_again_only_if_it_is_shown() {
        let tree = HiddenTree { directories: vec!["/h".into()], shown: vec!["/h/w".into()] };
        for (place, covered) in
            [("/h", true), ("/h/x", true), ("/h/w/x", false), ("/hx", false), ("/", false)]
        {
            assert_eq!(tree.is_covered(Path::new(place), Path::new("/h")), covered, "{place}");
        }
    }
}
