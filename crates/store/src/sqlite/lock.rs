//! One daemon per database: a lock file next to it, held while the store is open.
//!
//! SQLite itself would let two programs write in turn, and both would perform the pending effects. The lock is not
//! taken on the database file, because closing a second handle of that file would release SQLite's own locks.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use abide_os::{
    file_lock::{FileLock, FileLockError},
    private_file,
};
use abide_ports::store::StoreError;

/// The exclusive right to use a database.
#[derive(Debug)]
pub(super) struct DatabaseLock {
    lock: FileLock,
    path: PathBuf,
    /// Whether the lock file shows earlier use of the database.
    pub(super) used_before: bool,
}

/// The result of a try to take the lock.
#[derive(Debug)]
pub(super) enum LockAttempt {
    /// This process took the lock.
    Acquired(DatabaseLock),
    /// Another process holds the lock; its name as written in the file.
    HeldBy(String),
}

impl DatabaseLock {
    /// Takes the lock, or returns an error with its holder.
    pub(super) fn acquire(database: &Path) -> Result<Self, StoreError> {
        match Self::try_acquire(database)? {
            LockAttempt::Acquired(lock) => Ok(lock),
            LockAttempt::HeldBy(holder) => Err(StoreError::Unavailable {
                reason: format!(
                    "{} is in use by {holder}; stop it first, or give this one a database of its own",
                    database.display()
                ),
            }),
        }
    }

    /// Takes the lock if it is free.
    pub(super) fn try_acquire(database: &Path) -> Result<LockAttempt, StoreError> {
        let path = sibling_path(database, "lock");
        let cannot = |error: std::io::Error| StoreError::Unavailable {
            reason: format!("{} cannot be opened: {error}", path.display()),
        };
        let options = &mut File::options();
        options.read(true).write(true).create(true).truncate(false);
        match FileLock::try_acquire(private_file::open(options, &path).map_err(cannot)?) {
            Ok(lock) => {
                let used_before = !lock.text().is_empty();
                Ok(LockAttempt::Acquired(Self { lock, path, used_before }))
            }
            Err(FileLockError::Held(holder)) if holder.is_empty() => {
                Ok(LockAttempt::HeldBy("another process".to_owned()))
            }
            Err(FileLockError::Held(holder)) => Ok(LockAttempt::HeldBy(holder)),
            Err(FileLockError::Io(error)) => Err(cannot(error)),
        }
    }

    /// Writes this process's name to the file. The database exists at this point.
    pub(super) fn write_holder(&mut self) -> Result<(), StoreError> {
        // On a full disk the name may be missing, but the lock is held.
        match self.lock.set_text(&format!("process {}\n", std::process::id())) {
            Err(error) if error.kind() != std::io::ErrorKind::StorageFull => Err(StoreError::Unavailable {
                reason: format!("{} cannot be written: {error}", self.path.display()),
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// The path next to the database with this suffix.
pub(super) fn sibling_path(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(if suffix == "lock" { "." } else { "-" });
    name.push(suffix);
    PathBuf::from(name)
}
