//! A directory hidden behind an empty file system, in a user and mount namespace.
//!
//! The user namespace does more than to allow the mount. A process in it may not look into processes outside, although they
//! have the same user: `/proc/PID/root`, `cwd`, `fd`, `environ` and `mem` of those are refused. So the hidden directory cannot
//! be reached through another process either. It may still signal them.
//!
//! A process of an ordinary user keeps its user and group, and loses all capabilities with the next `execve`. Root keeps all
//! ids, which only a process outside can set up ([`map_all_ids`]), and its capabilities over the namespace. For root the
//! mounts are therefore made in one namespace and handed to a second one, in which the kernel does not let them be removed.

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

/// Who maps the ids of this process when it enters a user namespace. The kernel accepts more than the process's own ids only
/// from a process in the namespace that was left.
pub trait IdMapper {
    /// The process is about to enter a user namespace.
    fn prepare(&mut self);

    /// It has entered it. Either has [`map_all_ids`] called by a process that was started before, or calls [`OwnIds::map`].
    fn map(&mut self) -> io::Result<()>;
}

/// Hides a directory from this process and everything that it starts.
pub fn hide(tree: &HiddenTree, mapper: &mut impl IdMapper) -> Result<(), ConfineError> {
    let directory = tree.directory.as_path();
    // The working directory is a reference to the file system as it was, from which `..` would lead around the mount.
    let working = std::env::current_dir().map_err(|source| ConfineError::Step {
        action: "use",
        path: ".".into(),
        source,
    })?;
    enter(mapper)?;
    // Mounts of the outside appear inside, but not the other way round.
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
    // A program that wants to write here is told so, instead of losing what it wrote.
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

/// Makes the cgroup v2 hierarchy read-only, so that a process does not leave its group. Programs still read their limits there.
/// A mount that cannot be changed stays as it is: it is not what this namespace is for.
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

/// What a shown path is.
enum ShownPathKind {
    Directory,
    File,
}

/// A copy of the mount at this path, which does not lie anywhere yet. None if nothing is there.
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

/// The user and group of this process, to be mapped to themselves in a user namespace that it enters later.
#[derive(Debug, Clone, Copy)]
pub struct OwnIds {
    user: u32,
    group: u32,
}

impl OwnIds {
    /// Those that the process has now. Inside a new namespace nothing is mapped yet, so this comes first.
    pub fn now() -> Self {
        Self { user: geteuid().as_raw(), group: getegid().as_raw() }
    }

    /// Maps them to themselves, in the user namespace that this process has just entered.
    pub fn map(self) -> io::Result<()> {
        // The kernel asks for this before it lets a process without privileges map its group.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", self.user))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", self.group))
    }
}

/// Maps all ids that exist here to themselves, in the user namespace that another process has just entered.
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
