//! Watches over the files of an open database: the witness is written with each commit, and a database or log that was
//! deleted, replaced or cut by another program is noticed before the next acknowledgement, and at most a second later
//! without one.
//!
//! Once that has happened nothing is written any more. Only the next start can tell what is left.

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

use super::lock::beside;
use crate::{chain::JournalHead, witness::WitnessWriter};

/// How often the files are looked at and the witness is synced.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the header of a database is.
const HEADER: usize = 100;

/// The watch over one open database. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(super) struct FileGuard(Arc<FileGuardInner>);

#[derive(Debug)]
struct FileGuardInner {
    files: Mutex<WatchedFiles>,
    /// What was found once the files were no longer what they must be.
    gone: Mutex<Option<String>>,
    /// The last failure to write the witness, until one succeeds.
    unwitnessed: Mutex<Option<String>>,
    /// Held open for as long as SQLite has the database: closing it would drop SQLite's locks on the same file.
    database: File,
}

/// The thread that looks every second.
#[derive(Debug)]
pub(super) struct FileWatchThread {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What the files were after the last transaction of ours.
#[derive(Debug)]
struct WatchedFiles {
    path: PathBuf,
    log: PathBuf,
    database_was: Option<FileState>,
    log_was: Option<FileState>,
    header: [u8; HEADER],
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

/// The right to write one transaction. The files are compared with what they were before and after it.
pub(super) struct GuardedTransaction<'a> {
    guard: &'a FileGuard,
    files: MutexGuard<'a, WatchedFiles>,
    is_settled: bool,
}

impl FileGuard {
    /// Begins to watch a database that SQLite has open, after everything that opening it writes.
    pub(super) fn new(path: &Path, witness: WitnessWriter, head: JournalHead) -> Result<Self, StoreError> {
        let unreadable = |error: io::Error| StoreError::Unavailable {
            reason: format!("{} cannot be read: {error}", path.display()),
        };
        let database = File::open(path).map_err(unreadable)?;
        let mut files = WatchedFiles {
            path: path.to_owned(),
            log: beside(path, "wal"),
            database_was: None,
            log_was: None,
            header: [0; HEADER],
            witness,
            head,
        };
        files.remember(&database);
        let (gone, unwitnessed) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(FileGuardInner { files: Mutex::new(files), gone, unwitnessed, database })))
    }

    /// Starts the thread that looks every second.
    pub(super) fn go_rounds(&self) -> Result<FileWatchThread, StoreError> {
        let (stop, stopped) = mpsc::channel();
        let guard = self.clone();
        let rounds = move || {
            while stopped.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                guard.look();
            }
        };
        let thread =
            thread::Builder::new().name("abide-guard".to_owned()).spawn(rounds).map_err(|error| {
                StoreError::Unavailable { reason: format!("no thread to watch the database: {error}") }
            })?;
        Ok(FileWatchThread { stop: Some(stop), thread: Some(thread) })
    }

    /// Whether the files are still what they must be.
    pub(super) fn health(&self) -> Result<(), StoreError> {
        match &*lock(&self.0.gone) {
            Some(what) => Err(StoreError::Gone { what: what.clone() }),
            None => Ok(()),
        }
    }

    /// Why the witness could not be written the last time, if it could not.
    pub(super) fn unwitnessed(&self) -> Option<String> {
        lock(&self.0.unwitnessed).clone()
    }

    /// Begins a transaction, if the files are what the last one left.
    pub(super) fn begin(&self) -> Result<GuardedTransaction<'_>, StoreError> {
        self.health()?;
        let files = lock(&self.0.files);
        self.check(&files)?;
        Ok(GuardedTransaction { guard: self, files, is_settled: false })
    }

    /// Syncs the witness for the last time.
    pub(super) fn finish(&self) {
        // If this fails, the witness lags behind its database, as after a crash.
        lock(&self.0.files).witness.sync().ok();
    }

    fn look(&self) {
        // During a transaction the files change, and the transaction itself looks at them.
        let Ok(mut files) = self.0.files.try_lock() else { return };
        if self.health().is_err() || self.check(&files).is_err() {
            return;
        }
        if !files.witness.is_in_place() {
            let started = WitnessWriter::start(files.witness.path(), files.head);
            match started {
                Ok(witness) => files.witness = witness,
                Err(error) => *lock(&self.0.unwitnessed) = Some(error.to_string()),
            }
        }
        let witness = files.witness.shared();
        drop(files);
        if let Err(error) = witness.sync() {
            *lock(&self.0.unwitnessed) = Some(format!("it cannot be synced: {error}"));
        }
    }

    fn check(&self, files: &WatchedFiles) -> Result<(), StoreError> {
        let Some(what) = files.difference(&self.0.database) else { return Ok(()) };
        *lock(&self.0.gone) = Some(what.clone());
        Err(StoreError::Gone { what })
    }
}

