//! Atomic replacement of a file: a reader sees the old or the new contents, never a part.
//!
//! The new contents are written to `.NAME.part` in the same directory and renamed. A crash may leave that file; the next
//! replacement overwrites it, so leftovers do not accumulate. Two processes must not replace the same file at the same
//! time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::private_file;

/// The failures after which the file is the old or the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A crash of the process. Nothing is synced: a power failure may leave an empty file.
    ProcessCrash,
    /// Also a power failure: file and directory are synced before the call returns.
    PowerFailure,
}

/// Replaces a file. The new one has mode 0600.
pub fn replace(path: &Path, contents: &[u8], durability: Durability) -> io::Result<()> {
    let part = part_path(path);
    let mut file = private_file::open(File::options().write(true).create(true).truncate(true), &part)?;
    file.write_all(contents)?;
    match durability {
        Durability::ProcessCrash => fs::rename(part, path),
        Durability::PowerFailure => {
            file.sync_all()?;
            fs::rename(part, path)?;
            path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
        }
    }
}

fn part_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_replaced_file_is_complete_and_private_and_leaves_no_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(
            folder.path().join(".state.json.part"),
            "left by a crash, and longer than the new contents",
        )
        .unwrap();
        for (contents, durability) in [("one", Durability::ProcessCrash), ("two", Durability::PowerFailure)] {
            replace(&path, contents.as_bytes(), durability).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_replacement_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, "old").unwrap();
        fs::create_dir(folder.path().join(".state.json.part")).unwrap();
        assert!(replace(&path, b"new", Durability::PowerFailure).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }
}
