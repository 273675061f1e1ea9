//! The trash: the folder in which directories of finished runs await deletion.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    path::Path,
    sync::Arc,
    time::Duration,
};

use abide_os::{OsError, beneath::Directory, private_file, remove::remove};

use crate::{
    created_dirs::{self, DirPurpose},
    home_folders::HomeFolder,
};

const FOLDER: &str = HomeFolder::Trash.name();
/// Time limit for the deletion of one tree in a round. The next round continues it.
const MAX_TREE_TIME: Duration = Duration::from_secs(60);

/// Moves a directory that was created for this run to the trash atomically. Returns whether it was moved.
pub(super) fn move_to_trash(home: &Path, purpose: DirPurpose, run: &str, folder: &Path) -> bool {
    let trash = home.join(FOLDER);
    if !created_dirs::was_created_for(home, purpose, run, folder) {
        tracing::warn!(folder = %folder.display(), "not deleted: there is no proof that Abide created this directory; delete it by hand if it is not needed");
        return false;
    }
    let (Some(name), Ok(())) = (folder.file_name(), private_file::create_dir(&trash)) else { return false };
    // The private directory and the workspace of a run have the same name, so a number is appended.
    for number in 0..8 {
        let mut target = name.to_owned();
        target.push(format!(".{number}"));
        let target = trash.join(target);
        match fs::rename(folder, &target) {
            // The directory may have been replaced between the check and the move.
            Ok(()) if created_dirs::was_created_for(home, purpose, run, &target) => return true,
            Ok(()) => {
                let back = fs::rename(&target, folder);
                tracing::warn!(folder = %folder.display(), ?back, "not deleted: the directory was replaced in the meantime");
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

/// Entries of the trash.
pub(super) struct TrashedTrees {
    pub(super) folder: Arc<Directory>,
    /// Sorted.
    pub(super) names: Vec<OsString>,
}

/// Lists the trash; `None` if it does not exist or cannot be listed.
pub(super) fn list(home: &Path) -> Option<TrashedTrees> {
    let listed = || -> Result<TrashedTrees, OsError> {
        let folder = Directory::open(home)?.open_directory(FOLDER)?;
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

/// Selects the trees to delete in this round: at most `max_trees`, starting after `last_tried`. The next round
/// continues after them and wraps around, so trees that cannot be deleted do not block others.
pub(super) fn select_batch(
    names: &[OsString],
    last_tried: Option<&OsStr>,
    max_trees: usize,
) -> Vec<OsString> {
    let begin = last_tried.map_or(0, |last| names.partition_point(|name| name.as_os_str() <= last));
    names[begin..].iter().chain(&names[..begin]).take(max_trees).cloned().collect()
}

/// Deletes a tree that Abide created. Its note is deleted last, so that an interrupted deletion is continued.
pub(super) fn delete_if_ours(home: &Path, trash: &Directory, name: &OsStr) {
    let path = home.join(FOLDER).join(name);
    let run = name.to_str().and_then(|name| name.rsplit_once('.')).map_or("", |(run, _)| run);
    let is_ours = |purpose: &DirPurpose| created_dirs::was_created_for(home, *purpose, run, &path);
    match DirPurpose::ALL.into_iter().find(is_ours) {
        Some(purpose) => {
            if delete_tree(trash, name) {
                created_dirs::delete_note(home, purpose, run);
            }
        }
        None => {
            tracing::warn!(
                ?name,
                "not deleted: there is no proof that Abide created this; delete it by hand if it is not needed"
            );
        }
    }
}

/// Deletes one tree, or a part of it within the time limit. Returns whether it is completely deleted.
pub(super) fn delete_tree(trash: &Directory, name: &OsStr) -> bool {
    let removal = remove(trash, name, MAX_TREE_TIME);
    if !removal.is_complete() {
        tracing::warn!(?name, %removal, "leftover cannot be deleted; the deletion is retried later");
    }
    removal.is_complete()
}
