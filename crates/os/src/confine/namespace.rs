//! Hides directories behind empty file systems, in a user and mount namespace.
//!
//! The user namespace does more than to allow the mount. A process in it may not inspect processes outside, even of the
//! same user: access to their `/proc/PID/root`, `cwd`, `fd`, `environ` and `mem` is refused. So a hidden directory
//! cannot be reached through another process either. Signals to those processes are still possible.
//!
//! A process of an ordinary user keeps its user and group, and loses all capabilities with the next `execve`. Root
//! keeps all ids, which only a process outside can set up ([`map_all_ids`]), and its capabilities over the namespace.
//! So for root the mounts are made in one namespace and passed to a second one, in which the kernel does not permit
//! their removal.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, fstat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, mount_remount,
    move_mount, open_tree,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, set_no_new_privs};

use super::{AliasScope, ConfineError, HiddenTree, open_resolved, step_error};
use crate::beneath::Directory;
use crate::cgroup;

const MECHANISM_NAME: &str = "a user and mount namespace";

/// Whether this process needs [`map_all_ids`] from outside: only root has more than one id to keep.
pub fn needs_mapper() -> bool {
    geteuid().is_root()
}

/// Maps the ids of this process when it enters a user namespace. The kernel accepts more than the process's own ids
/// only from a process in the original namespace.
pub trait IdMapper {
    /// Called before the process enters a user namespace.
    fn prepare(&mut self);

    /// Called after the process has entered it. Either a process that was started before calls [`map_all_ids`], or this
    /// one calls [`OwnIds::map`].
    fn map(&mut self) -> io::Result<()>;
}

/// Hides directories from this process and its future descendants.
pub fn hide(tree: &HiddenTree, mapper: &mut impl IdMapper) -> Result<(), ConfineError> {
    let places = tree.places(AliasScope::Reachable)?;
    let working_directory = OpenedDirectory::present()?;
    enter_namespaces(mapper)?;
    // Mounts of the outside propagate inside, but not in the other direction.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(step_error("change the propagation of", Path::new("/")))?;
    for place in &places {
        let found = fs::symlink_metadata(place);
        let found =
            found.map_err(|source| ConfineError::Step { action: "hide", path: place.clone(), source })?;
        if found.is_dir() { hide_directory(tree, place) } else { hide_file(place) }?;
    }
    remount_cgroups_read_only();
    if geteuid().is_root() {
        enter_namespaces(mapper)?;
    }
    working_directory.enter()?;
    set_no_new_privs(true).map_err(step_error("give up new privileges for", Path::new("this process")))
}

fn hide_directory(tree: &HiddenTree, directory: &Path) -> Result<(), ConfineError> {
    let shown: Vec<(PathBuf, ShownPathKind, OwnedFd)> = tree
        .shown_below(directory)
        .filter_map(|path| Some(clone_mount(path).transpose()?.map(|(kind, fd)| (path.to_owned(), kind, fd))))
        .collect::<Result<_, _>>()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", directory, "tmpfs", flags, c"mode=0700,size=256k,nr_inodes=4096")
        .map_err(step_error("mount an empty file system on", directory))?;
    for (path, kind, cloned) in shown {
        let created = match kind {
            ShownPathKind::Directory => fs::create_dir_all(&path),
            ShownPathKind::File => {
                path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, ""))
            }
        };
        created.map_err(|source| ConfineError::Step { action: "make", path: path.clone(), source })?;
        attach_mount(&cloned, &path)?;
    }
    // Read-only, so that a program gets an error instead of losing its data.
    mount_remount(directory, flags | MountFlags::BIND | MountFlags::RDONLY, "")
        .map_err(step_error("make read-only", directory))
}

/// Hides a file that is mounted separately.
fn hide_file(file: &Path) -> Result<(), ConfineError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let empty = open_tree(CWD, EMPTY_FILE, flags).map_err(step_error("open", Path::new(EMPTY_FILE)))?;
    attach_mount(&empty, file)
}

/// The device that replaces a hidden file.
pub const EMPTY_FILE: &str = "/dev/null";

