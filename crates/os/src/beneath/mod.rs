//! A directory that is opened once, and the paths below it.
//!
//! The caller names the directory itself. [`Directory::open`] follows links on the way to it;
//! [`Directory::open_without_links`] refuses them. Paths below it are relative to its descriptor and are resolved with
//! `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)`. If the system refuses that call, each
//! component is opened from the one before it with `O_NOFOLLOW`. A symbolic link anywhere below the directory is an
//! error that names the link.
//!
//! Files are opened with `O_NONBLOCK` and examined afterwards. So a FIFO does not block, and the examined file is the
//! one that is read. Path resolution is in `resolve`.

mod metadata;
mod resolve;
#[cfg(test)]
mod tests;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};

use crate::error::OsError;
pub use metadata::{DirectoryEntries, DirectoryEntry, FileKind, FileMetadata};
use resolve::PathResolution;

/// A directory and the paths below it.
#[derive(Debug)]
pub struct Directory {
    /// Opened with `O_PATH`, which needs no permission to list the directory.
    descriptor: OwnedFd,
    /// The path of the caller, for messages.
    path: PathBuf,
    resolution: PathResolution,
}

impl Directory {
    /// Opens a directory that the caller trusts. Links in `path` are followed.
    pub fn open(path: &Path) -> Result<Self, OsError> {
        Self::open_with(path, PathResolution::Openat2)
    }

    /// Opens a directory by an absolute path that was resolved earlier. A component that is a symbolic link is an error
    /// that names it: it was put there after the path had been resolved.
    pub fn open_without_links(path: &Path) -> Result<Self, OsError> {
        let root = Self::open(Path::new("/"))?;
        match path.strip_prefix("/") {
            Ok(relative) if relative.as_os_str().is_empty() => Ok(root),
            Ok(relative) => root.open_directory(relative),
            Err(_) => Err(OsError::InvalidPath { path: path.to_owned() }),
        }
    }

