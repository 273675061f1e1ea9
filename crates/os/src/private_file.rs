//! Files and directories that only their owner can access. Modes are set explicitly, so the umask has no effect.
//!
//! For directories of this program's own user. Trees that a hostile program can change are opened with
//! [`crate::beneath`].

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permission bits of the group and of other users.
pub const MODE_OTHERS: u32 = 0o077;
const MODE_DIRECTORY: u32 = 0o700;
const MODE_FILE: u32 = 0o600;

/// Opens a file, which is created with mode 0600 if the options allow it. Access by others to an existing file is
/// removed, unless the path is a link.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.mode(MODE_FILE).open(path)?;
    if !is_link(path) {
        remove_access_of_others(&file)?;
    }
    Ok(file)
}

/// Writes a file with mode 0600. For a file that another process may read meanwhile, see [`crate::atomic_file`].
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    open(File::options().write(true).create(true).truncate(true), path)?.write_all(contents)
}

/// Removes access by others to an open file. Returns whether they had any.
pub fn remove_access_of_others(file: &File) -> io::Result<bool> {
    let mode = file.metadata()?.mode();
    let is_open = mode & MODE_OTHERS != 0;
    if is_open {
        file.set_permissions(Permissions::from_mode(mode & 0o777 & !MODE_OTHERS))?;
    }
    Ok(is_open)
}

/// Creates a directory with mode 0700, and missing parents with the default mode. An existing directory gets mode 0700,
/// unless the path is a link.
pub fn create_dir(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(MODE_DIRECTORY).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::metadata(path)?;
    if !found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory"));
    }
    if found.mode() & 0o777 == MODE_DIRECTORY || is_link(path) {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(MODE_DIRECTORY))
}

/// Creates all missing directories of a path with mode 0700. Existing ones are left unchanged.
pub fn create_missing_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE_DIRECTORY).create(path)
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn modes_are_not_changed_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("outside")).unwrap();
        fs::write(at("file"), "x").unwrap();
        for (name, mode) in [("outside", 0o755), ("file", 0o644)] {
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        }
        symlink(at("outside"), at("directory-link")).unwrap();
        symlink(at("file"), at("file-link")).unwrap();
        create_dir(&at("directory-link")).unwrap();
        open(File::options().append(true), &at("file-link")).unwrap();
        let mode = |name: &str| fs::metadata(at(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("outside"), mode("file")), (0o755, 0o644));
    }

    #[test]
    fn existing_files_and_directories_become_private() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("file"), "old").unwrap();
        fs::set_permissions(at("directory"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(at("file"), Permissions::from_mode(0o644)).unwrap();
        create_dir(&at("directory")).unwrap();
        write(&at("file"), b"new").unwrap();
        let mode = |name: &str| fs::metadata(at(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("directory"), mode("file")), (0o700, 0o600));
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert!(create_dir(&at("file")).is_err());
    }
}
