//! Copies an untrusted folder: with limits, without following links, and without blocking on special files.
//!
//! Links are copied as links if they cannot lead out of the folder. Others are refused, because an engine would read
//! their targets as part of the folder. `.git` is not copied. The purpose of the copy is not known here.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};

use abide_os::{
    OsError,
    beneath::{Directory, FileKind},
};

/// Mode of created folders, before the umask.
pub(super) const FOLDER_MODE: u32 = 0o755;

/// Limits of a folder.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyLimits {
    /// Total size of all files.
    pub(super) bytes: u64,
    /// Number of files, links and folders.
    pub(super) entries: usize,
}

/// An error of a copy. Paths are relative to the folder.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error("contains {path}, which cannot be read: {source}")]
    Unreadable { path: PathBuf, source: OsError },
    #[error("cannot be copied, because {path} cannot be written: {source}")]
    Unwritable { path: PathBuf, source: OsError },
    #[error("contains the link {path} to {to}, which leaves the folder; put the file itself there")]
    LinkLeavesFolder { path: PathBuf, to: PathBuf },
    #[error("contains {path}, which is a folder of Abide; keep skills in another folder")]
    Protected { path: PathBuf },
    #[error("contains {path}, which is neither a file nor a folder nor a link; remove it")]
    SpecialFile { path: PathBuf },
    #[error("contains more than {} MiB; leave out what the engine does not need", limits.bytes >> 20)]
    TooBig { limits: CopyLimits },
    #[error("contains more than {} files; leave out what the engine does not need", limits.entries)]
    TooMany { limits: CopyLimits },
}

/// Copies the contents of a folder to an empty folder and syncs them. `edit` may change the bytes of a file. A folder
/// that contains one of the protected ones (device and inode), also by a mount, is not copied. Nothing is written before
/// the whole folder has been checked.
pub(super) fn copy_folder(
    source: &Directory,
    target: &Directory,
    limits: CopyLimits,
    protected: &[(u64, u64)],
    edit: &dyn Fn(&Path, &mut Vec<u8>),
) -> Result<(), CopyError> {
    let entries = list_entries(source, limits, protected)?;
    let mut bytes_left = limits.bytes;
    for entry in &entries {
        match entry {
            CopyEntry::Folder(path) => {
                let created = target.create_directory(path, FOLDER_MODE);
                created.map_err(|source| CopyError::Unwritable { path: path.clone(), source })?;
            }
            CopyEntry::Link { path, to } => {
                let created = target.create_link(to, path);
                created.map_err(|source| CopyError::Unwritable { path: path.clone(), source })?;
            }
            CopyEntry::File(path) => {
                // The file may have grown since it was checked.
                let length = copy_file(source, target, path.clone(), bytes_left, edit)?;
                bytes_left = bytes_left.checked_sub(length).ok_or(CopyError::TooBig { limits })?;
            }
        }
    }
    // Folders are synced after their entries, the deepest first.
    for entry in entries.iter().rev() {
        let CopyEntry::Folder(path) = entry else { continue };
        let synced = target.open_directory(path).and_then(|folder| folder.sync());
        synced.map_err(|source| CopyError::Unwritable { path: path.clone(), source })?;
    }
    target.sync().map_err(|source| CopyError::Unwritable { path: PathBuf::new(), source })
}

/// An entry of a folder with its relative path.
enum CopyEntry {
    Folder(PathBuf),
    File(PathBuf),
    Link { path: PathBuf, to: PathBuf },
}

/// Lists a folder recursively. Each entry follows its parent.
fn list_entries(
    source: &Directory,
    limits: CopyLimits,
    protected: &[(u64, u64)],
) -> Result<Vec<CopyEntry>, CopyError> {
    let mut entries = vec![];
    let (mut entry_count, mut bytes) = (0, 0);
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let unreadable = |source| CopyError::Unreadable { path: folder.clone(), source };
        let below = if folder.as_os_str().is_empty() {
            None
        } else {
            let below = source.open_directory(&folder).map_err(unreadable)?;
            entries.push(CopyEntry::Folder(folder.clone()));
            Some(below)
        };
        let here = below.as_ref().unwrap_or(source);
        if protected.contains(&here.identity().map_err(unreadable)?) {
            return Err(CopyError::Protected { path: folder });
        }
        for entry in here.entries().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if entry.name == OsStr::new(".git") {
                continue;
            }
            entry_count += 1;
            if entry_count > limits.entries {
                return Err(CopyError::TooMany { limits });
            }
            let path = folder.join(&entry.name);
            // Metadata of the link itself, not of its target.
            let metadata = here.metadata(&entry.name).map_err(unreadable)?;
            match metadata.kind {
                FileKind::Directory => folders.push(path),
                FileKind::SymbolicLink => entries.push(link(source, path)?),
                FileKind::Regular => {
                    bytes += metadata.size;
                    if bytes > limits.bytes {
                        return Err(CopyError::TooBig { limits });
                    }
                    entries.push(CopyEntry::File(path));
                }
                FileKind::Special => return Err(CopyError::SpecialFile { path }),
            }
        }
    }
    Ok(entries)
}

