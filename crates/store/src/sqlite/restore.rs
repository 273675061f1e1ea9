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

use abide_ports::store::{JournalSeq, StoreError, StoreInputError};
use rusqlite::{Connection, OpenFlags};

use super::{
    connect::{self, InUseMark, error_with_path},
    error::{failed, path_error},
    lock::{DatabaseLock, sibling_path},
    witness_check, write,
};
use crate::witness::{self, WitnessReading, WitnessWriter, sync_folder, write_error};

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// The path under which the previous database is kept, if there was one.
    pub previous_path: Option<PathBuf>,
    /// The newest journal entry of the backup.
    pub head: JournalSeq,
    /// The newest acknowledged journal entry according to the witness.
    pub acknowledged_head: Option<JournalSeq>,
}

/// Replaces a database by a backup. The database must not be open in any process.
pub fn restore(backup: &Path, database: &Path) -> Result<RestoreReport, StoreError> {
    let mut lock = DatabaseLock::acquire(database)?;
    let part = sibling_path(database, "restoring");
    remove(&part)?;
    let prepared = check_file(backup, database).and_then(|()| copy(backup, &part));
    let (head, timestamp) = prepared.inspect_err(|_| {
        // If this fails, the next restore deletes the partial copy.
        remove(&part).ok();
    })?;
    let acknowledged = match witness::read(&witness_check::witness_path(database)) {
        WitnessReading::Head(seen) => Some(JournalSeq(seen.seq as u64)),
        WitnessReading::Missing | WitnessReading::Unreadable(_) => None,
    };
    let previous_path = rename_previous(database, &timestamp)?;
    remove(&witness_check::witness_path(database))?;
    remove(&sibling_path(database, "shm"))?;
    fs::rename(&part, database).map_err(|error| write_error(database, &error))?;
    sync_folder(database).map_err(|error| write_error(database, &error))?;
    WitnessWriter::start(&witness_check::witness_path(database), head)?;
    lock.write_holder()?;
    Ok(RestoreReport { previous_path, head: JournalSeq(head.seq as u64), acknowledged_head: acknowledged })
}

/// Checks that a backup is a separate file and long enough to be a database.
fn check_file(backup: &Path, database: &Path) -> Result<(), StoreError> {
    let about = |problem: &str| {
        StoreError::Invalid(StoreInputError::Location {
            detail: format!(
                "the backup {} {problem}; name a file that `abide backup` wrote",
                backup.display()
            ),
        })
    };
    let metadata = fs::metadata(backup).map_err(|error| StoreError::Unavailable {
        reason: format!("{} cannot be read: {error}", backup.display()),
    })?;
    if !metadata.is_file() {
        return Err(about("is not a file"));
    }
    let is_database =
        fs::metadata(database).is_ok_and(|file| (file.dev(), file.ino()) == (metadata.dev(), metadata.ino()));
    if is_database {
        return Err(about("is the database itself"));
    }
    Ok(())
}

/// Checks and copies a backup. Returns the head of its journal and the current time.
fn copy(backup: &Path, part: &Path) -> Result<(crate::chain::JournalHead, String), StoreError> {
    let log = sibling_path(backup, "wal");
    let has_log = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    let source = open(backup, has_log)?;
    connect::check_backup(&source, backup, has_log)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(part).map_err(|error| write_error(part, &error))?;
    let name = part.to_str().ok_or_else(|| path_error(part))?;
    source.execute("VACUUM INTO ?1", [name]).map_err(|error| error_with_path(backup, &error))?;
    drop(source);
    let copy = Connection::open(part).map_err(|error| failed(&error))?;
    connect::migrate(&copy)?;
    connect::check_journal(&copy)?;
    connect::set_in_use_mark(&copy, InUseMark::No)?;
    connect::remove_property(&copy, "witness")?;
    let clock = "SELECT strftime('%Y%m%dT%H%M%SZ', 'now')";
    let timestamp: String = copy.query_row(clock, [], |row| row.get(0)).map_err(|error| failed(&error))?;
    connect::set_property(&copy, "restored", &format!("{timestamp}: from {}", backup.display()))?;
    let head = write::head(&copy).map_err(|error| failed(&error))?;
    copy.close().map_err(|(_, error)| failed(&error))?;
    File::open(part).and_then(|file| file.sync_all()).map_err(|error| write_error(part, &error))?;
    Ok((head, timestamp))
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
        .map_err(|error| error_with_path(backup, &error))
}

/// Keeps the current database and its log under a name with a timestamp. Its own name stays until it is replaced.
fn rename_previous(database: &Path, timestamp: &str) -> Result<Option<PathBuf>, StoreError> {
    let log = sibling_path(database, "wal");
    if !database.exists() && !log.exists() {
        return Ok(None);
    }
    let name = |number: u32| match number {
        1 => sibling_path(database, &format!("before-restore-{timestamp}")),
        _ => sibling_path(database, &format!("before-restore-{timestamp}-{number}")),
    };
    let is_free = |name: &PathBuf| !name.exists() && !sibling_path(name, "wal").exists();
    let Some(previous_path) = (1..1000).map(name).find(is_free) else {
        return Err(StoreError::Unavailable {
            reason: "there is no free name for the current database".to_owned(),
        });
    };
    if database.exists() {
        let linked = fs::hard_link(database, &previous_path);
        // Some file systems do not support hard links. The database is then missing for a moment, in which a start is
        // refused.
        linked
            .or_else(|_| fs::rename(database, &previous_path))
            .map_err(|error| write_error(&previous_path, &error))?;
    }
    if log.exists() {
        // Before the backup is in place, because the log must not be applied to another database.
        fs::rename(&log, sibling_path(&previous_path, "wal"))
            .map_err(|error| write_error(&previous_path, &error))?;
    }
    sync_folder(database).map_err(|error| write_error(database, &error))?;
    Ok(Some(previous_path))
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(write_error(path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
