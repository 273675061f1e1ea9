//! The folder in which directories of finished runs wait to be deleted.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    path::Path,
    sync::Arc,
    time::Duration,
};

use abide_os::{OsError, beneath::Directory, remove::remove};

use crate::{
    made::{self, DirPurpose},
    private,
};

/// The folder in the home.
const FOLDER: &str = "trash";
/// How long the removal of one tree may take at a time. The next round continues it.
const MAX_TREE_TIME: Duration = Duration::from_secs(60);

/// Moves a directory that was made for this run away in one step, and says whether it did.
pub(super) fn take(home: &Path, purpose: DirPurpose, run: &str, folder: &Path) -> bool {
    let trash = home.join(FOLDER);
    if !made::is_ours(home, purpose, run, folder) {
        tracing::warn!(folder = %folder.display(), "not deleted: Abide cannot prove that it made this directory");
        return false;
    }
    let (Some(name), Ok(())) = (folder.file_name(), private::directory(&trash)) else { return false };
    // The same run's private directory and workspace bear the same name.
    for number in 0..8 {
        let mut place = name.to_owned();
        place.push(format!(".{number}"));
        let place = trash.join(place);
        match fs::rename(folder, &place) {
            // Another directory may have been put there between the look and the move.
            Ok(()) if made::is_ours(home, purpose, run, &place) => return true,
            Ok(()) => {
                let back = fs::rename(&place, folder);
                tracing::warn!(folder = %folder.display(), ?back, "not deleted: it was replaced meanwhile");
                return false;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory
                ) => {}
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "leftover cannot be moved");
                return false;
            }
        }
    }
    false
}

/// What lies in the trash.
pub(super) struct TrashedTrees {
    pub(super) folder: Arc<Directory>,
    /// Sorted.
    pub(super) names: Vec<OsString>,
}

/// What lies in the trash; none if there is no trash, or none that can be listed.
pub(super) fn list(home: &Path) -> Option<TrashedTrees> {
    let listed = || -> Result<TrashedTrees, OsError> {
        let folder = Directory::open(home)?.directory(FOLDER)?;
        let mut names =
            folder.entries()?.map(|entry| Ok(entry?.name)).collect::<Result<Vec<_>, OsError>>()?;
        names.sort();
        Ok(TrashedTrees { folder: Arc::new(folder), names })
    };
    match listed() {
        Ok(trees) => Some(trees),
        Err(error) if error.is_not_found() => None,
        Err(error) => {
            tracing::warn!(%error, "trash cannot be listed");
            None
        }
    }
}

/// The trees to be deleted in this round: at most `max_trees`, beginning after `last_tried`. The next round goes on behind
/// them and, at the end, begins anew, so trees that cannot be deleted do not keep others from being tried.
pub(super) fn due(names: &[OsString], last_tried: Option<&OsStr>, max_trees: usize) -> Vec<OsString> {
    let begin = last_tried.map_or(0, |last| names.partition_point(|name| name.as_os_str() <= last));
    names[begin..].iter().chain(&names[..begin]).take(max_trees).cloned().collect()
}

/// Deletes a tree that Abide made. Its note goes last, so that a deletion which is killed is continued.
pub(super) fn delete_ours(home: &Path, trash: &Directory, name: &OsStr) {
    let path = home.join(FOLDER).join(name);
    let run = name.to_str().and_then(|name| name.rsplit_once('.')).map_or("", |(run, _)| run);
    let is_ours = |purpose: &DirPurpose| made::is_ours(home, *purpose, run, &path);
    match DirPurpose::ALL.into_iter().find(is_ours) {
        Some(purpose) => {
            if delete(trash, name) {
                made::forget(home, purpose, run);
            }
        }
        None => {
            tracing::warn!(
                ?name,
                "not deleted: Abide cannot prove that it made this; delete it by hand if it may go"
            );
        }
    }
}

/// Deletes one tree, or a part of it if it takes too long. Returns whether all of it is gone.
pub(super) fn delete(trash: &Directory, name: &OsStr) -> bool {
    let removal = remove(trash, name, MAX_TREE_TIME);
    if !removal.is_complete() {
        tracing::warn!(?name, %removal, "leftover cannot be deleted; it is tried again later");
    }
    removal.is_complete()
}
