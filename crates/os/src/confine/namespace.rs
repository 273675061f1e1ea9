//! Hides a directory behind an empty file system, in a user and mount namespace.
//!
//! The user namespace does more than to allow the mount. A process in it may not inspect processes outside, even of the
//! same user: access to their `/proc/PID/root`, `cwd`, `fd`, `environ` and `mem` is refused. So the hidden directory
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

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, mount_remount,
    move_mount, open_tree,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, set_no_new_privs};

use super::{ConfineError, HiddenTree, step};
use crate::cgroup;

const MECHANISM: &str = "a user and mount namespace";

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

/// Hides a directory from this process and its future descendants.
pub fn hide(tree: &HiddenTree, mapper: &mut impl IdMapper) -> Result<(), ConfineError> {
    let directory = tree.directory.as_path();
    // The working directory refers to the file system before the mount, so `..` would lead around it.
    let working = std::env::current_dir().map_err(|source| ConfineError::Step {
        action: "use",
        path: ".".into(),
        source,
    })?;
    enter(mapper)?;
    // Mounts of the outside propagate inside, but not in the other direction.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(step("change the propagation of", Path::new("/")))?;
    let shown: Vec<(PathBuf, ShownPathKind, OwnedFd)> = tree
        .shown_below()
        .filter_map(|path| Some(clone(path)?.map(|(kind, fd)| (path.to_owned(), kind, fd))))
        .collect::<Result<_, _>>()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", directory, "tmpfs", flags, c"mode=0700,size=256k,nr_inodes=4096")
        .map_err(step("mount an empty file system on", directory))?;
    for (path, kind, cloned) in shown {
        let made = match kind {
            ShownPathKind::Directory => fs::create_dir_all(&path),
            ShownPathKind::File => {
                path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, ""))
            }
        };
        made.map_err(|source| ConfineError::Step { action: "make", path: path.clone(), source })?;
        move_mount(&cloned, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(step("mount", &path))?;
    }
    // Read-only, so that a program gets an error instead of losing its data.
    mount_remount(directory, flags | MountFlags::BIND | MountFlags::RDONLY, "")
        .map_err(step("make read-only", directory))?;
    protect_groups();
    if geteuid().is_root() {
        enter(mapper)?;
    }
    std::env::set_current_dir(&working).map_err(|source| ConfineError::Step {
        action: "work in",
        path: working,
        source,
    })?;
    set_no_new_privs(true).map_err(step("give up new privileges for", Path::new("this process")))
}

/// Makes the cgroup v2 hierarchy read-only, so that a process cannot leave its group. Programs can still read their
/// limits. A mount that cannot be changed is ignored, because this is not the purpose of the namespace.
fn protect_groups() {
    for mount in cgroup::find::mounts() {
        let is_set = |name: &str| mount.options.iter().any(|option| option == name);
        let kept =
            [("nosuid", MountFlags::NOSUID), ("nodev", MountFlags::NODEV), ("noexec", MountFlags::NOEXEC)];
        let kept = kept.into_iter().filter(|(name, _)| is_set(name)).map(|(_, flag)| flag);
        let flags = kept.fold(MountFlags::BIND | MountFlags::RDONLY, |all, flag| all | flag);
        mount_remount(&mount.point, flags, "").ok();
    }
}

/// Enters a new user and mount namespace.
fn enter(mapper: &mut impl IdMapper) -> Result<(), ConfineError> {
    mapper.prepare();
    let unavailable = |source: io::Error| ConfineError::Unavailable { mechanism: MECHANISM, source };
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
fn clone(path: &Path) -> Option<Result<(ShownPathKind, OwnedFd), ConfineError>> {
    let kind = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => ShownPathKind::Directory,
        Ok(meta) if meta.is_file() => ShownPathKind::File,
        Ok(_) | Err(_) => return None,
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Some(open_tree(CWD, path, flags).map(|fd| (kind, fd)).map_err(step("open", path)))
}

/// The user and group of this process, to be mapped to themselves in a user namespace.
#[derive(Debug, Clone, Copy)]
pub struct OwnIds {
    user: u32,
    group: u32,
}

impl OwnIds {
    /// The present ids. Call it before entering a namespace, because no ids are mapped inside at first.
    pub fn now() -> Self {
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
