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
const MAX_SHOWN: usize = 16;

/// A removal in progress.
pub(super) struct RemovalWalk<'a> {
    /// The parent of the tree.
    above: &'a Directory,
    removal: &'a mut TreeRemoval,
    deadline: Duration,
    /// From the top of the tree to the current directory.
    levels: Vec<WalkLevel>,
    name: CString,
    /// Number of names in all levels.
    names: usize,
    /// Counter for the names of directories that were moved up.
    moved: u64,
    restarts: u32,
}

/// A directory between the top of the tree and the current one.
struct WalkLevel {
    name: CString,
    identity: DirectoryIdentity,
    /// Subdirectories that have entries.
    pending: Vec<CString>,
    /// Entries that cannot be removed. They are not retried.
    stuck: HashSet<CString>,
    /// True if an entry, and so this directory, cannot be removed.
    is_stuck: bool,
    /// True if the directory is not read again, because too many entries cannot be removed.
    is_last_reading: bool,
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
        Self { above, removal, deadline, levels: Vec::new(), name, names: 0, moved: 0, restarts: 0 }
    }

    pub(super) fn run(&mut self) {
        let name = self.name.clone();
        let opened = descend::open(self.above, &name)
            .and_then(|directory| Ok((DirectoryIdentity::of(&directory)?, directory)));
        let (identity, top) = match opened {
            Ok(opened) => opened,
            Err(errno) => return self.fail(None, errno),
        };
        // Another file system is mounted there.
        if DirectoryIdentity::of(self.above).is_ok_and(|above| !above.is_same_file_system(&identity)) {
            return self.fail(None, Errno::XDEV);
        }
        let mut current = match self.again(&top) {
            Ok(directory) => directory,
            Err(errno) => return self.fail(None, errno),
        };
        self.levels.push(WalkLevel::new(name, identity));
        loop {
            match self.step(&top, &mut current) {
                Ok(WalkProgress::Continue) => {}
                Ok(WalkProgress::Finished) => return,
                Err(errno) => return self.fail(None, errno),
            }
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
            self.names -= 1;
            if depth >= MAX_DEPTH {
                self.move_up(current, top, &child);
            } else {
                self.enter(current, child);
            }
            return Ok(WalkProgress::Continue);
        }
        if !level.is_last_reading && self.read(current) {
            return Ok(WalkProgress::Continue);
        }
        self.leave(top, current)
    }

    /// Removes the entries that can be removed at once and collects the others. Returns whether there was anything to
    /// do.
    fn read(&mut self, current: &OwnedFd) -> bool {
        let mut is_busy = false;
        let mut entries = match Dir::read_from(current) {
            Ok(entries) => entries,
            Err(errno) => {
                self.unreadable(errno);
                return false;
            }
        };
        while let Some(entry) = entries.read() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) => {
                    self.unreadable(errno);
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || self.level().stuck.contains(name) {
                continue;
            }
            is_busy = true;
            match remove_one(current, name) {
                RemovalStep::Removed => self.removal.removed += 1,
                RemovalStep::Missing => {}
                RemovalStep::NotEmpty => {
                    let name = name.to_owned();
                    self.level().pending.push(name);
                    self.names += 1;
                    if self.level().pending.len() >= MAX_PENDING || self.names >= MAX_NAMES {
                        break;
                    }
                }
                RemovalStep::Failed(errno) => self.stuck(name.to_owned(), errno),
            }
            if clock::monotonic() >= self.deadline {
                break;
            }
        }
        is_busy
    }

    fn unreadable(&mut self, errno: Errno) {
        self.fail(None, errno);
        let level = self.level();
        level.is_stuck = true;
        level.is_last_reading = true;
    }

    /// Descends into a directory.
    fn enter(&mut self, current: &mut OwnedFd, name: CString) {
        let opened = descend::open(&*current, &name)
            .and_then(|directory| Ok((DirectoryIdentity::of(&directory)?, directory)));
        match opened {
            Ok((identity, directory)) if identity.is_same_file_system(&self.level().identity) => {
                *current = directory;
                self.levels.push(WalkLevel::new(name, identity));
            }
            Ok(_) => self.stuck(name, Errno::XDEV),
            // The entry was replaced meanwhile. The next pass finds it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => self.stuck(name, errno),
        }
    }

    /// Moves a directory that is too deep to the top of the tree, where the walk finds it later.
    fn move_up(&mut self, current: &OwnedFd, top: &OwnedFd, name: &CStr) {
        loop {
            self.moved += 1;
            let target = format!("removing-{}", self.moved);
            match rustix::fs::renameat_with(current, name, top, &target, RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => return,
                Err(Errno::EXIST) => {}
                // The move must change `..` of the directory, which its mode forbids. Opening it makes it accessible.
                Err(Errno::ACCESS) => {
                    let accessible = descend::open(current, name);
                    let moved = accessible.and_then(|_| {
                        rustix::fs::renameat_with(current, name, top, &target, RenameFlags::NOREPLACE)
                    });
                    if let Err(errno) = moved {
                        self.stuck(name.to_owned(), errno);
                    }
                    return;
                }
                Err(errno) => return self.stuck(name.to_owned(), errno),
            }
        }
    }

    /// Leaves an empty directory and removes it.
    fn leave(&mut self, top: &OwnedFd, current: &mut OwnedFd) -> Result<WalkProgress, Errno> {
        let Some(level) = self.levels.pop() else { return Ok(WalkProgress::Finished) };
        self.names -= level.stuck.len();
        let Some(parent) = self.levels.last() else {
            if !level.is_stuck {
                match rustix::fs::unlinkat(self.above, &level.name, AtFlags::REMOVEDIR) {
                    Ok(()) => self.removal.removed += 1,
                    Err(Errno::NOENT) => {}
                    Err(errno) => self.fail(None, errno),
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
        if level.is_stuck {
            self.remember(level.name);
            return Ok(WalkProgress::Continue);
        }
        match rustix::fs::unlinkat(&*current, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.removal.removed += 1,
            // The directory was replaced or got new entries meanwhile. The next pass finds them.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => self.stuck(level.name, errno),
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
            self.names = first.stuck.len();
        }
        *current = self.again(top)?;
        Ok(WalkProgress::Continue)
    }

    fn again(&self, directory: &OwnedFd) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(directory, c".", flags, Mode::empty())
    }

    /// The current directory.
    fn level(&mut self) -> &mut WalkLevel {
        self.levels.last_mut().expect("the walk ends when it leaves the top")
    }

    fn stuck(&mut self, name: CString, errno: Errno) {
        self.fail(Some(&name), errno);
        self.remember(name);
    }

    fn remember(&mut self, name: CString) {
        let has_room = self.names < MAX_NAMES;
        let level = self.level();
        level.is_stuck = true;
        if !has_room {
            level.is_last_reading = true;
        } else if level.stuck.insert(name) {
            self.names += 1;
        }
    }

    /// Reports an entry of the current directory, or the directory itself.
    fn fail(&mut self, entry: Option<&CStr>, error: impl Into<io::Error>) {
        let mut names: Vec<&CStr> = self.levels.iter().map(|level| &*level.name).collect();
        if names.is_empty() {
            names.push(&self.name);
        }
        names.extend(entry);
        let mut path = PathBuf::new();
        if let Some(hidden) = names.len().checked_sub(MAX_SHOWN).filter(|hidden| *hidden > 0) {
            path.push("…");
            names.drain(..hidden);
        }
        path.extend(names.iter().map(|name| OsStr::from_bytes(name.to_bytes())));
        self.removal.fail(path, error);
    }
}

impl WalkLevel {
    fn new(name: CString, identity: DirectoryIdentity) -> Self {
        Self {
            name,
            identity,
            pending: Vec::new(),
            stuck: HashSet::new(),
            is_stuck: false,
            is_last_reading: false,
        }
    }
}
