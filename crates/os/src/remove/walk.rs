//! The walk through a tree that is being removed: down by name, up by `..`, one directory open at a time.

use std::{
    collections::HashSet,
    ffi::{CStr, CString, OsStr},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::PathBuf,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, RenameFlags},
    io::Errno,
};

use super::{MAX_DEPTH, RemovalStep, TreeRemoval, descend, descend::DirectoryIdentity, remove_one};
use crate::{beneath::Directory, clock};

/// Maximum number of names in memory, over all levels.
const MAX_NAMES: usize = 16_384;
/// Maximum number of subdirectories collected in one pass over a directory.
const MAX_PENDING: usize = 1_024;
/// Maximum number of restarts at the top because a directory was moved away.
const MAX_RESTARTS: u32 = 1_000;
/// Maximum number of components in a reported path.
const MAX_REPORTED_COMPONENTS: usize = 16;

/// A removal in progress.
pub(super) struct RemovalWalk<'a> {
    /// The parent of the tree.
    parent: &'a Directory,
    removal: &'a mut TreeRemoval,
    deadline: Duration,
    /// From the top of the tree to the current directory.
    levels: Vec<WalkLevel>,
    name: CString,
    /// Number of names in all levels.
    name_count: usize,
    /// Counter for the names of directories that were moved up.
    moved_count: u64,
    restarts: u32,
}

/// A directory between the top of the tree and the current one.
struct WalkLevel {
    name: CString,
    identity: DirectoryIdentity,
    /// Subdirectories that have entries.
    pending: Vec<CString>,
    /// Entries that cannot be removed. They are not retried.
    unremovable: HashSet<CString>,
    /// True if an entry, and so this directory, cannot be removed.
    has_unremovable: bool,
    /// True if the directory is not read again, because too many entries cannot be removed.
    is_final_pass: bool,
}

/// Whether the walk continues.
enum WalkProgress {
    Continue,
    Finished,
}

impl<'a> RemovalWalk<'a> {
    pub(super) fn new(
        above: &'a Directory,
        name: CString,
        deadline: Duration,
        removal: &'a mut TreeRemoval,
    ) -> Self {
        Self {
            parent: above,
            removal,
            deadline,
            levels: Vec::new(),
            name,
            name_count: 0,
            moved_count: 0,
            restarts: 0,
        }
    }

    pub(super) fn run(&mut self) {
        self.run_with(|| {});
    }

    /// Calls `between_steps` after each step. Tests use it to change the tree at a known moment.
    pub(super) fn run_with(&mut self, mut between_steps: impl FnMut()) {
        let name = self.name.clone();
        let opened = descend::open_for_removal(self.parent, &name)
            .and_then(|directory| Ok((DirectoryIdentity::of(&directory)?, directory)));
        let (identity, top) = match opened {
            Ok(opened) => opened,
            Err(errno) => return self.record_failure(None, errno),
        };
        // Another file system is mounted there.
        if DirectoryIdentity::of(self.parent).is_ok_and(|above| !above.is_same_file_system(&identity)) {
            return self.record_failure(None, Errno::XDEV);
        }
        let mut current = match self.reopen(&top) {
            Ok(directory) => directory,
            Err(errno) => return self.record_failure(None, errno),
        };
        self.levels.push(WalkLevel::new(name, identity));
        loop {
            match self.step(&top, &mut current) {
                Ok(WalkProgress::Continue) => {}
                Ok(WalkProgress::Finished) => return,
                Err(errno) => return self.record_failure(None, errno),
            }
            between_steps();
            if clock::monotonic() >= self.deadline {
                self.removal.timed_out = true;
                return;
            }
        }
    }

    /// One pass over a directory, or one step down or up.
    fn step(&mut self, top: &OwnedFd, current: &mut OwnedFd) -> Result<WalkProgress, Errno> {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else { return Ok(WalkProgress::Finished) };
        if let Some(child) = level.pending.pop() {
            self.name_count -= 1;
            if depth >= MAX_DEPTH {
                self.move_up(current, top, &child);
            } else {
                self.enter(current, child);
            }
            return Ok(WalkProgress::Continue);
        }
        if !level.is_final_pass && self.process_entries(current) {
            return Ok(WalkProgress::Continue);
        }
        self.remove_and_ascend(top, current)
    }