fn attach_mount(cloned: &OwnedFd, path: &Path) -> Result<(), ConfineError> {
    move_mount(cloned, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(step_error("mount", path))
}

/// The working directory before the mount. It refers to the file system before the mount, so `..` would lead around the
/// mount, and the directory is entered again by its path.
struct OpenedDirectory {
    path: PathBuf,
    identity: (u64, u64),
}

impl OpenedDirectory {
    fn present() -> Result<Self, ConfineError> {
        let failed = |source| ConfineError::Step { action: "use", path: ".".into(), source };
        let path = std::env::current_dir().map_err(failed)?;
        let identity = Directory::open(Path::new(".")).and_then(|directory| directory.identity());
        Ok(Self { path, identity: identity.map_err(|error| failed(error.into()))? })
    }

    /// Enters the directory again. Another directory in its place is refused.
    fn enter(self) -> Result<(), ConfineError> {
        let enter = || -> io::Result<()> {
            let directory = Directory::open_without_links(&self.path)?;
            if directory.identity()? != self.identity {
                return Err(io::Error::other("it was replaced by another directory"));
            }
            Ok(rustix::process::fchdir(&directory)?)
        };
        enter().map_err(|source| ConfineError::Step { action: "work in", path: self.path.clone(), source })
    }
}

/// Makes the cgroup v2 hierarchy read-only, so that a process cannot leave its group. Programs can still read their
/// limits. A mount that cannot be changed is ignored, because this is not the purpose of the namespace.
fn remount_cgroups_read_only() {
    for mount in cgroup::find::mounts() {
        let is_set = |name: &str| mount.options.iter().any(|option| option == name);
        let preserved_flags =
            [("nosuid", MountFlags::NOSUID), ("nodev", MountFlags::NODEV), ("noexec", MountFlags::NOEXEC)];
        let preserved_flags =
            preserved_flags.into_iter().filter(|(name, _)| is_set(name)).map(|(_, flag)| flag);
        let flags = preserved_flags.fold(MountFlags::BIND | MountFlags::RDONLY, |all, flag| all | flag);
        mount_remount(&mount.mount_point, flags, "").ok();
    }
}

/// Enters a new user and mount namespace.
fn enter_namespaces(mapper: &mut impl IdMapper) -> Result<(), ConfineError> {
    mapper.prepare();
    let unavailable = |source: io::Error| ConfineError::Unavailable { mechanism: MECHANISM_NAME, source };
    #[expect(
        deprecated,
        reason = "the replacement is unsafe because of UnshareFlags::FILES, which is not used here, and unsafe code is denied"
    )]
    rustix::thread::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
        .map_err(|error| unavailable(error.into()))?;
    mapper.map().map_err(unavailable)
}

enum ShownPathKind {
    Directory,
    File,
}

/// A detached copy of the mount at this path. None if the path does not exist.
fn clone_mount(path: &Path) -> Result<Option<(ShownPathKind, OwnedFd)>, ConfineError> {
    let Some(opened) = open_resolved(path)? else { return Ok(None) };
    let stat = fstat(&opened).map_err(step_error("examine", path))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => ShownPathKind::Directory,
        FileType::RegularFile => ShownPathKind::File,
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Ok(None),
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(&opened, "", flags).map(|fd| Some((kind, fd))).map_err(step_error("open", path))
}

/// The user and group of this process, to be mapped to themselves in a user namespace.
#[derive(Debug, Clone, Copy)]
pub struct OwnIds {
    user: u32,
    group: u32,
}

impl OwnIds {
    /// The current ids. Call it before entering a namespace, because no ids are mapped inside at first.
    pub fn current() -> Self {
        Self { user: geteuid().as_raw(), group: getegid().as_raw() }
    }

    /// Maps the ids to themselves, in the user namespace that this process has just entered.
    pub fn map(self) -> io::Result<()> {
        // The kernel requires this before an unprivileged process may map its group.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", self.user))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", self.group))
    }
}

/// Maps all ids of this namespace to themselves, in the user namespace that another process has just entered.
pub fn map_all_ids(pid: u32) -> io::Result<()> {
    for map in ["uid_map", "gid_map"] {
        let own = fs::read_to_string(format!("/proc/self/{map}"))?;
        let mut same = String::new();
        for line in own.lines() {
            let mut fields = line.split_ascii_whitespace();
            if let (Some(first), Some(_), Some(count)) = (fields.next(), fields.next(), fields.next()) {
                same.push_str(&format!("{first} {first} {count}\n"));
            }
        }
        fs::write(format!("/proc/{pid}/{map}"), same)?;
    }
    Ok(())
}
