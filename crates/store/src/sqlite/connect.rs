//! Opens a database: checks that the file is a complete Abide database, and applies migrations.
//!
//! Each possible problem of a file has its own message here, because users see these messages.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use abide_ports::store::StoreError;
use rusqlite::{Connection, OpenFlags, OptionalExtension, config::DbConfig};

use super::{
    SqliteOptions,
    error::failed,
    lock::{DatabaseLock, sibling_path},
    read, reencode,
    witness_check::{self, WitnessVerdict},
};
use crate::{
    chain::JournalHead,
    migration::{AppliedMigration, SchemaMigration, StoredValues, pending},
    witness::{LossPolicy, WitnessWriter},
};

/// The migrations of a database. A released migration is never edited.
pub(super) const MIGRATIONS: &[SchemaMigration] = &[
    SchemaMigration {
        number: 1,
        name: "ledgers",
        sql: include_str!("migrations/0001_ledgers.sql"),
        values: StoredValues::Unchanged,
    },
    SchemaMigration {
        number: 2,
        name: "chain",
        sql: include_str!("migrations/0002_chain.sql"),
        values: StoredValues::Unchanged,
    },
    SchemaMigration {
        number: 3,
        name: "names",
        sql: include_str!("migrations/0003_names.sql"),
        values: StoredValues::Reencoded,
    },
];

/// The application id in the file's header, "Abid", which `file` and this program recognise.
const APPLICATION_ID: i32 = 0x4162_6964;
/// The time to wait for another program that has locked the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of pages in the log at which it is checkpointed.
const CHECKPOINT_PAGES: u32 = 4000;
/// The number of latest entries whose checksums are verified at every start, and among which gaps are detected.
const CHECKED_TAIL_ENTRIES: i64 = 16;
const GAP_CHECK_ENTRIES: i64 = 4096;
/// The value of `PRAGMA synchronous` at which every commit is synced.
const SYNCHRONOUS_FULL: i64 = 2;
/// The length of a database header in bytes.
const HEADER_BYTES: u64 = 100;
/// The page cache of a reader in KiB. Memory is used only for pages that were read.
const READER_CACHE_KIB: i32 = 8 << 10;
/// The capacity of the statement cache; larger than the number of different statements.
const STATEMENT_CACHE_CAPACITY: usize = 64;

/// The purpose of opening a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenPurpose {
    /// To commit to it.
    Serve,
    /// To inspect it. Its witness is not changed.
    Inspect,
}

/// The writing connection and the results of the checks.
pub(super) struct OpenedDatabase {
    pub(super) connection: Connection,
    pub(super) head: JournalHead,
    /// None if the database is opened for inspection.
    pub(super) witness: Option<WitnessWriter>,
    /// Notes for the operator.
    pub(super) notes: Vec<String>,
}

/// Opens the writing connection, after all checks that do not depend on the size of the database.
pub(super) fn writer(
    path: &Path,
    lock: &DatabaseLock,
    options: &SqliteOptions,
    purpose: OpenPurpose,
) -> Result<OpenedDatabase, StoreError> {
    let mut notes = Vec::new();
    let had_log = prepare_file(path, lock, options.loss, &mut notes)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(|error| error_with_path(path, &error))?;
    // The log must stay until the file is marked as complete without it. A refused database is left unchanged.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(|error| error_with_path(path, &error))?;
    check_application_id(&connection, path)?;
    let verdict = witness_check::compare_with_witness(&connection, path)?;
    // Another program may have checkpointed the whole log into the database. The witness shows whether the database is
    // complete.
    let is_whole = had_log || verdict == WitnessVerdict::Agrees;
    let mut missing = if is_whole { None } else { check_log(&connection, path, options.loss)? };
    match verdict {
        WitnessVerdict::Agrees | WitnessVerdict::NeverWitnessed => {}
        WitnessVerdict::Unavailable { reason } => notes.push(reason),
        WitnessVerdict::InputLost { detail } if options.loss == LossPolicy::Accept => missing = Some(detail),
        WitnessVerdict::InputLost { detail } => return Err(StoreError::InputLost { detail }),
    }
    configure(&connection, options).map_err(|error| error_with_path(path, &error))?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .map_err(|error| error_with_path(path, &error))?;
    if mode != "wal" {
        let reason =
            format!("{} is on a file system without shared memory; use a local disk", path.display());
        return Err(StoreError::Unavailable { reason });
    }
    // The witness refers to commits that are on disk.
    let synced: i64 = connection
        .query_row("PRAGMA synchronous", [], |row| row.get(0))
        .map_err(|error| error_with_path(path, &error))?;
    if synced != SYNCHRONOUS_FULL {
        let reason = format!("{} cannot be synced at every commit", path.display());
        return Err(StoreError::Unavailable { reason });
    }
    migrate(&connection)?;
    check_journal(&connection)?;
    if let Some(detail) = missing {
        witness_check::record_accepted_loss(&connection, &detail)?;
        notes
            .push(format!("continues without acknowledged input, as requested with --accept-loss: {detail}"));
    }
    let head = super::write::head(&connection).map_err(|error| failed(&error))?;
    let witness = match purpose {
        OpenPurpose::Serve => Some(witness_check::restart_witness(&connection, path, head)?),
        OpenPurpose::Inspect => None,
    };
    set_in_use_mark(&connection, InUseMark::Yes)?;
    Ok(OpenedDatabase { connection, head, witness, notes })
}

