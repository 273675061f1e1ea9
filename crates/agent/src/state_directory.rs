//! The state folder, opened once. Its files are opened relative to its descriptor, and symbolic links below the
//! workspace are not followed.
//!
//! Tools, other agents and cloned repositories can write in the state folder. Only regular files are accepted, and
//! reads are bounded. The folder at the path is compared with the open one, because it may be deleted or replaced while
//! the agent runs.
//!
//! Files in the home are opened with `os`. The meaning of the files is not known here.

use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_os::{OsError, beneath::Directory};

/// The state folder of an agent. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct StateDirectory(Arc<OpenedState>);

#[derive(Debug)]
struct OpenedState {
    root: Directory,
    relative: PathBuf,
    directory: Directory,
}

/// A folder below the state folder. It need not exist yet.
#[derive(Clone, Debug)]
pub struct StateSubfolder {
    state: StateDirectory,
    relative: PathBuf,
}

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

impl StateDirectory {
    /// Opens the folder `relative` below the directory `root`. `root` was resolved earlier; a link in it is refused.
    pub fn open(root: &Path, relative: &Path) -> Result<Self, OsError> {
        let root = Directory::open_without_links(root)?;
        let directory = root.open_directory(relative)?;
        Ok(Self(Arc::new(OpenedState { root, relative: relative.to_owned(), directory })))
    }

    /// Opens the folder, and creates it and its parents below `root` if they are missing. Their mode becomes 0700.
    pub fn create(root: &Path, relative: &Path) -> Result<Self, OsError> {
        Directory::open_without_links(root)?.create_directories(relative, FOLDER_MODE)?;
        let created = Self::open(root, relative)?;
        created.make_private()?;
        Ok(created)
    }

    /// Removes the permissions of other users from the folder and its parents below the workspace.
    pub(crate) fn make_private(&self) -> Result<(), OsError> {
        let folders = self.0.relative.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        folders.into_iter().try_for_each(|folder| make_folder_private(&self.0.root, folder))
    }

    /// The path at which the folder was opened. It may have been moved since.
    pub fn path(&self) -> &Path {
        self.0.directory.path()
    }

    /// Whether there is an entry at the journal's name.
    pub fn has_journal(&self) -> bool {
        self.directory().metadata(crate::agent_state::JOURNAL_FILE).is_ok()
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.0.directory
    }

    /// Device and inode.
    pub(crate) fn identity(&self) -> Result<(u64, u64), OsError> {
        self.0.directory.identity()
    }

    /// Whether the folder at the path is still the open one.
    pub(crate) fn is_in_place(&self) -> bool {
        let at_path = self.0.root.open_directory(&self.0.relative).and_then(|directory| directory.identity());
        at_path.is_ok_and(|at_path| self.identity().is_ok_and(|own| own == at_path))
    }

    pub fn subfolder(&self, relative: impl Into<PathBuf>) -> StateSubfolder {
        StateSubfolder { state: self.clone(), relative: relative.into() }
    }

    /// Opens a file with mode 0600 for reading and appending, and creates it if it is missing.
    pub(crate) fn append(&self, relative: impl AsRef<Path>) -> Result<File, OsError> {
        let relative = relative.as_ref();
        let file = self.directory().append_file(relative, FILE_MODE)?;
        let narrowed = file.metadata().and_then(|metadata| {
            if metadata.permissions().mode() & 0o077 == 0 {
                return Ok(());
            }
            file.set_permissions(Permissions::from_mode(FILE_MODE))
        });
        match narrowed {
            Ok(()) => Ok(file),
            Err(source) => {
                Err(OsError::System { action: "protect", path: self.path().join(relative), source })
            }
        }
    }

    /// Replaces a file atomically. A crash leaves the old or the new file; a power failure may leave neither.
    pub(crate) fn replace(&self, relative: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let relative = relative.as_ref();
        let mut name = relative.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = relative.with_file_name(name);
        self.remove_file(&part)?;
        self.directory().create_file(&part, FILE_MODE)?.write_all(bytes)?;
        Ok(self.directory().rename(&part, self.directory(), relative)?)
    }

