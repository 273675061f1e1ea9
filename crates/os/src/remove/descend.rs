//! Opens a directory of a tree that is being removed, and makes it accessible to its owner.

use std::{
    ffi::CStr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, StatxFlags},
    io::Errno,
};

/// The mode bits that the owner of a directory needs to remove its entries.
const OWNER_ACCESS: u32 = 0o700;

/// Identifies a directory. The mount is 0 if the system does not provide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) mount: u64,
}

impl DirectoryIdentity {
    pub(super) fn of(directory: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&directory)?;
        // Bind mounts of the same file system have the same device.
        let mount = rustix::fs::statx(&directory, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
            .map_or(0, |statx| statx.stx_mnt_id);
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, mount })
    }

    pub(super) fn is_same_file_system(&self, other: &Self) -> bool {
        (self.device, self.mount) == (other.device, other.mount)
    }
}

/// Opens the directory `name` in `parent` for listing. Links and mounts are not entered.
pub(super) fn open_for_removal(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let listing = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match open_beneath(&parent, name, listing) {
        Err(Errno::ACCESS) => {
            // Its owner may not list it. An O_PATH descriptor needs no permission on the directory itself.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = open_beneath(&parent, name, flags)?;
            make_accessible(&directory)?;
            rustix::fs::openat(&directory, c".", listing, Mode::empty())?
        }
        opened => opened?,
    };
    // The mode of another user's directory cannot be changed. It can be walked only if this user may search it.
    make_accessible(&opened).ok();
    rustix::fs::openat(&opened, c".", listing, Mode::empty())
}

fn open_beneath(parent: impl AsFd, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(&parent, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(&parent, name, flags, Mode::empty()),
        opened => opened,
    }
}

/// Gives the owner of a directory access to it. It changes the open directory, independent of its current name.
fn make_accessible(directory: impl AsFd) -> Result<(), Errno> {
    let stat: Stat = rustix::fs::fstat(&directory)?;
    if stat.st_mode & OWNER_ACCESS == OWNER_ACCESS {
        return Ok(());
    }
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | OWNER_ACCESS);
    match rustix::fs::fchmod(&directory, mode) {
        // `fchmod` does not accept an O_PATH descriptor; its link in `/proc` leads to the same directory.
        Err(Errno::BADF) => {
            let itself = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
            // Without /proc the directory stays inaccessible.
            rustix::fs::chmodat(CWD, itself, mode, AtFlags::empty()).map_err(|_| Errno::ACCESS)
        }
        changed => changed,
    }
}