/// Whether a database that another process uses can be inspected: it must be an Abide database of this version.
pub(super) fn check_in_use(path: &Path) -> Result<(), StoreError> {
    let connection = reader(path)?;
    // The process that uses the database keeps its log.
    check_application_id(&connection, path)?;
    let missing = pending(
        MIGRATIONS,
        &applied_migrations(&connection).map_err(|error| error_with_path(path, &error))?,
    )?;
    match missing.first() {
        None => Ok(()),
        Some(step) => Err(StoreError::IncompatibleVersion {
            reason: format!(
                "it is in use by an older Abide (it lacks migration {} \"{}\"); restart that daemon with this version",
                step.number, step.name
            ),
        }),
    }
}

/// Opens a read-only connection.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(|error| error_with_path(path, &error))?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(|error| failed(&error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_CAPACITY);
    // The upper pages of every B-tree stay in memory, even with a hundred thousand runs.
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB).map_err(|error| failed(&error))?;
    Ok(connection)
}

/// Closes a database so that it is one file, and marks it accordingly. Errors are ignored, because the next start
/// repairs the state.
pub(super) fn close(connection: Connection) {
    if set_in_use_mark(&connection, InUseMark::No).is_ok() {
        let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
    }
    let _ = connection.close();
}

/// Whether the main file is valid without its log.
#[derive(Clone, Copy)]
pub(super) enum InUseMark {
    Yes,
    No,
}

/// Marks in the main file whether it is in use. A copy of a file in use is thereby known to lack its log.
pub(super) fn set_in_use_mark(connection: &Connection, in_use: InUseMark) -> Result<(), StoreError> {
    let value = match in_use {
        InUseMark::Yes => "yes",
        InUseMark::No => "no",
    };
    set_property(connection, "in_use", value)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(|error| failed(&error))
}

/// Stores a property of the database in it.
pub(super) fn set_property(connection: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2)
               ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    connection.execute(sql, [key, value]).map(drop).map_err(|error| failed(&error))
}

/// Removes a property of the database.
pub(super) fn remove_property(connection: &Connection, key: &str) -> Result<(), StoreError> {
    connection.execute("DELETE FROM meta WHERE key = ?1", [key]).map(drop).map_err(|error| failed(&error))
}

