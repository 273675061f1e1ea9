//! Folders of the home that had other names in earlier versions. The daemon moves them at its start.

use std::{fs, io, path::Path};

use crate::home_folders::HomeFolder;

/// Folders and their former names.
const FORMER_NAMES: [(HomeFolder, &str); 2] =
    [(HomeFolder::CreatedDirs, "made"), (HomeFolder::SurvivingKeepers, "outliving")];

/// The former names of folders.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FORMER_NAMES.into_iter().map(|(_, former)| former)
}

/// Gives the folders of an earlier version their present names. No other process may use the home, so the caller holds
/// its lock. If both folders exist, the notes of the former one are added to the present one. Notes that both have, and
/// entries that are no notes, stay where they are.
pub fn rename_former_folders(home: &Path) -> io::Result<()> {
    for (folder, former) in FORMER_NAMES {
        let (former, present) = (home.join(former), folder.path(home));
        if fs::symlink_metadata(&former).is_err() {
            continue;
        }
        if fs::symlink_metadata(&present).is_err() {
            fs::rename(&former, &present)?;
            continue;
        }
        for note in fs::read_dir(&former)? {
            let note = note?;
            let target = present.join(note.file_name());
            if note.file_type()?.is_file() && fs::symlink_metadata(&target).is_err() {
                fs::rename(note.path(), target)?;
            }
        }
        // A folder that is not empty stays.
        fs::remove_dir(&former).ok();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(home: &Path, file: &str, text: &str) {
        let path = home.join(file);
        fs::create_dir_all(path.parent().expect("it has a parent")).expect("it can be created");
        fs::write(path, text).expect("it can be written");
    }

    fn read(home: &Path, file: &str) -> Option<String> {
        fs::read_to_string(home.join(file)).ok()
    }

    #[test]
    fn the_folders_of_an_earlier_version_are_moved_once() {
        let place = tempfile::tempdir().expect("a directory");
        let home = place.path();
        write(home, "made/runs.run_1", "8 1 7 0 0\n");
        write(home, "outliving/run_1", "agents/1/sessions");
        for _ in 0..2 {
            rename_former_folders(home).expect("it can be moved");
            assert_eq!(read(home, "created-dirs/runs.run_1").as_deref(), Some("8 1 7 0 0\n"));
            assert_eq!(read(home, "surviving-keepers/run_1").as_deref(), Some("agents/1/sessions"));
            assert!(!home.join("made").exists() && !home.join("outliving").exists());
        }
    }

    #[test]
    fn notes_of_both_folders_are_kept() {
        let place = tempfile::tempdir().expect("a directory");
        let home = place.path();
        write(home, "created-dirs/runs.run_1", "present");
        write(home, "made/runs.run_1", "former");
        write(home, "made/runs.run_2", "former");
        write(home, "made/mine/file", "of the owner");
        write(home, "surviving-keepers/run_1", "present");
        write(home, "outliving/run_2", "former");
        rename_former_folders(home).expect("it can be moved");
        assert_eq!(read(home, "created-dirs/runs.run_1").as_deref(), Some("present"));
        assert_eq!(read(home, "created-dirs/runs.run_2").as_deref(), Some("former"));
        assert_eq!(read(home, "made/runs.run_1").as_deref(), Some("former"));
        assert_eq!(read(home, "made/mine/file").as_deref(), Some("of the owner"));
        assert_eq!(read(home, "surviving-keepers/run_2").as_deref(), Some("former"));
        assert!(!home.join("outliving").exists());
    }
}
