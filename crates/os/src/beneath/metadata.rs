//! File kinds, file attributes and directory entries.

use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::PathBuf,
};

use rustix::fs::{AtFlags, Dir, FileType, Stat};

use super::system_error;
use crate::error::OsError;

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    Directory,
    SymbolicLink,
    /// A FIFO, a socket or a device.
    Special,
}

impl FileKind {
    fn of(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::SymbolicLink,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Self::Special,
        }
    }
}

/// Attributes of a file, a link or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMetadata {
    pub kind: FileKind,
    /// In bytes.
    pub size: u64,
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// Seconds since the Unix epoch.
    pub modified_at: i64,
}

impl From<&Stat> for FileMetadata {
    fn from(stat: &Stat) -> Self {
        Self {
            kind: FileKind::of(FileType::from_raw_mode(stat.st_mode)),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode & 0o7777,
            modified_at: stat.st_mtime,
        }
    }
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Any bytes but NUL and `/`.
    pub name: OsString,
    /// The kind when the directory was read.
    pub kind: FileKind,
}

/// The entries of a directory. Memory does not grow with their number.
#[derive(Debug)]
pub struct DirectoryEntries {
    stream: Dir,
    path: PathBuf,
}

impl DirectoryEntries {
    pub(super) fn read(directory: OwnedFd, path: PathBuf) -> Result<Self, OsError> {
        let stream = Dir::new(directory).map_err(|errno| system_error("list", &path, errno))?;
        Ok(Self { stream, path })
    }
}

impl Iterator for DirectoryEntries {
    type Item = Result<DirectoryEntry, OsError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.stream.read()? {
                Ok(entry) => entry,
                Err(errno) => return Some(Err(system_error("list", &self.path, errno))),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                // Some file systems do not provide the kind.
                let directory = self.stream.fd();
                let stat = directory
                    .and_then(|directory| rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW));
                kind = stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
            }
            let name = OsStr::from_bytes(name.to_bytes()).to_owned();
            return Some(Ok(DirectoryEntry { name, kind: FileKind::of(kind) }));
        }
    }
}
