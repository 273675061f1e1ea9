//! Watches the files of an open database. The witness is written with each commit. A database or log that another
//! program deleted, replaced or truncated is detected before the next acknowledgement, or within a second if there is
//! none.
//!
//! After that, nothing is written. Only the next start can determine which data is left.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use abide_ports::store::StoreError;

use super::lock::sibling_path;
use crate::{chain::JournalHead, witness::WitnessWriter};

/// The interval between checks of the files and syncs of the witness.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The length of a database header in bytes.
const HEADER_BYTES: usize = 100;

/// Watches one open database. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct FileGuard(Arc<FileGuardInner>);

#[derive(Debug)]
struct FileGuardInner {
    files: Mutex<WatchedFiles>,
    /// The finding, once the files were deleted or replaced.
    missing_detail: Mutex<Option<String>>,
    /// The last failure to write the witness. Cleared by the next success.
    witness_error: Mutex<Option<String>>,
    /// Kept open as long as SQLite uses the database. Closing it would release SQLite's locks on the same file.
    database: File,
}

/// The thread that checks the files every second.
#[derive(Debug)]
pub(super) struct FileWatchThread {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The state of the files after the last transaction of this process.
#[derive(Debug)]
struct WatchedFiles {
    path: PathBuf,
    log: PathBuf,
    database_state: Option<FileState>,
    log_state: Option<FileState>,
    header: [u8; HEADER_BYTES],
    witness: WitnessWriter,
    head: JournalHead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

impl FileState {
    fn of(file: &Metadata) -> Self {
        Self {
            inode: (file.dev(), file.ino()),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }
}

/// The permission to write one transaction. The files are compared with their previous state before and after it.
pub(super) struct GuardedTransaction<'a> {
    guard: &'a FileGuard,
    files: MutexGuard<'a, WatchedFiles>,
    is_settled: bool,
}

impl FileGuard {
    /// Starts to watch a database that SQLite has open, after all writes of the opening.
    pub(super) fn new(path: &Path, witness: WitnessWriter, head: JournalHead) -> Result<Self, StoreError> {
        let unreadable = |error: io::Error| StoreError::Unavailable {
            reason: format!("{} cannot be read: {error}", path.display()),
        };
        let database = File::open(path).map_err(unreadable)?;
        let mut files = WatchedFiles {
            path: path.to_owned(),
            log: sibling_path(path, "wal"),
            database_state: None,
            log_state: None,
            header: [0; HEADER_BYTES],
            witness,
            head,
        };
        files.record_state(&database);
        let (missing_detail, witness_error) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(FileGuardInner {
            files: Mutex::new(files),
            missing_detail,
            witness_error,
            database,
        })))
    }

    /// Starts the thread that checks the files every second.
    pub(super) fn start_watch_thread(&self) -> Result<FileWatchThread, StoreError> {
        let (stop, stopped) = mpsc::channel();
        let guard = self.clone();
        let watch = move || {
            while stopped.recv_timeout(CHECK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                guard.check_and_sync();
            }
        };
        let thread = thread::Builder::new().name("abide-guard".to_owned()).spawn(watch).map_err(|error| {
            StoreError::Unavailable {
                reason: format!("cannot start the thread that watches the database: {error}"),
            }
        })?;
        Ok(FileWatchThread { stop: Some(stop), thread: Some(thread) })
    }

    /// Returns an error once the files were deleted or replaced.
    pub(super) fn health(&self) -> Result<(), StoreError> {
        match &*lock(&self.0.missing_detail) {
            Some(detail) => Err(StoreError::FilesGone { detail: detail.clone() }),
            None => Ok(()),
        }
    }

    /// The last failure to write the witness, if it persists.
    pub(super) fn witness_error(&self) -> Option<String> {
        lock(&self.0.witness_error).clone()
    }

