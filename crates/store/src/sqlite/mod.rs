//! Everything in one SQLite file: the default.
//!
//! One thread writes and others read (`writer.rs`, `readers.rs`); what they say to SQLite is in `write.rs` and
//! `read.rs`; what can be wrong with a file is found out in `connect.rs`. No async runtime is needed.

mod backup;
mod connect;
mod error;
mod ledgers;
mod lock;
mod read;
mod readers;
mod write;
mod writer;

use std::path::{Path, PathBuf};

use abide_ports::store::StoreError;

use lock::{Lock, Taken};
use readers::Readers;
use writer::Writer;

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    // In the order in which they must be let go of: the writer closes the database last and tidies up, and only
    // then may somebody else have it.
    readers: Readers,
    writer: Writer,
    path: PathBuf,
    /// None beside somebody else who has it.
    _lock: Option<Lock>,
}

/// How to open a database.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
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
        Self::open_locked(path, Lock::take(path)?, options)
    }

    fn open_locked(path: &Path, mut lock: Lock, options: &Options) -> Result<Self, StoreError> {
        let connection = connect::writer(path, &lock, options)?;
        lock.sign()?;
        let writer = Writer::start(connection)?;
        let readers = Readers::start(path)?;
        Ok(Self { readers, writer, path: path.to_owned(), _lock: Some(lock) })
    }

    /// Opens a database that must exist, to look at it: alone if nobody has it, else beside whoever has, and then
    /// everything that would write is `Unsupported`.
    pub fn look(path: &Path) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::Unavailable { reason: format!("there is no {} yet", path.display()) });
        }
        if let Taken::Ours(lock) = Lock::try_take(path)? {
            return Self::open_locked(path, lock, &Options::default());
        }
        connect::check_beside(path)?;
        let readers = Readers::start(path)?;
        Ok(Self { readers, writer: Writer::none(), path: path.to_owned(), _lock: None })
    }
}
