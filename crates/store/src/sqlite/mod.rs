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

use crate::witness::Loss;
use connect::{Opened, Purpose};
use guard::Guard;
use lock::{Lock, Taken};
use readers::Readers;
use writer::Writer;

pub use restore::{Restored, restore};

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    // In the order in which they must be let go of: the writer closes the database last and tidies up, then its file
    // may be closed, and only then may somebody else have it.
    readers: Readers,
    writer: Writer,
    /// None for whoever only looks.
    guard: Option<Guard>,
    path: PathBuf,
    notes: Vec<String>,
    /// None beside somebody else who has it.
    _lock: Option<Lock>,
}

/// How to open a database.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// What to do if acknowledged input is missing.
    pub loss: Loss,
    /// A bound on the file's size in pages, so that tests can fill it.
    #[doc(hidden)]
    pub most_pages: Option<u32>,
}

impl SqliteStore {
    /// Opens a database, and makes it if there is none. Blocks until everything is checked.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, &Options::default())
    }

    /// The same with options.
    pub fn open_with(path: &Path, options: &Options) -> Result<Self, StoreError> {
        Self::open_locked(path, Lock::take(path)?, options, Purpose::Serve)
    }

    fn open_locked(
        path: &Path,
        mut lock: Lock,
        options: &Options,
        purpose: Purpose,
    ) -> Result<Self, StoreError> {
        let Opened { connection, head, witness, notes } = connect::writer(path, &lock, options, purpose)?;
        lock.sign()?;
        let guard = witness.map(|witness| Guard::new(path, witness, head)).transpose()?;
        let writer = Writer::start(connection, guard.clone())?;
        let readers = Readers::start(path)?;
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
        if let Taken::Ours(ours) = Lock::try_take(path)? {
            match Self::open_locked(path, ours, &Options::default(), Purpose::Look) {
                Err(StoreError::Lost { .. }) => {}
                opened => return opened,
            }
            if let Taken::Ours(ours) = Lock::try_take(path)? {
                lock = Some(ours);
            }
        }
        connect::check_beside(path)?;
        let readers = Readers::start(path)?;
        let (path, notes) = (path.to_owned(), Vec::new());
        Ok(Self { readers, writer: Writer::none(), guard: None, path, notes, _lock: lock })
    }

    /// What an operator should know of how it was opened.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