    /// Removes a file or link. A missing one is not an error.
    pub(crate) fn remove_file(&self, relative: impl AsRef<Path>) -> Result<(), OsError> {
        match self.directory().unlink(relative) {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl StateSubfolder {
    pub(crate) fn create(&self) -> Result<(), OsError> {
        self.state.directory().create_directories(&self.relative, FOLDER_MODE).map(drop)
    }

    /// Whether the folder exists and is not a symbolic link.
    pub(crate) fn exists(&self) -> bool {
        self.open().is_ok()
    }

    pub(crate) fn open(&self) -> Result<Directory, OsError> {
        self.state.directory().open_directory(&self.relative)
    }

    pub(crate) fn append(&self, name: &str) -> Result<File, OsError> {
        self.state.append(self.relative.join(name))
    }

    pub(crate) fn open_file(&self, name: &str) -> Result<File, OsError> {
        self.state.directory().open_file(self.relative.join(name))
    }

    pub(crate) fn read_bounded(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>, OsError> {
        self.state.directory().read_bounded(self.relative.join(name), max_bytes)
    }

    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.state.replace(self.relative.join(name), bytes)
    }

    /// The size of a file in bytes; 0 if it does not exist.
    pub(crate) fn file_bytes(&self, name: &str) -> u64 {
        let size = self.open_file(name).ok().and_then(|file| Some(file.metadata().ok()?.len()));
        size.unwrap_or_default()
    }
}

/// Removes the permissions of other users from a folder.
fn make_folder_private(root: &Directory, relative: &Path) -> Result<(), OsError> {
    if root.metadata(relative)?.mode & 0o077 == 0 {
        return Ok(());
    }
    let folder = root.open_directory(relative)?;
    let path = || root.path().join(relative);
    // The descriptor is opened with `O_PATH`, which does not allow `fchmod`. Its entry in /proc leads to the same
    // folder.
    let name = format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd());
    std::fs::set_permissions(name, Permissions::from_mode(FOLDER_MODE)).map_err(|source| OsError::System {
        action: "protect",
        path: path(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_link_anywhere_below_the_workspace_is_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir_all(outside.join("native/1")).unwrap();
        let work = folder.path().join("work");
        fs::create_dir(&work).unwrap();
        symlink(&outside, work.join(".abide")).unwrap();
        for opened in [StateDirectory::open, StateDirectory::create] {
            let refused = opened(&work, Path::new(".abide/native/1")).unwrap_err();
            assert!(
                matches!(&refused, OsError::SymbolicLink { path } if *path == work.join(".abide")),
                "{refused}"
            );
        }
        fs::remove_file(work.join(".abide")).unwrap();
        let state = StateDirectory::create(&work, Path::new(".abide")).unwrap();
        symlink(&outside, state.path().join("executions")).unwrap();
        symlink(outside.join("file"), state.path().join("journal.jsonl")).unwrap();
        assert!(matches!(state.append("journal.jsonl"), Err(OsError::SymbolicLink { .. })));
        let calls = state.subfolder("executions/act_1");
        assert!(matches!(calls.create(), Err(OsError::SymbolicLink { .. })));
        assert!(calls.append("stdout").is_err() && !calls.exists());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "something was written outside");
    }

    #[test]
    fn folders_and_files_are_private_and_a_replaced_folder_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(".abide/native")).unwrap();
        fs::set_permissions(folder.path().join(".abide"), Permissions::from_mode(0o755)).unwrap();
        let state = StateDirectory::create(folder.path(), Path::new(".abide/native/1")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for name in [".abide", ".abide/native", ".abide/native/1"] {
            assert_eq!(mode(&folder.path().join(name)), 0o700, "{name}");
        }
        fs::write(state.path().join("open"), "x").unwrap();
        fs::set_permissions(state.path().join("open"), Permissions::from_mode(0o644)).unwrap();
        for name in ["open", "new"] {
            state.append(name).unwrap();
            assert_eq!(mode(&state.path().join(name)), 0o600, "{name}");
        }
        assert!(state.is_in_place());
        fs::rename(state.path(), folder.path().join("elsewhere")).unwrap();
        assert!(!state.is_in_place());
        fs::create_dir(state.path()).unwrap();
        assert!(!state.is_in_place());
    }
}