/// A stored property of the database. None before the first migration.
pub(super) fn property(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let has_meta = "SELECT count(*) FROM sqlite_schema WHERE name = 'meta'";
    if connection.query_row(has_meta, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    connection.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// Checks the files before SQLite opens them, and returns whether there is a log.
fn prepare_file(
    path: &Path,
    lock: &DatabaseLock,
    loss: LossPolicy,
    notes: &mut Vec<String>,
) -> Result<bool, StoreError> {
    let had_log = fs::metadata(sibling_path(path, "wal")).map(|file| file.len());
    let has_log_entries = had_log.as_ref().is_ok_and(|length| *length > 0);
    let length = fs::metadata(path).map_or(0, |file| file.len());
    let is_empty = length == 0;
    // SQLite would treat such a file as an empty database and overwrite it.
    if !is_empty && length < HEADER_BYTES {
        return Err(StoreError::Damaged {
            detail: format!("{} is too short to be a database", path.display()),
        });
    }
    let missing = match (is_empty, has_log_entries, lock.used_before) {
        (true, true, _) => Some("is missing or empty, but its log exists"),
        (true, false, true) => Some("is missing or empty, but it was in use before"),
        (true, false, false) | (false, _, _) => None,
    };
    if let Some(problem) = missing {
        if loss == LossPolicy::Refuse {
            let detail = format!(
                "{} {problem}; `abide up --accept-loss` starts with an empty database",
                path.display()
            );
            return Err(StoreError::Damaged { detail });
        }
        witness_check::rename_orphan_log(path)?;
        notes.push(format!(
            "starts with an empty store, as requested with --accept-loss: {} {problem}",
            path.display()
        ));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let cannot =
        |error| StoreError::Unavailable { reason: format!("{} cannot be opened: {error}", path.display()) };
    let file = options.open(path).map_err(cannot)?;
    // With a log, the last page may be incomplete, because the log repairs it.
    if !has_log_entries && has_partial_page(&file).map_err(cannot)? {
        return Err(StoreError::Damaged { detail: format!("{} is truncated", path.display()) });
    }
    Ok(had_log.is_ok())
}

/// Whether the last page is incomplete. SQLite would read the missing bytes as zeros.
fn has_partial_page(file: &fs::File) -> std::io::Result<bool> {
    let mut header = [0; 18];
    let length = file.metadata()?.len();
    if length < HEADER_BYTES {
        return Ok(false);
    }
    file.read_exact_at(&mut header, 0)?;
    // 65536 does not fit into two bytes and is written as 1.
    let page = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65536,
        size => size,
    };
    Ok(header.starts_with(b"SQLite format 3") && page.is_power_of_two() && !length.is_multiple_of(page))
}

/// Refuses a file that is not an Abide database.
fn check_application_id(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let ask = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let tables = ask("SELECT count(*) FROM sqlite_schema").map_err(|error| error_with_path(path, &error))?;
    if tables == 0 {
        return Ok(());
    }
    let application = ask("PRAGMA application_id").map_err(|error| error_with_path(path, &error))?;
    if application != i64::from(APPLICATION_ID) {
        let reason = format!("{} is a database of another program", path.display());
        return Err(StoreError::IncompatibleVersion { reason });
    }
    Ok(())
}

/// Refuses a file without a log that was in use with one. If the loss is accepted, returns its description.
fn check_log(connection: &Connection, path: &Path, loss: LossPolicy) -> Result<Option<String>, StoreError> {
    let in_use = property(connection, "in_use").map_err(|error| error_with_path(path, &error))?;
    if in_use.as_deref() != Some("yes") {
        return Ok(None);
    }
    let path = path.display();
    let missing =
        format!("{path} was copied or abandoned while it was in use, and its log {path}-wal is missing");
    if loss == LossPolicy::Accept {
        return Ok(Some(missing));
    }
    let detail = format!(
        "{missing}, which may hold the latest commits; put that file back, or continue without it with \
         `abide up --accept-loss`; copy a database in use with `abide backup`"
    );
    Err(StoreError::Damaged { detail })
}

fn configure(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_CAPACITY);
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    // SQLite scans the whole cache at a commit if pages were split, so the cache is kept small.
    connection.pragma_update(None, "cache_size", -4_000)?;
    // Savepoints need little memory, and a file for them would be slow.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if let Some(pages) = options.max_pages {
        connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    Ok(())
}

/// Applies missing migrations, each in its own transaction.
pub(super) fn migrate(connection: &Connection) -> Result<(), StoreError> {
    let run = |sql: &str| connection.execute_batch(sql).map_err(|error| failed(&error));
    run("CREATE TABLE IF NOT EXISTS migrations (
             number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum INTEGER NOT NULL
         ) STRICT")?;
    for step in pending(MIGRATIONS, &applied_migrations(connection).map_err(|error| failed(&error))?)? {
        run("BEGIN IMMEDIATE")?;
        let insert_sql = "INSERT INTO migrations (number, name, checksum) VALUES (?1, ?2, ?3)";
        let result = run(step.sql).and_then(|()| match step.values {
            StoredValues::Unchanged => Ok(()),
            StoredValues::Reencoded => reencode::reencode_all(connection),
        });
        let result = result
            .and_then(|()| {
                let values = (step.number, step.name, step.checksum());
                connection.execute(insert_sql, values).map_err(|error| failed(&error))
            })
            .and_then(|_| run("COMMIT"));
        if let Err(error) = result {
            let _ = connection.execute_batch("ROLLBACK");
            return Err(error);
        }
    }
    Ok(())
}

fn applied_migrations(connection: &Connection) -> rusqlite::Result<Vec<AppliedMigration>> {
    let mut query = connection.prepare("SELECT number, name, checksum FROM migrations ORDER BY number")?;
    let rows = query.query_map([], |row| {
        Ok(AppliedMigration { number: row.get(0)?, name: row.get(1)?, checksum: row.get(2)? })
    })?;
    rows.collect()
}

/// Checks a copy: the file, and the journal as far as possible at start.
pub(super) fn check_copy(copy: &Connection) -> Result<(), StoreError> {
    let verdict: String =
        copy.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|error| failed(&error))?;
    if verdict != "ok" {
        return Err(StoreError::Damaged { detail: format!("the copy cannot be used ({verdict})") });
    }
    check_journal(copy)
}

