//! Reads the mount table: finds the places at which a directory appears a second time, for example through a bind
//! mount of its parent.
//!
//! Mounts are compared by file system and by their path in it. Mounts of file systems that lie below the directory, and
//! the layers of an overlay, are not found.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::beneath::Directory;

/// A second place of a directory, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountAlias {
    /// The second place. It is a directory or a file.
    pub place: PathBuf,
    /// The same object at or below the directory.
    pub original: PathBuf,
}

impl MountAlias {
    /// Whether the object can be reached at its second place. Another mount may cover it.
    pub fn is_reachable(&self) -> bool {
        identity(&self.place).is_some_and(|found| Some(found) == identity(&self.original))
    }
}

/// The aliases of a directory. `directory` is absolute and without symbolic links.
pub fn find_aliases(directory: &Path) -> io::Result<Vec<MountAlias>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mounts: Vec<MountEntry> = table.split(|byte| *byte == b'\n').filter_map(parse_entry).collect();
    find_in(&mounts, mount_id(directory)?, directory)
        .ok_or_else(|| io::Error::other("its mount is not in /proc/self/mountinfo"))
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MountEntry {
    id: u64,
    /// The device as `MAJOR:MINOR`.
    device: Vec<u8>,
    /// The directory or file of the file system that appears at the mount point.
    root: PathBuf,
    mount_point: PathBuf,
}

/// None if the mount of the directory is not in the table.
fn find_in(mounts: &[MountEntry], id: u64, directory: &Path) -> Option<Vec<MountAlias>> {
    let own = mounts.iter().find(|mount| mount.id == id)?;
    let below = directory.strip_prefix(&own.mount_point).ok()?;
    let path = join(&own.root, below);
    let others = mounts.iter().filter(|mount| mount.id != id && mount.device == own.device);
    let aliases = others.filter_map(|mount| match path.strip_prefix(&mount.root) {
        Ok(below) => {
            Some(MountAlias { place: join(&mount.mount_point, below), original: directory.to_owned() })
        }
        Err(_) => {
            let below = mount.root.strip_prefix(&path).ok()?;
            Some(MountAlias { place: mount.mount_point.clone(), original: join(directory, below) })
        }
    });
    Some(aliases.filter(|alias| alias.place != alias.original).collect())
}

/// Like [`Path::join`], without a slash at the end if `below` is empty.
fn join(path: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { path.to_owned() } else { path.join(below) }
}

/// `ID PARENT DEVICE ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER-OPTIONS`, with blanks as `\040`.
fn parse_entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = fields.nth(1)?.to_vec();
    let mut path = || fields.next().map(|field| PathBuf::from(OsString::from_vec(unescape(field))));
    Some(MountEntry { id, device, root: path()?, mount_point: path()? })
}

/// Decodes the octal escapes of a path in `/proc/self/mountinfo`.
pub(crate) fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut text, mut rest) = (Vec::new(), field);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                text.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                text.push(*first);
                rest = after;
            }
        }
    }
    text
}

/// The id of the mount through which this process sees a directory.
fn mount_id(directory: &Path) -> io::Result<u64> {
    let opened = Directory::open(directory)?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_fd().as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok()).ok_or_else(|| io::Error::other("the kernel reports no mount id"))
}

/// Device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aliases(table: &str, id: u64, directory: &str) -> Option<Vec<(String, String)>> {
        let mounts: Vec<MountEntry> =
            table.as_bytes().split(|byte| *byte == b'\n').filter_map(parse_entry).collect();
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let found = find_in(&mounts, id, Path::new(directory))?.into_iter();
        Some(found.map(|alias| (text(alias.place), text(alias.original))).collect())
    }

    #[test]
    fn mounts_of_the_directory_its_parents_and_its_parts_are_found() {
        let table = "1 0 8:1 / / rw - ext4 a rw\n\
            2 1 8:2 / /data rw shared:1 - ext4 b rw\n\
            3 1 8:2 / /mnt/all\\040data rw - ext4 b rw\n\
            4 1 8:2 /u /mnt/u rw - ext4 b rw\n\
            5 1 8:2 /u/.abide /mnt/abide rw - ext4 b rw\n\
            6 1 8:2 /u/.abide/token /mnt/token rw - ext4 b rw\n\
            7 1 8:2 /u/.abide-other /mnt/other rw - ext4 b rw\n\
            8 1 8:1 /u/.abide /mnt/another-device rw - ext4 a rw\n";
        let home = "/data/u/.abide".to_owned();
        let expected = [
            ("/mnt/all data/u/.abide".to_owned(), home.clone()),
            ("/mnt/u/.abide".to_owned(), home.clone()),
            ("/mnt/abide".to_owned(), home.clone()),
            ("/mnt/token".to_owned(), "/data/u/.abide/token".to_owned()),
        ];
        assert_eq!(aliases(table, 2, &home).unwrap(), expected);
        assert_eq!(aliases(table, 9, &home), None, "an unknown mount");
    }

    #[test]
    fn a_directory_that_is_mounted_itself_is_found_in_its_file_system() {
        let table = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:1 /data/abide /srv rw - ext4 a rw\n";
        assert_eq!(aliases(table, 2, "/srv").unwrap(), [("/data/abide".to_owned(), "/srv".to_owned())]);
        assert_eq!(aliases(table, 2, "/srv/x").unwrap(), [("/data/abide/x".to_owned(), "/srv/x".to_owned())]);
    }

    #[test]
    fn a_directory_without_a_second_place_has_no_aliases() {
        let folder = tempfile::tempdir().unwrap();
        let found = find_aliases(&folder.path().canonicalize().unwrap()).unwrap();
        assert_eq!(found, []);
        assert!(find_aliases(Path::new("/no such directory")).is_err());
    }
}
