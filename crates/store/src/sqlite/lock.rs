//! One daemon per database: a lock file next to it, held while the store is open.
//!
//! SQLite itself would let two programs write in turn, and both would perform the pending effects. The lock is not
//! taken on the database file, because closing a second handle of that file would release SQLite's own locks.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use abide_ports::store::StoreError;

/// The exclusive right to use a database.
#[derive(Debug)]
pub(super) struct DatabaseLock {
    file: File,
    path: PathBuf,
    /// Whether the lock file shows earlier use of the database.
    pub(super) used_before: bool,
}

/// The result of a try to take the lock.
#[derive(Debug)]
pub(super) enum LockAttempt {
    /// This process took the lock.
    Ours(DatabaseLock),
    /// Another process holds the lock; its name as written in the file.
    By(String),
}

impl DatabaseLock {
    /// Takes the lock, or returns an error with its holder.
    pub(super) fn take(database: &Path) -> Result<Self, StoreError> {
        match Self::try_take(database)? {
            LockAttempt::Ours(lock) => Ok(lock),
            LockAttempt::By(holder) => Err(StoreError::Unavailable {
                reason: format!(
                    "{} is in use by {holder}; stop it first, or give this one a database of its own",
                    database.display()
                ),
            }),
        }
    }

    /// Takes the lock if it is free.
    pub(super) fn try_take(database: &Path) -> Result<LockAttempt, StoreError> {
        let path = beside(database, "lock");
        let cannot = |error: std::io::Error| StoreError::Unavailable {
            reason: format!("{} cannot be opened: {error}", path.display()),
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(cannot)?;
        let mut holder = String::new();
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                // The holder may be writing its name at this moment. The name is then empty.
                let _ = file.read_to_string(&mut holder);
                let holder = if holder.trim().is_empty() { "another process" } else { holder.trim() };
                return Ok(LockAttempt::By(holder.to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        file.read_to_string(&mut holder).map_err(cannot)?;
        Ok(LockAttempt::Ours(Self { file, path, used_before: !holder.trim().is_empty() }))
    }

    /// Writes this process's name to the file. The database exists at this point.
    pub(super) fn sign(&mut self) -> Result<(), StoreError> {
        let name = format!("process {}\n", std::process::id());
        let write = |file: &mut File| {
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(name.as_bytes())
        };
        // On a full disk the name may be missing, but the lock is held.
        match write(&mut self.file) {
            Err(error) if error.kind() != std::io::ErrorKind::StorageFull => Err(StoreError::Unavailable {
                reason: format!("{} cannot be written: {error}", self.path.display()),
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

impl Drop for DatabaseLock {
    /// Closing the file is not sufficient: a child process that is being started has a copy of the descriptor until it
    /// executes its program.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// The path next to the database with this suffix.
pub(super) fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(if ending == "lock" { "." } else { "-" });
    name.push(ending);
    PathBuf::from(name)
}