    /// Removes the entries that can be removed at once and collects the others. Returns whether there was anything to
    /// do.
    fn process_entries(&mut self, current: &OwnedFd) -> bool {
        let mut has_entries = false;
        let mut entries = match Dir::read_from(current) {
            Ok(entries) => entries,
            Err(errno) => {
                self.record_unreadable(errno);
                return false;
            }
        };
        while let Some(entry) = entries.read() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) => {
                    self.record_unreadable(errno);
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || self.current_level().unremovable.contains(name) {
                continue;
            }
            has_entries = true;
            match remove_one(current, name) {
                RemovalStep::Removed => self.removal.removed += 1,
                RemovalStep::Missing => {}
                RemovalStep::NotEmpty => {
                    let name = name.to_owned();
                    self.current_level().pending.push(name);
                    self.name_count += 1;
                    if self.current_level().pending.len() >= MAX_PENDING || self.name_count >= MAX_NAMES {
                        break;
                    }
                }
                RemovalStep::Failed(errno) => self.record_unremovable(name.to_owned(), errno),
            }
            if clock::monotonic() >= self.deadline {
                break;
            }
        }
        has_entries
    }

    fn record_unreadable(&mut self, errno: Errno) {
        self.record_failure(None, errno);
        let level = self.current_level();
        level.has_unremovable = true;
        level.is_final_pass = true;
    }

    /// Descends into a directory.
    fn enter(&mut self, current: &mut OwnedFd, name: CString) {
        let opened = descend::open_for_removal(&*current, &name)
            .and_then(|directory| Ok((DirectoryIdentity::of(&directory)?, directory)));
        match opened {
            Ok((identity, directory)) if identity.is_same_file_system(&self.current_level().identity) => {
                *current = directory;
                self.levels.push(WalkLevel::new(name, identity));
            }
            Ok(_) => self.record_unremovable(name, Errno::XDEV),
            // The entry was replaced meanwhile. The next pass finds it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => self.record_unremovable(name, errno),
        }
    }

    /// Moves a directory that is too deep to the top of the tree, where the walk finds it later.
    fn move_up(&mut self, current: &OwnedFd, top: &OwnedFd, name: &CStr) {
        loop {
            self.moved_count += 1;
            let target = format!("removing-{}", self.moved_count);
            match rustix::fs::renameat_with(current, name, top, &target, RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => return,
                Err(Errno::EXIST) => {}
                // The move must change `..` of the directory, which its mode forbids. Opening it makes it accessible.
                Err(Errno::ACCESS) => {
                    let accessible = descend::open_for_removal(current, name);
                    let moved = accessible.and_then(|_| {
                        rustix::fs::renameat_with(current, name, top, &target, RenameFlags::NOREPLACE)
                    });
                    if let Err(errno) = moved {
                        self.record_unremovable(name.to_owned(), errno);
                    }
                    return;
                }
                Err(errno) => return self.record_unremovable(name.to_owned(), errno),
            }
        }
    }

    /// Leaves an empty directory and removes it.
    fn remove_and_ascend(&mut self, top: &OwnedFd, current: &mut OwnedFd) -> Result<WalkProgress, Errno> {
        let Some(level) = self.levels.pop() else { return Ok(WalkProgress::Finished) };
        self.name_count -= level.unremovable.len();
        let Some(parent) = self.levels.last() else {
            if !level.has_unremovable {
                match rustix::fs::unlinkat(self.parent, &level.name, AtFlags::REMOVEDIR) {
                    Ok(()) => self.removal.removed += 1,
                    Err(Errno::NOENT) => {}
                    Err(errno) => self.record_failure(None, errno),
                }
            }
            return Ok(WalkProgress::Finished);
        };
        let expected = parent.identity;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let up = rustix::fs::openat(&*current, c"..", flags, Mode::empty())
            .and_then(|directory| Ok((DirectoryIdentity::of(&directory)?, directory)));
        match up {
            Ok((identity, directory)) if identity == expected => *current = directory,
            // The directory or its parent was moved away meanwhile.
            Ok(_) | Err(_) => return self.restart(top, current),
        }
        if level.has_unremovable {
            self.mark_unremovable(level.name);
            return Ok(WalkProgress::Continue);
        }
        match rustix::fs::unlinkat(&*current, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.removal.removed += 1,
            // The directory was replaced or got new entries meanwhile. The next pass finds them.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => self.record_unremovable(level.name, errno),
        }
        Ok(WalkProgress::Continue)
    }

    /// Restarts at the top of the tree.
    fn restart(&mut self, top: &OwnedFd, current: &mut OwnedFd) -> Result<WalkProgress, Errno> {
        self.restarts += 1;
        if self.restarts > MAX_RESTARTS {
            return Err(Errno::AGAIN);
        }
        self.levels.truncate(1);
        if let Some(first) = self.levels.first_mut() {
            first.pending.clear();
            self.name_count = first.unremovable.len();
        }
        *current = self.reopen(top)?;
        Ok(WalkProgress::Continue)
    }

    fn reopen(&self, directory: &OwnedFd) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(directory, c".", flags, Mode::empty())
    }

    fn current_level(&mut self) -> &mut WalkLevel {
        self.levels.last_mut().expect("the walk ends when it leaves the top")
    }

    fn record_unremovable(&mut self, name: CString, errno: Errno) {
        self.record_failure(Some(&name), errno);
        self.mark_unremovable(name);
    }

    fn mark_unremovable(&mut self, name: CString) {
        let has_room = self.name_count < MAX_NAMES;
        let level = self.current_level();
        level.has_unremovable = true;
        if !has_room {
            level.is_final_pass = true;
        } else if level.unremovable.insert(name) {
            self.name_count += 1;
        }
    }

    /// Reports an entry of the current directory, or the directory itself.
    fn record_failure(&mut self, entry: Option<&CStr>, error: impl Into<io::Error>) {
        let mut names: Vec<&CStr> = self.levels.iter().map(|level| &*level.name).collect();
        if names.is_empty() {
            names.push(&self.name);
        }
        names.extend(entry);
        let mut path = PathBuf::new();
        if let Some(hidden) = names.len().checked_sub(MAX_REPORTED_COMPONENTS).filter(|hidden| *hidden > 0) {
            path.push("…");
            names.drain(..hidden);
        }
        path.extend(names.iter().map(|name| OsStr::from_bytes(name.to_bytes())));
        self.removal.record_failure(path, error);
    }
}

impl WalkLevel {
    fn new(name: CString, identity: DirectoryIdentity) -> Self {
        Self {
            name,
            identity,
            pending: Vec::new(),
            unremovable: HashSet::new(),
            has_unremovable: false,
            is_final_pass: false,
        }
    }
}
