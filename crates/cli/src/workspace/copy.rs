//! Copies a folder that somebody else wrote: bounded, without following links, and without waiting for anything that is
//! no plain file.
//!
//! Links are copied as links if they cannot lead out of the folder; one that can is refused, because what it leads to
//! would be read by an engine as if it belonged there. What git keeps (`.git`) is no part of a folder. What the copy is
//! for is not known here.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use rustix::fs::OFlags;

/// The most that a folder may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// In all its files.
    pub(super) bytes: u64,
    /// Files, links and folders.
    pub(super) entries: usize,
}

/// Why a folder cannot be copied. Paths are from that folder.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("holds {path}, which cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("cannot be copied, because {path} cannot be written: {source}")]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("holds the link {path} to {to}, which leaves the folder; put the file itself there")]
    Leaves { path: PathBuf, to: PathBuf },
    #[error("holds {path}, which is neither a file nor a folder nor a link; remove it")]
    Strange { path: PathBuf },
    #[error("holds more than {} MiB; leave out what the engine does not need", most.bytes >> 20)]
    TooBig { most: Most },
    #[error("holds more than {} files; leave out what the engine does not need", most.entries)]
    TooMany { most: Most },
}

/// Copies a folder to a place where nothing is, and makes it last. `edit` may change a file's bytes on the way.
/// Nothing is written before everything has been looked at.
pub(super) fn folder(
    source: &Path,
    target: &Path,
    most: Most,
    edit: &dyn Fn(&Path, &mut Vec<u8>),
) -> Result<(), Trouble> {
    let entries = survey(source, most)?;
    let mut bytes_left = most.bytes;
    for entry in &entries {
        match entry {
            Entry::Folder(path) => {
                let made = fs::DirBuilder::new().mode(0o755).create(target.join(path));
                made.map_err(|source| Trouble::Unwritable { path: path.clone(), source })?;
            }
            Entry::Link { path, to } => {
                let made = symlink(to, target.join(path));
                made.map_err(|source| Trouble::Unwritable { path: path.clone(), source })?;
            }
            Entry::File(path) => {
                // It may have grown since it was looked at.
                let length = file(source, target, path.clone(), bytes_left, edit)?;
                bytes_left = bytes_left.checked_sub(length).ok_or(Trouble::TooBig { most })?;
            }
        }
    }
    // A folder's own entries last when it is told so, the deepest first.
    for entry in entries.iter().rev() {
        let Entry::Folder(path) = entry else { continue };
        let synced = File::open(target.join(path)).and_then(|folder| folder.sync_all());
        synced.map_err(|source| Trouble::Unwritable { path: path.clone(), source })?;
    }
    Ok(())
}

/// Something in a folder, by its path from there.
enum Entry {
    Folder(PathBuf),
    File(PathBuf),
    Link { path: PathBuf, to: PathBuf },
}

/// Everything in a folder and the folder itself, each after the folder in which it lies.
fn survey(source: &Path, most: Most) -> Result<Vec<Entry>, Trouble> {
    let mut entries = vec![];
    let (mut found, mut bytes) = (0, 0);
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let unreadable = |source| Trouble::Unreadable { path: folder.clone(), source };
        let listed = fs::read_dir(source.join(&folder)).map_err(unreadable)?;
        entries.push(Entry::Folder(folder.clone()));
        for entry in listed {
            let entry = entry.map_err(unreadable)?;
            if entry.file_name() == OsStr::new(".git") {
                continue;
            }
            found += 1;
            if found > most.entries {
                return Err(Trouble::TooMany { most });
            }
            let path = folder.join(entry.file_name());
            // That of a link itself, not of what it leads to.
            let metadata = entry.metadata().map_err(unreadable)?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_symlink() {
                entries.push(link(source, path)?);
            } else if metadata.is_file() {
                bytes += metadata.len();
                if bytes > most.bytes {
                    return Err(Trouble::TooBig { most });
                }
                entries.push(Entry::File(path));
            } else {
                return Err(Trouble::Strange { path });
            }
        }
    }
    Ok(entries)
}

/// Copies one file and says how many bytes it held: one more than the most if it held more than that.
fn file(
    source: &Path,
    target: &Path,
    path: PathBuf,
    most: u64,
    edit: &dyn Fn(&Path, &mut Vec<u8>),
) -> Result<u64, Trouble> {
    // What was a file a moment ago may be a link or a pipe by now: the one is not followed, the other not waited for.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(source.join(&path));
    let opened = opened.and_then(|file| Ok((file.metadata()?, file)));
    let (metadata, file) = match opened {
        Ok(opened) => opened,
        Err(source) => return Err(Trouble::Unreadable { path, source }),
    };
    if !metadata.is_file() {
        return Err(Trouble::Strange { path });
    }
    let mut bytes = vec![];
    if let Err(source) = file.take(most + 1).read_to_end(&mut bytes) {
        return Err(Trouble::Unreadable { path, source });
    }
    let length = bytes.len() as u64;
    edit(&path, &mut bytes);
    // Scripts stay executable. The owner of the copy can always write it, and it gains no other rights.
    let mode = metadata.permissions().mode() & 0o777 | 0o600;
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(target.join(&path));
    let written = made.and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
    match written {
        Ok(()) => Ok(length),
        Err(source) => Err(Trouble::Unwritable { path, source }),
    }
}

fn link(source: &Path, path: PathBuf) -> Result<Entry, Trouble> {
    match fs::read_link(source.join(&path)) {
        Ok(to) if stays(&path, &to) => Ok(Entry::Link { path, to }),
        Ok(to) => Err(Trouble::Leaves { path, to }),
        Err(source) => Err(Trouble::Unreadable { path, source }),
    }
}

/// Whether a link in a folder cannot lead out of it, given that no other link there can. Ways up count only at the
/// beginning, where they start from a real folder; behind a name they could start from wherever a link led.
fn stays(path: &Path, to: &Path) -> bool {
    let depth = path.components().count() - 1;
    let ups = to.components().take_while(|part| matches!(part, Component::ParentDir)).count();
    let mut rest = to.components().skip(ups);
    ups <= depth && rest.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Whether two folders hold the same, but for the file of that name at their top. What cannot be read is not the same.
pub(super) fn same(left: &Path, right: &Path, but: &str) -> bool {
    let (Some(mut names), Some(others)) = (names(left), names(right)) else { return false };
    names.retain(|name| name != but);
    names.len() == others.iter().filter(|name| *name != but).count()
        && names.iter().all(|name| alike(&left.join(name), &right.join(name)))
}

fn alike(left: &Path, right: &Path) -> bool {
    let (Ok(one), Ok(other)) = (fs::symlink_metadata(left), fs::symlink_metadata(right)) else {
        return false;
    };
    if one.file_type() != other.file_type() {
        return false;
    }
    if one.is_dir() {
        return same(left, right, "");
    }
    if one.is_symlink() {
        return fs::read_link(left).ok() == fs::read_link(right).ok();
    }
    one.is_file()
        && one.len() == other.len()
        && one.permissions().mode() == other.permissions().mode()
        && matches!((fs::read(left), fs::read(right)), (Ok(one), Ok(other)) if one == other)
}

fn names(folder: &Path) -> Option<Vec<std::ffi::OsString>> {
    fs::read_dir(folder).ok()?.map(|entry| Some(entry.ok()?.file_name())).collect()
}
