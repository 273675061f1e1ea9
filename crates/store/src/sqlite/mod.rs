//! A store in one SQLite file. This is the default.
//!
//! One thread writes and others read (`writer.rs`, `readers.rs`). Their SQL is in `write.rs` and `read.rs`. Problems of
//! a file are detected in `connect.rs`. No async runtime is needed.

mod backup;
mod connect;
mod error;
mod guard;
mod inspect;
mod lock;
mod read;
mod readers;
mod reencode;
mod restore;
mod store;
mod witness_check;
mod write;
mod writer;

use std::path::{Path, PathBuf};

use abide_ports::store::StoreError;

use crate::witness::LossPolicy;
use connect::{OpenPurpose, OpenedDatabase};
use guard::FileGuard;
use lock::{DatabaseLock, LockAttempt};
use readers::ReaderPool;
use writer::SqliteWriter;

pub use restore::{RestoreReport, restore};

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    // The fields are in the order of dropping: the writer closes the database last, then the guard closes its file, and
    // then the lock is released.
    readers: ReaderPool,
    writer: SqliteWriter,
    /// None if the database is opened for inspection.
    guard: Option<FileGuard>,
    path: PathBuf,
    notes: Vec<String>,
    /// None if another process holds the lock.
    _lock: Option<DatabaseLock>,
}

/// Options for opening a database.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The reaction to missing acknowledged input.
    pub loss: LossPolicy,
    /// The maximum size of the file in pages, so that tests can fill it.
    #[doc(hidden)]
    pub max_pages: Option<u32>,
}

impl SqliteStore {
    /// Opens a database, and creates it if it does not exist. Blocks until all checks are done.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, &SqliteOptions::default())
    }

    pub fn open_with(path: &Path, options: &SqliteOptions) -> Result<Self, StoreError> {
        Self::open_locked(path, DatabaseLock::acquire(path)?, options, OpenPurpose::Serve)
    }

    fn open_locked(
        path: &Path,
        mut lock: DatabaseLock,
        options: &SqliteOptions,
        purpose: OpenPurpose,
    ) -> Result<Self, StoreError> {
        let OpenedDatabase { connection, head, witness, notes } =
            connect::writer(path, &lock, options, purpose)?;
        lock.write_holder()?;
        let guard = witness.map(|witness| FileGuard::new(path, witness, head)).transpose()?;
        let writer = SqliteWriter::start(connection, guard.clone())?;
        let readers = ReaderPool::start(path)?;
        Ok(Self { readers, writer, guard, path: path.to_owned(), notes, _lock: Some(lock) })
    }

    /// Opens an existing database for inspection. If another process holds the lock, all writing operations are
    /// `Unsupported`. A database that has lost acknowledged input is not changed.
    pub fn open_for_inspection(path: &Path) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::Unavailable {
                reason: format!("the database {} does not exist yet", path.display()),
            });
        }
        let mut lock = None;
        if let LockAttempt::Acquired(ours) = DatabaseLock::try_acquire(path)? {
            match Self::open_locked(path, ours, &SqliteOptions::default(), OpenPurpose::Inspect) {
                Err(StoreError::InputLost { .. }) => {}
                opened => return opened,
            }
            if let LockAttempt::Acquired(ours) = DatabaseLock::try_acquire(path)? {
                lock = Some(ours);
            }
        }
        connect::check_in_use(path)?;
        let readers = ReaderPool::start(path)?;
        let (path, notes) = (path.to_owned(), Vec::new());
        Ok(Self { readers, writer: SqliteWriter::none(), guard: None, path, notes, _lock: lock })
    }

    /// Notes for the operator about the opening.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
