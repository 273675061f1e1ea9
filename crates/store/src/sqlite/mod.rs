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

use lock::Lock;
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
    _lock: Lock,
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
        let mut lock = Lock::take(path)?;
        let connection = connect::writer(path, &lock, options)?;
        lock.sign()?;
        let writer = Writer::start(connection)?;
        let readers = Readers::start(path)?;
        Ok(Self { readers, writer, path: path.to_owned(), _lock: lock })
    }
}