    fn open_with(path: &Path, resolution: PathResolution) -> Result<Self, OsError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
        let descriptor = opened.map_err(|errno| system_error("open", path, errno))?;
        Ok(Self { descriptor, path: path.to_owned(), resolution })
    }

    /// The path with which the directory was opened. It may have moved since.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode. Equal for two descriptors of the same directory.
    pub fn identity(&self) -> Result<(u64, u64), OsError> {
        let stat = rustix::fs::fstat(&self.descriptor)
            .map_err(|errno| system_error("examine", &self.path, errno))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Opens a directory below this one.
    pub fn open_directory(&self, relative: impl AsRef<Path>) -> Result<Self, OsError> {
        let relative = relative.as_ref();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let descriptor = self.resolve(relative, flags, Mode::empty(), "open")?;
        Ok(Self { descriptor, path: self.path.join(relative), resolution: self.resolution })
    }

    /// Creates one directory, which must not exist yet. The umask applies to `mode`.
    pub fn create_directory(&self, relative: impl AsRef<Path>, mode: u32) -> Result<(), OsError> {
        let (parent, name) = self.open_parent(relative.as_ref())?;
        let result = rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode));
        result.map_err(|errno| self.system_error("create", relative.as_ref(), errno))
    }

    /// Opens a directory below this one. Missing directories are created with `mode`; existing ones are not changed.
    pub fn create_directories(&self, relative: impl AsRef<Path>, mode: u32) -> Result<Self, OsError> {
        let relative = relative.as_ref();
        let mut directory = None;
        for component in self.components(relative)? {
            let above = directory.as_ref().unwrap_or(self);
            match above.create_directory(component, mode) {
                Ok(()) => {}
                // A read-only file system returns this error for an existing directory too, so the open decides.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let existing = above.open_directory(component).map_err(|_| error)?;
                    directory = Some(existing);
                    continue;
                }
            }
            directory = Some(above.open_directory(component)?);
        }
        directory.ok_or_else(|| OsError::InvalidPath { path: relative.to_owned() })
    }

    /// Opens a regular file for reading. Directories, FIFOs, sockets and devices are refused.
    pub fn open_file(&self, relative: impl AsRef<Path>) -> Result<File, OsError> {
        self.open_regular(relative.as_ref(), OFlags::RDONLY, 0, "open")
    }

    /// Reads a whole regular file of at most `max_bytes` bytes.
    pub fn read_bounded(&self, relative: impl AsRef<Path>, max_bytes: u64) -> Result<Vec<u8>, OsError> {
        let relative = relative.as_ref();
        let file = self.open_file(relative)?;
        let mut bytes = Vec::new();
        let read = file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|source| OsError::System { action: "read", path: self.path.join(relative), source })?;
        if bytes.len() as u64 > max_bytes {
            return Err(OsError::TooLarge { path: self.path.join(relative), max_bytes });
        }
        Ok(bytes)
    }

    /// Creates a file, which must not exist yet, and opens it for writing. The umask applies to `mode`.
    pub fn create_file(&self, relative: impl AsRef<Path>, mode: u32) -> Result<File, OsError> {
        self.open_regular(relative.as_ref(), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode, "create")
    }

    /// Opens a regular file for appending and reading. A missing file is created.
    pub fn append_file(&self, relative: impl AsRef<Path>, mode: u32) -> Result<File, OsError> {
        self.open_regular(relative.as_ref(), OFlags::RDWR | OFlags::CREATE | OFlags::APPEND, mode, "open")
    }

    /// Replaces a file atomically: after a crash it has the old contents or the new. An existing file or link is
    /// replaced without being opened; a directory is an error.
    pub fn write_file(&self, relative: impl AsRef<Path>, bytes: &[u8], mode: u32) -> Result<(), OsError> {
        let relative = relative.as_ref();
        let (_, name) = self.open_parent(relative)?;
        let mut temporary = name.to_owned();
        temporary.push(".tmp");
        let temporary = relative.with_file_name(temporary);
        match self.unlink(&temporary) {
            Err(error) if !error.is_not_found() => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = self.create_file(&temporary, mode)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.map_err(|source| OsError::System {
            action: "write",
            path: self.path.join(&temporary),
            source,
        })?;
        self.rename(&temporary, self, relative)?;
        match relative.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => self.open_directory(parent)?.sync(),
            None => self.sync(),
        }
    }

    /// Moves a file, link or directory, and replaces what `rename(2)` replaces: a file, a link or an empty directory.
    pub fn rename(&self, from: impl AsRef<Path>, target: &Self, to: impl AsRef<Path>) -> Result<(), OsError> {
        self.rename_with(from.as_ref(), target, to.as_ref(), RenameFlags::empty())
    }

    /// Moves a file, link or directory to an unused name; `AlreadyExists` if it is used.
    pub fn rename_no_replace(
        &self,
        from: impl AsRef<Path>,
        target: &Self,
        to: impl AsRef<Path>,
    ) -> Result<(), OsError> {
        self.rename_with(from.as_ref(), target, to.as_ref(), RenameFlags::NOREPLACE)
    }

    fn rename_with(&self, from: &Path, target: &Self, to: &Path, flags: RenameFlags) -> Result<(), OsError> {
        let (source_parent, source_name) = self.open_parent(from)?;
        let (target_parent, target_name) = target.open_parent(to)?;
        let renamed =
            rustix::fs::renameat_with(&source_parent, source_name, &target_parent, target_name, flags);
        renamed.map_err(|errno| self.system_error("rename", from, errno))
    }

    /// Deletes a file or link. A directory is an error: see [`crate::remove`].
    pub fn unlink(&self, relative: impl AsRef<Path>) -> Result<(), OsError> {
        let (parent, name) = self.open_parent(relative.as_ref())?;
        let unlinked = rustix::fs::unlinkat(&parent, name, AtFlags::empty());
        unlinked.map_err(|errno| self.system_error("delete", relative.as_ref(), errno))
    }

    /// Creates a symbolic link with this target. The target is not checked.
    pub fn create_link(&self, target: &Path, relative: impl AsRef<Path>) -> Result<(), OsError> {
        let (parent, name) = self.open_parent(relative.as_ref())?;
        let result = rustix::fs::symlinkat(target, &parent, name);
        result.map_err(|errno| self.system_error("create", relative.as_ref(), errno))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, relative: impl AsRef<Path>) -> Result<PathBuf, OsError> {
        let (parent, name) = self.open_parent(relative.as_ref())?;
        let read = rustix::fs::readlinkat(&parent, name, Vec::new());
        let text = read.map_err(|errno| self.system_error("read", relative.as_ref(), errno))?;
        Ok(OsString::from_vec(text.into_bytes()).into())
    }

    /// The attributes of a path; a link is described, not followed.
    pub fn metadata(&self, relative: impl AsRef<Path>) -> Result<FileMetadata, OsError> {
        let (parent, name) = self.open_parent(relative.as_ref())?;
        let stat = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.map(|stat| FileMetadata::from(&stat))
            .map_err(|errno| self.system_error("examine", relative.as_ref(), errno))
    }

    /// The entries of this directory, without `.` and `..`, in no particular order.
    pub fn entries(&self) -> Result<DirectoryEntries, OsError> {
        DirectoryEntries::read(self.open_for_listing()?, self.path.clone())
    }

    /// Syncs the directory, so that the names in it are durable.
    pub fn sync(&self) -> Result<(), OsError> {
        let synced = rustix::fs::fsync(self.open_for_listing()?);
        synced.map_err(|errno| system_error("sync", &self.path, errno))
    }

    /// The same directory, opened for listing.
    fn open_for_listing(&self) -> Result<OwnedFd, OsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.descriptor, ".", flags, Mode::empty());
        opened.map_err(|errno| system_error("list", &self.path, errno))
    }

    fn open_regular(
        &self,
        relative: &Path,
        flags: OFlags,
        mode: u32,
        action: &'static str,
    ) -> Result<File, OsError> {
        // Without NONBLOCK, opening a FIFO would wait for its other end.
        let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let file = File::from(self.resolve(relative, flags, Mode::from_raw_mode(mode), action)?);
        let path = || self.path.join(relative);
        let metadata =
            file.metadata().map_err(|source| OsError::System { action: "examine", path: path(), source })?;
        if metadata.is_file() { Ok(file) } else { Err(OsError::NotRegular { path: path() }) }
    }

    /// The parent directory of a path, and its last component.
    fn open_parent<'a>(&self, relative: &'a Path) -> Result<(OwnedFd, &'a OsStr), OsError> {
        let mut components = self.components(relative)?;
        let name = components.pop().ok_or_else(|| OsError::InvalidPath { path: relative.to_owned() })?;
        if components.is_empty() {
            let same = rustix::io::fcntl_dupfd_cloexec(&self.descriptor, 0);
            return Ok((same.map_err(|errno| system_error("open", &self.path, errno))?, name));
        }
        let parent_path: PathBuf = components.iter().collect();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok((self.resolve(&parent_path, flags, Mode::empty(), "open")?, name))
    }

    fn system_error(&self, action: &'static str, relative: &Path, errno: Errno) -> OsError {
        system_error(action, &self.path.join(relative), errno)
    }
}

/// Opens any file by an absolute path that was resolved earlier, with `O_PATH`. A symbolic link is an error that names it.
pub(crate) fn open_path_without_links(path: &Path) -> Result<OwnedFd, OsError> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        // The root directory, or a path that ends in `..`, which is refused.
        return Ok(Directory::open_without_links(path)?.descriptor);
    };
    let (directory, name) = (Directory::open_without_links(above)?, Path::new(name));
    let opened = directory.resolve(name, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty(), "open")?;
    // With `O_PATH | O_NOFOLLOW`, a link in the last place is opened itself.
    let stat = rustix::fs::fstat(&opened).map_err(|errno| system_error("examine", path, errno))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(OsError::SymbolicLink { path: path.to_owned() });
    }
    Ok(opened)
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn system_error(action: &'static str, path: &Path, errno: Errno) -> OsError {
    OsError::System { action, path: path.to_owned(), source: errno.into() }
}

fn has_nul(component: &OsStr) -> bool {
    component.as_bytes().contains(&0)
}
