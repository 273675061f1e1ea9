//! Replaces a database by a backup. The previous database is kept under another name.
//!
//! The backup is checked and copied first. The order of renames ensures that a crash at any moment leaves a state that
//! the next start accepts or refuses with an explanation. Restoring again completes it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use abide_ports::store::{JournalSeq, StoreError};
use rusqlite::{Connection, OpenFlags};

use super::{
    connect::{self, InUseMark, named},
    error::failed,
    lock::{DatabaseLock, beside},
    testimony, write,
};
use crate::witness::{self, WitnessReading, WitnessWriter, sync_folder, unwritable};

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// The path under which the previous database is kept, if there was one.
    pub kept: Option<PathBuf>,
    /// The newest journal entry of the backup.
    pub head: JournalSeq,
    /// The newest acknowledged journal entry according to the witness.
    pub acknowledged: Option<JournalSeq>,
}

/// Replaces a database by a backup. The database must not be open in any process.
pub fn restore(backup: &Path, database: &Path) -> Result<RestoreReport, StoreError> {
    let mut lock = DatabaseLock::take(database)?;
    let part = beside(database, "restoring");
    remove(&part)?;
    let prepared = check_file(backup, database).and_then(|()| copy(backup, &part));
    let (head, moment) = prepared.inspect_err(|_| {
        // If this fails, the next restore deletes the partial copy.
        remove(&part).ok();
    })?;
    let acknowledged = match witness::read(&testimony::path_of(database)) {
        WitnessReading::Head(seen) => Some(JournalSeq(seen.seq as u64)),
        WitnessReading::Missing | WitnessReading::Unreadable(_) => None,
    };
    let kept = set_aside(database, &moment)?;
    remove(&testimony::path_of(database))?;
    remove(&beside(database, "shm"))?;
    fs::rename(&part, database).map_err(|error| unwritable(database, &error))?;
    sync_folder(database).map_err(|error| unwritable(database, &error))?;
    WitnessWriter::start(&testimony::path_of(database), head)?;
    lock.sign()?;
    Ok(RestoreReport { kept, head: JournalSeq(head.seq as u64), acknowledged })
}

/// Checks that a backup is a separate file and long enough to be a database.
fn check_file(backup: &Path, database: &Path) -> Result<(), StoreError> {
    let about =
        |what: &str| StoreError::Invalid { what: format!("the backup {} {what} and", backup.display()) };
    let found = fs::metadata(backup).map_err(|error| StoreError::Unavailable {
        reason: format!("{} cannot be read: {error}", backup.display()),
    })?;
    if !found.is_file() {
        return Err(about("is not a file"));
    }
    let same = fs::metadata(database).is_ok_and(|it| (it.dev(), it.ino()) == (found.dev(), found.ino()));
    if same {
        return Err(about("is the database itself"));
    }
    Ok(())
}

/// Checks and copies a backup. Returns the head of its journal and the current time.
fn copy(backup: &Path, part: &Path) -> Result<(crate::chain::JournalHead, String), StoreError> {
    let log = beside(backup, "wal");
    let has_log = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    let source = open(backup, has_log)?;
    connect::check_backup(&source, backup, has_log)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(part).map_err(|error| unwritable(part, &error))?;
    let name = part.to_str().ok_or_else(|| StoreError::Invalid { what: part.display().to_string() })?;
    source.execute("VACUUM INTO ?1", [name]).map_err(|error| named(backup, &error))?;
    drop(source);
    let copy = Connection::open(part).map_err(|error| failed(&error))?;
    connect::migrate(&copy)?;
    connect::mark(&copy, InUseMark::No)?;
    connect::forget(&copy, "witness")?;
    let clock = "SELECT strftime('%Y%m%dT%H%M%SZ', 'now')";
    let moment: String = copy.query_row(clock, [], |row| row.get(0)).map_err(|error| failed(&error))?;
    connect::note(&copy, "restored", &format!("{moment}: from {}", backup.display()))?;
    let head = write::head(&copy).map_err(|error| failed(&error))?;
    copy.close().map_err(|(_, error)| failed(&error))?;
    File::open(part).and_then(|file| file.sync_all()).map_err(|error| unwritable(part, &error))?;
    Ok((head, moment))
}

/// Opens a backup without changing files next to it, unless it has a log that must be read.
fn open(backup: &Path, has_log: bool) -> Result<Connection, StoreError> {
    let path = std::path::absolute(backup).unwrap_or_else(|_| backup.to_owned());
    let encoded: String = path
        .as_os_str()
        .as_bytes()
        .iter()
        .map(|byte| match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                char::from(*byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect();
    let mode = if has_log { "mode=ro" } else { "mode=ro&immutable=1" };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(format!("file:{encoded}?{mode}"), flags)
        .map_err(|error| named(backup, &error))
}

/// Keeps the present database and its log under a name with a timestamp. Its own name stays until it is replaced.
fn set_aside(database: &Path, moment: &str) -> Result<Option<PathBuf>, StoreError> {
    let log = beside(database, "wal");
    if !database.exists() && !log.exists() {
        return Ok(None);
    }
    let name = |number: u32| match number {
        1 => beside(database, &format!("before-restore-{moment}")),
        _ => beside(database, &format!("before-restore-{moment}-{number}")),
    };
    let is_free = |name: &PathBuf| !name.exists() && !beside(name, "wal").exists();
    let Some(kept) = (1..1000).map(name).find(is_free) else {
        return Err(StoreError::Unavailable { reason: "no free name for the present database".to_owned() });
    };
    if database.exists() {
        let linked = fs::hard_link(database, &kept);
        // Some file systems do not support hard links. The database is then missing for a moment, in which a start is
        // refused.
        linked.or_else(|_| fs::rename(database, &kept)).map_err(|error| unwritable(&kept, &error))?;
    }
    if log.exists() {
        // Before the backup is in place, because the log must not be applied to another database.
        fs::rename(&log, beside(&kept, "wal")).map_err(|error| unwritable(&kept, &error))?;
    }
    sync_folder(database).map_err(|error| unwritable(database, &error))?;
    Ok(Some(kept))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