/// Copies one file. Returns its size, or the limit plus one if it is larger.
fn copy_file(
    source: &Directory,
    target: &Directory,
    path: PathBuf,
    max_bytes: u64,
    edit: &dyn Fn(&Path, &mut Vec<u8>),
) -> Result<u64, CopyError> {
    // The file may have been replaced by a link or FIFO since the check. A link is not followed, and a FIFO does not
    // block.
    let (file, mode) = match open(source, &path) {
        Ok(opened) => opened,
        Err(OsError::NotRegular { .. }) => return Err(CopyError::SpecialFile { path }),
        Err(source) => return Err(CopyError::Unreadable { path, source }),
    };
    let mut bytes = vec![];
    if let Err(error) = file.take(max_bytes + 1).read_to_end(&mut bytes) {
        let source = io_error("read", source, &path, error);
        return Err(CopyError::Unreadable { path, source });
    }
    let length = bytes.len() as u64;
    edit(&path, &mut bytes);
    // The executable bit is kept. The owner can always write the copy, and special mode bits are dropped.
    let written = target.create_file(&path, mode & 0o777 | 0o600).and_then(|mut file| {
        let written = file.write_all(&bytes).and_then(|()| file.sync_all());
        written.map_err(|error| io_error("write", target, &path, error))
    });
    match written {
        Ok(()) => Ok(length),
        Err(source) => Err(CopyError::Unwritable { path, source }),
    }
}

/// Opens a file. Returns it with its mode.
fn open(folder: &Directory, path: &Path) -> Result<(std::fs::File, u32), OsError> {
    let file = folder.open_file(path)?;
    let mode = match file.metadata() {
        Ok(metadata) => metadata.permissions().mode(),
        Err(error) => return Err(io_error("examine", folder, path, error)),
    };
    Ok((file, mode))
}

fn io_error(action: &'static str, folder: &Directory, path: &Path, source: io::Error) -> OsError {
    OsError::System { action, path: folder.path().join(path), source }
}

fn link(source: &Directory, path: PathBuf) -> Result<CopyEntry, CopyError> {
    match source.read_link(&path) {
        Ok(to) if stays_inside(&path, &to) => Ok(CopyEntry::Link { path, to }),
        Ok(to) => Err(CopyError::LinkLeavesFolder { path, to }),
        Err(source) => Err(CopyError::Unreadable { path, source }),
    }
}

/// Returns whether a link cannot lead out of the folder, provided that no other link there can. `..` is accepted only
/// at the beginning, where it starts from a real folder; after a name it could start from the target of another link.
fn stays_inside(path: &Path, to: &Path) -> bool {
    let depth = path.components().count() - 1;
    let ups = to.components().take_while(|part| matches!(part, Component::ParentDir)).count();
    let mut rest = to.components().skip(ups);
    ups <= depth && rest.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Returns whether two folders have equal contents, except for the top-level file `ignored`. Unreadable contents are not
/// equal. `left` is a copy within `limits`. `right` is untrusted, so no more is read of it than `left` holds.
pub(super) fn is_equal(left: &Directory, right: &Directory, ignored: &str, limits: CopyLimits) -> bool {
    compare(left, right, ignored, limits).is_some()
}

/// Returns `None` if they differ.
fn compare(left: &Directory, right: &Directory, ignored: &str, limits: CopyLimits) -> Option<()> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let is_top = folder.as_os_str().is_empty();
        let mut left_names = names(left, &folder, limits.entries)?;
        let mut right_names = names(right, &folder, left_names.len() + 1)?;
        if is_top {
            left_names.retain(|name| name != ignored);
            right_names.retain(|name| name != ignored);
        }
        left_names.sort();
        right_names.sort();
        equal(left_names.as_slice(), right_names.as_slice())?;
        for path in left_names.into_iter().map(|name| folder.join(name)) {
            let (one, other) = (left.metadata(&path).ok()?, right.metadata(&path).ok()?);
            equal(one.kind, other.kind)?;
            match one.kind {
                FileKind::Directory => folders.push(path),
                FileKind::SymbolicLink => {
                    equal(left.read_link(&path).ok()?, right.read_link(&path).ok()?)?;
                }
                FileKind::Regular => {
                    equal((one.size, one.mode), (other.size, other.mode))?;
                    let bytes = left.read_bounded(&path, limits.bytes).ok()?;
                    equal(right.read_bounded(&path, one.size).ok()?, bytes)?;
                }
                FileKind::Special => return None,
            }
        }
    }
    Some(())
}

fn equal<T: PartialEq>(one: T, other: T) -> Option<()> {
    (one == other).then_some(())
}

/// Returns the names in a folder; `None` if there are more than `max_names`.
fn names(root: &Directory, folder: &Path, max_names: usize) -> Option<Vec<OsString>> {
    let below;
    let folder = if folder.as_os_str().is_empty() {
        root
    } else {
        below = root.open_directory(folder).ok()?;
        &below
    };
    let names: Option<Vec<OsString>> =
        folder.entries().ok()?.take(max_names + 1).map(|entry| Some(entry.ok()?.name)).collect();
    names.filter(|names| names.len() <= max_names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_that_contains_a_protected_one_is_not_copied() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("source/sub/db")).unwrap();
        fs::create_dir(place.path().join("target")).unwrap();
        let source = Directory::open(&place.path().join("source")).unwrap();
        let target = Directory::open(&place.path().join("target")).unwrap();
        let protected = [source.open_directory("sub/db").unwrap().identity().unwrap()];
        let limits = CopyLimits { bytes: 100, entries: 10 };
        let error = copy_folder(&source, &target, limits, &protected, &|_, _| {}).unwrap_err();
        assert!(error.to_string().contains("sub/db, which is a folder of Abide"), "{error}");
        assert_eq!(fs::read_dir(place.path().join("target")).unwrap().count(), 0, "nothing was written");
    }
}
