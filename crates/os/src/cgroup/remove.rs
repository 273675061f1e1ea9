//! Removes a group and its subgroups. A program may have nested them deeper than the maximum length of a path.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use super::{CgroupError, ControlGroup};
use crate::clock::monotonic;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(super) fn remove(group: &ControlGroup, timeout: Duration) -> Result<(), CgroupError> {
    match unlinkat(CWD, group.path(), AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // The group has subgroups or contains processes.
        Err(Errno::BUSY | Errno::NOTEMPTY) => {}
        Err(error) => return Err(group.io_error("remove", "")(error.into())),
    }
    if group.is_populated().unwrap_or(false) {
        return Err(CgroupError::Populated { path: group.path().to_owned() });
    }
    remove_below(group, timeout).and_then(|()| unlinkat(CWD, group.path(), AtFlags::REMOVEDIR)).or_else(
        |error| match error {
            Errno::NOENT => Ok(()),
            Errno::BUSY => Err(CgroupError::Populated { path: group.path().to_owned() }),
            error => Err(group.io_error("remove", "")(error.into())),
        },
    )
}

/// Removes the subgroups of a group. Only one directory is open at a time. Groups cannot be moved, so `..` leads back.
fn remove_below(group: &ControlGroup, timeout: Duration) -> Result<(), Errno> {
    let give_up_at = monotonic().saturating_add(timeout);
    let mut directory = openat(CWD, group.path(), DIRECTORY, Mode::empty())?;
    let mut names: Vec<CString> = Vec::new();
    while monotonic() < give_up_at {
        if let Some(name) = first_directory(&directory)? {
            directory = openat(&directory, &name, DIRECTORY, Mode::empty())?;
            names.push(name);
        } else if let Some(name) = names.pop() {
            directory = openat(&directory, "..", DIRECTORY, Mode::empty())?;
            unlinkat(&directory, &name, AtFlags::REMOVEDIR)?;
        } else {
            return Ok(());
        }
    }
    Err(Errno::TIMEDOUT)
}

fn first_directory(directory: &OwnedFd) -> Result<Option<CString>, Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}
