//! Resolves a relative path to a descriptor without following links.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::{Directory, has_nul};
use crate::error::OsError;

/// The method of path resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathResolution {
    /// With `openat2`, or by components if the system refuses that call.
    Openat2,
    /// Component by component. Only tests select it; systems without `openat2` fall back to it.
    #[cfg_attr(not(test), expect(dead_code, reason = "only tests choose it"))]
    Components,
}

impl Directory {
    /// The components of a path below this directory. Those that are `.` are left out.
    pub(super) fn components<'a>(&self, relative: &'a Path) -> Result<Vec<&'a OsStr>, OsError> {
        let invalid = || OsError::InvalidPath { path: relative.to_owned() };
        let mut components = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) if !has_nul(name) => components.push(name),
                Component::CurDir => {}
                Component::Normal(_) | Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(invalid());
                }
            }
        }
        if components.is_empty() { Err(invalid()) } else { Ok(components) }
    }

    /// Opens a path below this directory.
    pub(super) fn resolve(
        &self,
        relative: &Path,
        flags: OFlags,
        mode: Mode,
        action: &'static str,
    ) -> Result<OwnedFd, OsError> {
        let components = self.components(relative)?;
        let path: PathBuf = components.iter().collect();
        let flags = flags | OFlags::CLOEXEC;
        let opened = match self.resolution {
            PathResolution::Openat2 => {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                match rustix::fs::openat2(&self.descriptor, &path, flags, mode, resolve) {
                    // Old kernels do not have the call, and seccomp filters of containers forbid it.
                    Err(Errno::NOSYS | Errno::PERM) => self.open_by_components(&components, flags, mode),
                    opened => opened,
                }
            }
            PathResolution::Components => self.open_by_components(&components, flags, mode),
        };
        opened.map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => match self.first_link(&components) {
                Some(path) => OsError::SymbolicLink { path },
                None => self.system_error(action, relative, errno),
            },
            // A socket cannot be opened, nor a FIFO for writing while it has no reader.
            Errno::NXIO => OsError::NotRegular { path: self.path.join(relative) },
            Errno::ISDIR => OsError::NotRegular { path: self.path.join(relative) },
            _ => self.system_error(action, relative, errno),
        })
    }

    fn open_by_components(&self, components: &[&OsStr], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let (name, above) = components.split_last().ok_or(Errno::NOENT)?;
        let parent = self.open_directories(above)?;
        let parent = parent.as_ref().map_or(self.descriptor.as_fd(), AsFd::as_fd);
        rustix::fs::openat(parent, *name, flags | OFlags::NOFOLLOW, mode)
    }

    /// Opens directories one below the other. None if there is no component: it is this directory.
    fn open_directories(&self, components: &[&OsStr]) -> Result<Option<OwnedFd>, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory: Option<OwnedFd> = None;
        for component in components {
            let above = directory.as_ref().map_or(self.descriptor.as_fd(), AsFd::as_fd);
            directory = Some(rustix::fs::openat(above, *component, flags, Mode::empty())?);
        }
        Ok(directory)
    }

    /// The first component that is a symbolic link, as a path for messages.
    fn first_link(&self, components: &[&OsStr]) -> Option<PathBuf> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut above: Option<OwnedFd> = None;
        let mut path = self.path.clone();
        for component in components {
            path.push(component);
            let parent = above.as_ref().map_or(self.descriptor.as_fd(), AsFd::as_fd);
            let found = rustix::fs::statat(parent, *component, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
                return Some(path);
            }
            above = Some(rustix::fs::openat(parent, *component, flags, Mode::empty()).ok()?);
        }
        None
    }
}
