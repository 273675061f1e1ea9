//! Control groups (cgroup v2): groups of processes that are limited and killed together.
//!
//! A process cannot leave its group by forking, by creating a session or by the death of its parent. It can only leave
//! by a write to a file of another group, which needs permission there. So a group contains all descendants of a
//! program.
//!
//! - [`find`] finds the mounts of the hierarchy and the group of this process, and checks for delegation.
//! - [`ControlGroup`] creates, limits, enters, kills and removes one group. It accepts any directory, so tests can use
//!   a directory tree that imitates a hierarchy.
//!
//! The caller chooses the group for each program and its parent.

pub mod find;

mod kill;
mod remove;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::monotonic;

/// One control group, identified by its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    path: PathBuf,
}

/// The limits of a group, including its subgroups. None means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControlGroupLimits {
    /// `memory.max`, in bytes.
    pub memory_bytes: Option<u64>,
    /// `pids.max`: processes and threads.
    pub pids: Option<u64>,
}

impl ControlGroupLimits {
    /// Whether no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The controllers of these limits, each with its file and value.
    fn controller_values(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let memory = self.memory_bytes.map(|bytes| ("memory", "memory.max", bytes));
        let pids = self.pids.map(|count| ("pids", "pids.max", count));
        [memory, pids].into_iter().flatten()
    }
}

/// Errors of operations on a group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The name contains a path, or is not valid for a group.
    #[error("{name:?} cannot be the name of a control group: use 1 to {max} letters, digits, '-', '_' and '.', not '.' first", max = MAX_NAME_BYTES)]
    Name { name: String },
    /// A limit needs a controller that the group does not have.
    #[error("the controller {controller} is not available in {path}")]
    Controller {
        /// For example `memory`.
        controller: &'static str,
        path: PathBuf,
    },
    #[error("processes are left in the control group {path}")]
    Populated { path: PathBuf },
    /// A system call failed.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// A verb, for example `make`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl CgroupError {
    /// Whether the group does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Maximum length of a group's name.
const MAX_NAME_BYTES: usize = 128;
/// Maximum size of a group's file.
const MAX_FILE_BYTES: u64 = 4 << 20;

impl ControlGroup {
    /// The group with this directory; it need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// A direct subgroup; it need not exist. Only plain names are accepted.
    pub fn child(&self, name: &str) -> Result<Self, CgroupError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
        if fits && !name.starts_with('.') && name.bytes().all(is_plain) {
            Ok(Self { path: self.path.join(name) })
        } else {
            Err(CgroupError::Name { name: name.to_owned() })
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// Creates the group, unless it exists.
    pub fn create(&self) -> Result<(), CgroupError> {
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.io_error("make", "")(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The names of the direct subgroups; empty if the group does not exist.
    pub fn children(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().filter_map(Result::ok);
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Sets the limits. A limit of `None` is not changed.
    pub fn set_limits(&self, limits: &ControlGroupLimits) -> Result<(), CgroupError> {
        for (controller, file, value) in limits.controller_values() {
            self.write(file, &value.to_string()).map_err(|error| {
                if error.is_not_found() && self.exists() {
                    CgroupError::Controller { controller, path: self.path.clone() }
                } else {
                    error
                }
            })?;
        }
        Ok(())
    }

    /// Enables the controllers of these limits for the subgroups. The kernel refuses this for a group that contains
    /// processes, unless it is the root of the hierarchy.
    pub fn enable_for_children(&self, limits: &ControlGroupLimits) -> Result<(), CgroupError> {
        let available = self.read("cgroup.controllers")?;
        let enabled = self.read("cgroup.subtree_control")?;
        for (controller, _, _) in limits.controller_values() {
            if !available.split_ascii_whitespace().any(|name| name == controller) {
                return Err(CgroupError::Controller { controller, path: self.path.clone() });
            }
            if !enabled.split_ascii_whitespace().any(|name| name == controller) {
                self.write("cgroup.subtree_control", &format!("+{controller}"))?;
            }
        }
        Ok(())
    }

    /// Moves the calling process into the group. Processes that it starts later are in the group too.
    pub fn enter(&self) -> Result<(), CgroupError> {
        self.write("cgroup.procs", "0")
    }

    /// The processes in the group, without those in subgroups.
    pub fn processes(&self) -> Result<Vec<u32>, CgroupError> {
        let list = self.read("cgroup.procs")?;
        Ok(list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    }

    /// Whether the group or a subgroup contains a process. Zombies do not count.
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        Ok(self.read("cgroup.events")?.lines().any(|line| line == "populated 1"))
    }

    /// Waits until the group is not populated, with a timeout. Returns whether it is empty. A group that does not exist
    /// is empty.
    pub fn wait_until_empty(&self, timeout: Duration) -> bool {
        let give_up_at = monotonic().saturating_add(timeout);
        let Ok(events) = File::open(self.path.join("cgroup.events")) else { return true };
        loop {
            // Read again each time, because the kernel reports a change once to each open file.
            match self.is_populated() {
                Ok(true) => {}
                Ok(false) | Err(_) => return true,
            }
            let left = give_up_at.saturating_sub(monotonic());
            if left.is_zero() {
                return false;
            }
            let wait = Timespec { tv_sec: 0, tv_nsec: left.min(MAX_POLL_INTERVAL).subsec_nanos().into() };
            // Only a pause, which a change ends early.
            poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&wait)).ok();
        }
    }

    /// Kills all processes in the group and its subgroups, including those forked meanwhile. On kernels before 5.14,
    /// the group is frozen and its processes are killed one by one.
    pub fn kill(&self) -> Result<(), CgroupError> {
        match self.write("cgroup.kill", "1") {
            Err(error) if error.is_not_found() && self.exists() => kill::kill_one_by_one(self),
            Err(error) if error.is_not_found() => Ok(()),
            killed => killed,
        }
    }

    /// Removes the group and its subgroups, with a time limit. Succeeds if the group does not exist. A group that
    /// contains processes is not changed.
    pub fn remove(&self, timeout: Duration) -> Result<(), CgroupError> {
        remove::remove(self, timeout)
    }

    fn read(&self, name: &str) -> Result<String, CgroupError> {
        let mut text = String::new();
        let opened = File::open(self.path.join(name));
        opened
            .and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text))
            .map_err(self.io_error("read", name))?;
        Ok(text)
    }

    /// Writes to an existing file: the kernel creates the files of a group.
    fn write(&self, name: &str, value: &str) -> Result<(), CgroupError> {
        let opened = File::options().write(true).open(self.path.join(name));
        opened.and_then(|mut file| file.write_all(value.as_bytes())).map_err(self.io_error("write", name))
    }

    fn io_error(&self, action: &'static str, name: &str) -> impl FnOnce(io::Error) -> CgroupError {
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        move |source| CgroupError::System { action, path, source }
    }
}

/// Maximum interval of checks on a group.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(20);