impl GuardedTransaction<'_> {
    /// After COMMIT and before any acknowledgement: the files are still there, and the witness has seen the commit.
    pub(super) fn committed(mut self, head: JournalHead) -> Result<(), StoreError> {
        self.is_settled = true;
        let files = &mut *self.files;
        if let Some(what) = files.absence() {
            *lock(&self.guard.0.gone) = Some(what.clone());
            // It was written to files that the next start will not find, or not as they were.
            return Err(StoreError::OutcomeUnknown { reason: what });
        }
        let written_back = files.remember(&self.guard.0.database);
        if head != files.head {
            files.head = head;
            // The commit itself is durable. A witness that lags behind proves less and harms nothing, so the commit is
            // acknowledged and the failure is told to the operator.
            let written = files.witness.write(head);
            *lock(&self.guard.0.unwitnessed) = written.err().map(|error| error.to_string());
        }
        if written_back {
            files.witness.sync().ok();
        }
        Ok(())
    }
}

impl Drop for GuardedTransaction<'_> {
    /// A transaction that was rolled back may have left something in the log.
    fn drop(&mut self) {
        if !self.is_settled && self.files.absence().is_none() {
            self.files.remember(&self.guard.0.database);
        }
    }
}

impl WatchedFiles {
    /// Notes what the files are now, and says whether the database itself was written to.
    fn remember(&mut self, database: &File) -> bool {
        let now = fs::metadata(&self.path).ok().as_ref().map(FileState::of);
        self.log_was = fs::metadata(&self.log).ok().as_ref().map(FileState::of);
        let changed = now != self.database_was;
        if changed {
            self.database_was = now;
            // Compared only if the file seems to have changed; what cannot be read now is compared with zeros then.
            self.header = header(database).unwrap_or([0; HEADER]);
        }
        changed
    }

    /// A file that is no longer where it was.
    fn absence(&self) -> Option<String> {
        for (path, was) in [(&self.path, self.database_was), (&self.log, self.log_was)] {
            match (fs::metadata(path), was) {
                (Ok(file), Some(was)) if FileState::of(&file).inode != was.inode => {
                    return Some(format!("{} was replaced by another file", path.display()));
                }
                (Err(error), Some(_)) if is_absence(&error) => {
                    return Some(format!("{} was deleted", path.display()));
                }
                // What cannot be seen for a moment may be there.
                (Ok(_) | Err(_), Some(_) | None) => {}
            }
        }
        None
    }

    /// How the files differ from what the last transaction left.
    fn difference(&self, database: &File) -> Option<String> {
        if let Some(what) = self.absence() {
            return Some(what);
        }
        let state = |path| fs::metadata(path).ok().as_ref().map(FileState::of);
        for (path, was) in [(&self.path, self.database_was), (&self.log, self.log_was)] {
            if let (Some(now), Some(was)) = (state(path), was)
                && now.bytes < was.bytes
            {
                return Some(format!("{} was cut short", path.display()));
            }
        }
        // In use, a database is only written to by transactions that write its log back.
        if state(&self.path) != self.database_was && header(database).is_ok_and(|now| now != self.header) {
            return Some(format!("{} was written to by another program", self.path.display()));
        }
        None
    }
}

impl Drop for FileWatchThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing to say here.
            thread.join().ok();
        }
    }
}

fn header(database: &File) -> io::Result<[u8; HEADER]> {
    let mut header = [0; HEADER];
    database.read_exact_at(&mut header, 0)?;
    Ok(header)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
