//! Everything in one SQLite file: the default.
//!
//! One thread writes and others read (`writer.rs`, `readers.rs`); what they say to SQLite is in `write.rs` and
//! `read.rs`; what can be wrong with a file is found out in `connect.rs`. No async runtime is needed.

mod backup;
mod connect;
mod error;
mod guard;
mod inspect;
mod ledgers;
mod lock;
mod read;
mod readers;
mod restore;
mod testimony;
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
    // In the order in which they must be let go of: the writer closes the database last and tidies up, then its file
    // may be closed, and only then may somebody else have it.
    readers: ReaderPool,
    writer: SqliteWriter,
    /// None for whoever only looks.
    guard: Option<FileGuard>,
    path: PathBuf,
    notes: Vec<String>,
    /// None beside somebody else who has it.
    _lock: Option<DatabaseLock>,
}

/// How to open a database.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// What to do if acknowledged input is missing.
    pub loss: LossPolicy,
    /// A bound on the file's size in pages, so that tests can fill it.
    #[doc(hidden)]
    pub most_pages: Option<u32>,
}

impl SqliteStore {
    /// Opens a database, and makes it if there is none. Blocks until everything is checked.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, &SqliteOptions::default())
    }

    /// The same with options.
    pub fn open_with(path: &Path, options: &SqliteOptions) -> Result<Self, StoreError> {
        Self::open_locked(path, DatabaseLock::take(path)?, options, OpenPurpose::Serve)
    }

    fn open_locked(
        path: &Path,
        mut lock: DatabaseLock,
        options: &SqliteOptions,
        purpose: OpenPurpose,
    ) -> Result<Self, StoreError> {
        let OpenedDatabase { connection, head, witness, notes } =
            connect::writer(path, &lock, options, purpose)?;
        lock.sign()?;
        let guard = witness.map(|witness| FileGuard::new(path, witness, head)).transpose()?;
        let writer = SqliteWriter::start(connection, guard.clone())?;
        let readers = ReaderPool::start(path)?;
        Ok(Self { readers, writer, guard, path: path.to_owned(), notes, _lock: Some(lock) })
    }

    /// Opens a database that must exist, to look at it: alone if nobody has it, else beside whoever has, and then
    /// everything that would write is `Unsupported`. A database that has lost acknowledged input is looked at without
    /// being changed.
    pub fn look(path: &Path) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::Unavailable { reason: format!("there is no {} yet", path.display()) });
        }
        let mut lock = None;
        if let LockAttempt::Ours(ours) = DatabaseLock::try_take(path)? {
            match Self::open_locked(path, ours, &SqliteOptions::default(), OpenPurpose::Look) {
                Err(StoreError::Lost { .. }) => {}
                opened => return opened,
            }
            if let LockAttempt::Ours(ours) = DatabaseLock::try_take(path)? {
                lock = Some(ours);
            }
        }
        connect::check_beside(path)?;
        let readers = ReaderPool::start(path)?;
        let (path, notes) = (path.to_owned(), Vec::new());
        Ok(Self { readers, writer: SqliteWriter::none(), guard: None, path, notes, _lock: lock })
    }

    /// What an operator should know of how it was opened.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
