//! The folder in which things wait to be deleted. What is in there is nobody's any more.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    path::Path,
    time::Duration,
};

use abide_os::{OsError, beneath::Directory, remove::remove};

use crate::private;

/// The folder in the home.
const FOLDER: &str = "trash";
/// How long the removal of one tree may take at a time. The next round continues it.
const MAX_TREE_TIME: Duration = Duration::from_secs(60);

/// Moves a directory away in one step, and says whether it did.
pub(super) fn take(home: &Path, folder: &Path) -> bool {
    let trash = home.join(FOLDER);
    let (Some(name), Ok(())) = (folder.file_name(), private::directory(&trash)) else { return false };
    // The same run's private directory and workspace bear the same name.
    for number in 0..8 {
        let mut place = name.to_owned();
        place.push(format!(".{number}"));
        match fs::rename(folder, trash.join(place)) {
            Ok(()) => return true,
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

/// Deletes at most `max_trees` trees, in the order of their names, beginning after `last_tried`. Returns the name that was
/// tried last. The next call goes on behind it and, at the end, begins anew, so trees that cannot be deleted do not
/// keep others from being tried.
pub(super) fn empty(home: &Path, last_tried: Option<&OsStr>, max_trees: usize) -> Option<OsString> {
    let (trash, mut names) = match list(home) {
        Ok(listed) => listed,
        Err(error) if error.is_not_found() => return None,
        Err(error) => {
            tracing::warn!(%error, "trash cannot be listed");
            return None;
        }
    };
    names.sort();
    let begin = last_tried.map_or(0, |last| names.partition_point(|name| name.as_os_str() <= last));
    names.rotate_left(begin);
    names.truncate(max_trees);
    for name in &names {
        let removal = remove(&trash, name, MAX_TREE_TIME);
        if !removal.is_complete() {
            tracing::warn!(?name, %removal, "leftover cannot be deleted; it is tried again later");
        }
    }
    names.pop()
}

fn list(home: &Path) -> Result<(Directory, Vec<OsString>), OsError> {
    let trash = Directory::open(home)?.directory(FOLDER)?;
    let names = trash.entries()?.map(|entry| Ok(entry?.name)).collect::<Result<_, OsError>>()?;
    Ok((trash, names))
}