/// Checks that a file can replace a database: an Abide database of this or an older version, and complete. Its journal is
/// checked after the migration.
pub(super) fn check_backup(backup: &Connection, path: &Path, has_log: bool) -> Result<(), StoreError> {
    check_application_id(backup, path)?;
    if !has_log {
        check_log(backup, path, LossPolicy::Refuse)?;
    }
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name IN ('journal', 'migrations', 'meta')";
    let ours: i64 =
        backup.query_row(tables, [], |row| row.get(0)).map_err(|error| error_with_path(path, &error))?;
    if ours < 3 {
        return Err(StoreError::Damaged { detail: format!("{} contains no store of Abide", path.display()) });
    }
    pending(MIGRATIONS, &applied_migrations(backup).map_err(|error| error_with_path(path, &error))?)?;
    let verdict: String = backup
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| error_with_path(path, &error))?;
    if verdict != "ok" {
        return Err(StoreError::Damaged { detail: format!("{} is damaged ({verdict})", path.display()) });
    }
    Ok(())
}

/// Checks that the journal begins with its first entry, that its latest entries have no gap, and that their checksums
/// are correct. `verify` checks the rest, because the time of a start must not depend on the number of runs.
pub(super) fn check_journal(connection: &Connection) -> Result<(), StoreError> {
    let sql =
        "SELECT (SELECT coalesce(min(seq), 1) FROM journal), (SELECT coalesce(max(seq), 0) FROM journal)";
    let bounds = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (first, last): (i64, i64) = connection.query_row(sql, [], bounds).map_err(|error| failed(&error))?;
    let from = (last - GAP_CHECK_ENTRIES).max(0);
    let sql = "SELECT count(*) FROM journal WHERE seq > ?1";
    let after: i64 = connection.query_row(sql, [from], |row| row.get(0)).map_err(|error| failed(&error))?;
    let count = from + after;
    if first != 1 || count != last {
        let detail = format!("the journal has {count} entries from {first} to {last}");
        return Err(StoreError::Damaged { detail });
    }
    read::entries(connection, last - CHECKED_TAIL_ENTRIES, CHECKED_TAIL_ENTRIES).map(drop)
}

/// An error with the path of its file.
pub(super) fn error_with_path(path: &Path, error: &rusqlite::Error) -> StoreError {
    let about = |text: String| format!("{}: {text}", path.display());
    match failed(error) {
        StoreError::Damaged { detail } => StoreError::Damaged { detail: about(detail) },
        StoreError::Unavailable { reason } => StoreError::Unavailable { reason: about(reason) },
        StoreError::Full { reason } => StoreError::Full { reason: about(reason) },
        other @ (StoreError::Conflict { .. }
        | StoreError::KeyTaken { .. }
        | StoreError::OutcomeUnknown { .. }
        | StoreError::InputLost { .. }
        | StoreError::FilesGone { .. }
        | StoreError::InUse { .. }
        | StoreError::IncompatibleVersion { .. }
        | StoreError::Unsupported { .. }
        | StoreError::Invalid(_)) => other,
    }
}