    /// Begins a transaction if the files are as the last one left them.
    pub(super) fn begin(&self) -> Result<GuardedTransaction<'_>, StoreError> {
        self.health()?;
        let files = lock(&self.0.files);
        self.check(&files)?;
        Ok(GuardedTransaction { guard: self, files, is_settled: false })
    }

    /// Syncs the witness for the last time.
    pub(super) fn sync_witness(&self) {
        // If this fails, the witness lags behind its database, as after a crash.
        lock(&self.0.files).witness.sync().ok();
    }

    fn check_and_sync(&self) {
        // The files change during a transaction, which checks them itself.
        let Ok(mut files) = self.0.files.try_lock() else { return };
        if self.health().is_err() || self.check(&files).is_err() {
            return;
        }
        if !files.witness.is_in_place() {
            let started = WitnessWriter::start(files.witness.path(), files.head);
            match started {
                Ok(witness) => files.witness = witness,
                Err(error) => *lock(&self.0.witness_error) = Some(error.to_string()),
            }
        }
        let witness = files.witness.file();
        drop(files);
        if let Err(error) = witness.sync() {
            *lock(&self.0.witness_error) = Some(format!("it cannot be synced: {error}"));
        }
    }

    fn check(&self, files: &WatchedFiles) -> Result<(), StoreError> {
        let Some(detail) = files.difference(&self.0.database) else { return Ok(()) };
        *lock(&self.0.missing_detail) = Some(detail.clone());
        Err(StoreError::FilesGone { detail })
    }
}

impl GuardedTransaction<'_> {
    /// Checks the files and writes the witness, after the COMMIT and before any acknowledgement.
    pub(super) fn after_commit(mut self, head: JournalHead) -> Result<(), StoreError> {
        self.is_settled = true;
        let files = &mut *self.files;
        if let Some(detail) = files.missing_file() {
            *lock(&self.guard.0.missing_detail) = Some(detail.clone());
            // The commit went to files that were deleted or changed, so the next start may not find it.
            return Err(StoreError::OutcomeUnknown { reason: detail });
        }
        let database_written = files.record_state(&self.guard.0.database);
        if head != files.head {
            files.head = head;
            // The commit is durable. A witness that lags behind detects less, but is not wrong. The commit is therefore
            // acknowledged, and the failure is reported to the operator.
            let written = files.witness.write(head);
            *lock(&self.guard.0.witness_error) = written.err().map(|error| error.to_string());
        }
        if database_written {
            files.witness.sync().ok();
        }
        Ok(())
    }
}

impl Drop for GuardedTransaction<'_> {
    /// A transaction that was rolled back may have written to the log, so the state is recorded again.
    fn drop(&mut self) {
        if !self.is_settled && self.files.missing_file().is_none() {
            self.files.record_state(&self.guard.0.database);
        }
    }
}

impl WatchedFiles {
    /// Records the state of the files, and returns whether the database file itself was written.
    fn record_state(&mut self, database: &File) -> bool {
        let now = fs::metadata(&self.path).ok().as_ref().map(FileState::of);
        self.log_state = fs::metadata(&self.log).ok().as_ref().map(FileState::of);
        let changed = now != self.database_state;
        if changed {
            self.database_state = now;
            // The header is compared only if the file seems to have changed. A header that cannot be read now is
            // recorded as zeros.
            self.header = header(database).unwrap_or([0; HEADER_BYTES]);
        }
        changed
    }

    /// A file that is missing or was replaced.
    fn missing_file(&self) -> Option<String> {
        for (path, was) in [(&self.path, self.database_state), (&self.log, self.log_state)] {
            match (fs::metadata(path), was) {
                (Ok(file), Some(was)) if FileState::of(&file).inode != was.inode => {
                    return Some(format!("{} was replaced by another file", path.display()));
                }
                (Err(error), Some(_)) if is_not_found(&error) => {
                    return Some(format!("{} was deleted", path.display()));
                }
                // A file whose metadata cannot be read may still exist.
                (Ok(_) | Err(_), Some(_) | None) => {}
            }
        }
        None
    }

    /// The difference between the files and their state after the last transaction.
    fn difference(&self, database: &File) -> Option<String> {
        if let Some(detail) = self.missing_file() {
            return Some(detail);
        }
        let state = |path| fs::metadata(path).ok().as_ref().map(FileState::of);
        for (path, was) in [(&self.path, self.database_state), (&self.log, self.log_state)] {
            if let (Some(now), Some(was)) = (state(path), was)
                && now.bytes < was.bytes
            {
                return Some(format!("{} was truncated", path.display()));
            }
        }
        // While it is in use, a database file is written only by checkpoints of its log.
        if state(&self.path) != self.database_state && header(database).is_ok_and(|now| now != self.header) {
            return Some(format!("{} was written to by another program", self.path.display()));
        }
        None
    }
}

impl Drop for FileWatchThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The result of the thread is not used; a panic in it needs no handling here.
            thread.join().ok();
        }
    }
}

fn header(database: &File) -> io::Result<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    database.read_exact_at(&mut header, 0)?;
    Ok(header)
}

fn is_not_found(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
