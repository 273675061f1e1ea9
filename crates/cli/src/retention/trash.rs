//! The folder in which things wait to be deleted. What is in there is nobody's any more.

use std::{fs, io::ErrorKind, path::Path};

use crate::private;

/// The folder in the home.
const FOLDER: &str = "trash";

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

/// Deletes what is there, at most so many things. Links are deleted, never followed.
pub(super) fn empty(home: &Path, most: usize) {
    let Ok(entries) = fs::read_dir(home.join(FOLDER)) else { return };
    for entry in entries.flatten().take(most) {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let deleted = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(error) = deleted {
            tracing::warn!(path = %path.display(), %error, "leftover cannot be deleted");
        }
    }
}
