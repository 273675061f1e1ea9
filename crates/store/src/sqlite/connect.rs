//! Opening a database: ours and nobody else's, whole, and brought up to date.
//!
//! Each thing that can be wrong with a file has its own message here, because this is where people meet them.

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
    lock::{DatabaseLock, beside},
    read,
    testimony::{self, WitnessVerdict},
};
use crate::{
    chain::JournalHead,
    migration::{AppliedMigration, SchemaMigration, pending},
    witness::{LossPolicy, WitnessWriter},
};

/// The steps that make a database. A released one is never edited.
pub(super) const MIGRATIONS: &[SchemaMigration] = &[
    SchemaMigration { number: 1, name: "ledgers", sql: include_str!("migrations/0001_ledgers.sql") },
    SchemaMigration { number: 2, name: "chain", sql: include_str!("migrations/0002_chain.sql") },
];

/// "Abid" in the file's header, for `file` and for us.
const APPLICATION_ID: i32 = 0x4162_6964;
/// How long to wait for a tool that has the database open, before giving up.
const BUSY: Duration = Duration::from_secs(5);
/// How many pages the log may hold before it is written back.
const CHECKPOINT_PAGES: u32 = 4000;
/// How many of the latest entries are checked at every start, and among how many a gap is looked for.
const TAIL: i64 = 16;
const NO_GAP: i64 = 4096;
/// What SQLite answers where every commit is synced.
const SYNCHRONOUS_FULL: i64 = 2;
/// How long the header of a database is.
const HEADER: u64 = 100;
/// How much of the database a reader may remember. It takes no more than it has read.
const READER_CACHE_KIB: i32 = 8 << 10;
/// More than the number of different statements.
const STATEMENTS: usize = 64;

/// What a database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenPurpose {
    /// To commit to it.
    Serve,
    /// To look at it. Its witness is left as it is.
    Look,
}

/// A connection that writes, and what was found on the way to it.
pub(super) struct OpenedDatabase {
    pub(super) connection: Connection,
    pub(super) head: JournalHead,
    /// None for whoever only looks.
    pub(super) witness: Option<WitnessWriter>,
    /// What an operator should know.
    pub(super) notes: Vec<String>,
}

/// Opens the connection that writes, after looking at everything that can be seen at a glance.
pub(super) fn writer(
    path: &Path,
    lock: &DatabaseLock,
    options: &SqliteOptions,
    purpose: OpenPurpose,
) -> Result<OpenedDatabase, StoreError> {
    let mut notes = Vec::new();
    let had_log = prepare_file(path, lock, options.loss, &mut notes)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| named(path, &error))?;
    // Until the file says that it is complete without its log, the log must stay. A database that is refused is left
    // as it was found.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(|error| named(path, &error))?;
    check_ours(&connection, path)?;
    let verdict = testimony::judge(&connection, path)?;
    // Another program that opened the database may have moved the whole log into it. The witness tells.
    let is_whole = had_log || verdict == WitnessVerdict::Agrees;
    let mut missing = if is_whole { None } else { check_log(&connection, path, options.loss)? };
    match verdict {
        WitnessVerdict::Agrees | WitnessVerdict::Unused => {}
        WitnessVerdict::Unwitnessed { why } => notes.push(why),
        WitnessVerdict::Lost { what } if options.loss == LossPolicy::Accept => missing = Some(what),
        WitnessVerdict::Lost { what } => return Err(StoreError::Lost { what }),
    }
    set_up(&connection, options).map_err(|error| named(path, &error))?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .map_err(|error| named(path, &error))?;
    if mode != "wal" {
        let reason =
            format!("{} is on a file system without shared memory; use a local disk", path.display());
        return Err(StoreError::Unavailable { reason });
    }
    // The witness speaks of commits that are on disk.
    let synced: i64 = connection
        .query_row("PRAGMA synchronous", [], |row| row.get(0))
        .map_err(|error| named(path, &error))?;
    if synced != SYNCHRONOUS_FULL {
        let reason = format!("{} cannot be synced at every commit", path.display());
        return Err(StoreError::Unavailable { reason });
    }
    migrate(&connection)?;
    check_journal(&connection)?;
    if let Some(what) = missing {
        testimony::accept_loss(&connection, &what)?;
        notes.push(format!("continues without acknowledged input, as asked with --accept-loss: {what}"));
    }
    let head = super::write::head(&connection).map_err(|error| failed(&error))?;
    let witness = match purpose {
        OpenPurpose::Serve => Some(testimony::start(&connection, path, head)?),
        OpenPurpose::Look => None,
    };
    mark(&connection, InUseMark::Yes)?;
    Ok(OpenedDatabase { connection, head, witness, notes })
}

/// Whether a database that somebody else has can be looked at: it is ours, and of this program's version.
pub(super) fn check_beside(path: &Path) -> Result<(), StoreError> {
    let connection = reader(path)?;
    // Who has it keeps the log.
    check_ours(&connection, path)?;
    let missing = pending(MIGRATIONS, &applied(&connection).map_err(|error| named(path, &error))?)?;
    match missing.first() {
        None => Ok(()),
        Some(step) => Err(StoreError::Mismatched {
            reason: format!(
                "it is in use by an older Abide (it lacks migration {} \"{}\"); restart that daemon with this version",
                step.number, step.name
            ),
        }),
    }
}

/// Opens a connection that only reads.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| named(path, &error))?;
    connection.busy_timeout(BUSY).map_err(|error| failed(&error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // The upper pages of every tree stay in memory, also when there are a hundred thousand runs.
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB).map_err(|error| failed(&error))?;
    Ok(connection)
}

/// Leaves a database that is one file and says so. Whatever fails here is made up for at the next start.
pub(super) fn close(connection: Connection) {
    if mark(&connection, InUseMark::No).is_ok() {
        let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
    }
    let _ = connection.close();
}

/// Whether the main file may be read without its log.
#[derive(Clone, Copy)]
pub(super) enum InUseMark {
    Yes,
    No,
}

/// Notes in the main file itself whether it is in use: a copy of it that was made meanwhile is then known to lack
/// its log.
pub(super) fn mark(connection: &Connection, in_use: InUseMark) -> Result<(), StoreError> {
    let value = match in_use {
        InUseMark::Yes => "yes",
        InUseMark::No => "no",
    };
    note(connection, "in_use", value)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(|error| failed(&error))
}

/// Keeps a fact about the database in it.
pub(super) fn note(connection: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2)
               ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    connection.execute(sql, [key, value]).map(drop).map_err(|error| failed(&error))
}

/// Forgets a fact about the database.
pub(super) fn forget(connection: &Connection, key: &str) -> Result<(), StoreError> {
    connection.execute("DELETE FROM meta WHERE key = ?1", [key]).map(drop).map_err(|error| failed(&error))
}

/// A fact about the database that is kept in it. A database whose first migration was not done has none.
pub(super) fn noted(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let has_meta = "SELECT count(*) FROM sqlite_schema WHERE name = 'meta'";
    if connection.query_row(has_meta, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    connection.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// Looks at the files before SQLite does, and says whether there is a log.
fn prepare_file(
    path: &Path,
    lock: &DatabaseLock,
    loss: LossPolicy,
    notes: &mut Vec<String>,
) -> Result<bool, StoreError> {
    let had_log = fs::metadata(beside(path, "wal")).map(|file| file.len());
    let log_says_something = had_log.as_ref().is_ok_and(|length| *length > 0);
    let length = fs::metadata(path).map_or(0, |file| file.len());
    let is_empty = length == 0;
    // SQLite would take this for an empty database and write over it.
    if !is_empty && length < HEADER {
        return Err(StoreError::Damaged {
            what: format!("{} is too short to be a database", path.display()),
        });
    }
    let missing = match (is_empty, log_says_something, lock.used_before) {
        (true, true, _) => Some("is missing or empty, but its log is there"),
        (true, false, true) => Some("is missing or empty though it was in use before"),
        (true, false, false) | (false, _, _) => None,
    };
    if let Some(how) = missing {
        if loss == LossPolicy::Refuse {
            let what =
                format!("{} {how} (`abide up --accept-loss` starts with an empty one)", path.display());
            return Err(StoreError::Damaged { what });
        }
        testimony::set_log_aside(path)?;
        notes.push(format!(
            "starts with an empty store, as asked with --accept-loss: {} {how}",
            path.display()
        ));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let cannot =
        |error| StoreError::Unavailable { reason: format!("{} cannot be opened: {error}", path.display()) };
    let file = options.open(path).map_err(cannot)?;
    // With a log, the last page may be half written and will be made whole.
    if !log_says_something && ends_within_a_page(&file).map_err(cannot)? {
        return Err(StoreError::Damaged { what: format!("{} was cut short", path.display()) });
    }
    Ok(had_log.is_ok())
}

/// SQLite itself takes what is missing of the last page for zeros.
fn ends_within_a_page(file: &fs::File) -> std::io::Result<bool> {
    let mut header = [0; 18];
    let length = file.metadata()?.len();
    if length < HEADER {
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

/// Refuses a file that is not ours.
fn check_ours(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let ask = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let tables = ask("SELECT count(*) FROM sqlite_schema").map_err(|error| named(path, &error))?;
    if tables == 0 {
        return Ok(());
    }
    let application = ask("PRAGMA application_id").map_err(|error| named(path, &error))?;
    if application != i64::from(APPLICATION_ID) {
        let reason = format!("{} is a database of another program", path.display());
        return Err(StoreError::Mismatched { reason });
    }
    Ok(())
}

/// Refuses a file without a log that was in use with one. If a loss is accepted, says what is missing.
fn check_log(connection: &Connection, path: &Path, loss: LossPolicy) -> Result<Option<String>, StoreError> {
    let in_use = noted(connection, "in_use").map_err(|error| named(path, &error))?;
    if in_use.as_deref() != Some("yes") {
        return Ok(None);
    }
    let path = path.display();
    let missing = format!("{path} was in use when it was copied or left, and its log {path}-wal is missing");
    if loss == LossPolicy::Accept {
        return Ok(Some(missing));
    }
    let what = format!(
        "{missing}, which may hold the latest commits; bring that file back, or continue without it with \
         `abide up --accept-loss`; copy a database in use with `abide backup`"
    );
    Err(StoreError::Damaged { what })
}

fn set_up(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    // Whenever pages were split, SQLite looks through the whole of it at the commit, so it is no larger than it must be.
    connection.pragma_update(None, "cache_size", -4_000)?;
    // What a savepoint would need to be undone is small, and must not go through a file.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if let Some(pages) = options.most_pages {
        connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    Ok(())
}

pub(super) fn migrate(connection: &Connection) -> Result<(), StoreError> {
    let run = |sql: &str| connection.execute_batch(sql).map_err(|error| failed(&error));
    run("CREATE TABLE IF NOT EXISTS migrations (
             number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum INTEGER NOT NULL
         ) STRICT")?;
    for step in pending(MIGRATIONS, &applied(connection).map_err(|error| failed(&error))?)? {
        run("BEGIN IMMEDIATE")?;
        let noted = "INSERT INTO migrations (number, name, checksum) VALUES (?1, ?2, ?3)";
        let taken = connection
            .execute_batch(step.sql)
            .and_then(|()| connection.execute(noted, (step.number, step.name, step.checksum())))
            .and_then(|_| connection.execute_batch("COMMIT"));
        if let Err(error) = taken {
            let _ = connection.execute_batch("ROLLBACK");
            return Err(failed(&error));
        }
    }
    Ok(())
}

fn applied(connection: &Connection) -> rusqlite::Result<Vec<AppliedMigration>> {
    let mut query = connection.prepare("SELECT number, name, checksum FROM migrations ORDER BY number")?;
    let rows = query.query_map([], |row| {
        Ok(AppliedMigration { number: row.get(0)?, name: row.get(1)?, checksum: row.get(2)? })
    })?;
    rows.collect()
}

/// Whether a copy is whole: as a file, and as far as its journal can be judged at a glance.
pub(super) fn check_copy(copy: &Connection) -> Result<(), StoreError> {
    let verdict: String =
        copy.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|error| failed(&error))?;
    if verdict != "ok" {
        return Err(StoreError::Damaged { what: format!("the copy cannot be used ({verdict})") });
    }
    check_journal(copy)
}

/// Whether a file can be put in the place of a database: ours, of this version or an older one, and whole.
pub(super) fn check_backup(backup: &Connection, path: &Path, has_log: bool) -> Result<(), StoreError> {
    check_ours(backup, path)?;
    if !has_log {
        check_log(backup, path, LossPolicy::Refuse)?;
    }
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name IN ('journal', 'migrations', 'meta')";
    let ours: i64 = backup.query_row(tables, [], |row| row.get(0)).map_err(|error| named(path, &error))?;
    if ours < 3 {
        return Err(StoreError::Damaged { what: format!("{} holds no store of Abide", path.display()) });
    }
    pending(MIGRATIONS, &applied(backup).map_err(|error| named(path, &error))?)?;
    let verdict: String = backup
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| named(path, &error))?;
    if verdict != "ok" {
        return Err(StoreError::Damaged { what: format!("{} is not whole ({verdict})", path.display()) });
    }
    check_journal(backup)
}

/// The journal begins with its first entry, what came last has no gap, and its latest entries are as they were written.
/// The rest is for `verify`: a start must not take longer for every run that ever was.
fn check_journal(connection: &Connection) -> Result<(), StoreError> {
    let sql =
        "SELECT (SELECT coalesce(min(seq), 1) FROM journal), (SELECT coalesce(max(seq), 0) FROM journal)";
    let bounds = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (first, last): (i64, i64) = connection.query_row(sql, [], bounds).map_err(|error| failed(&error))?;
    let from = (last - NO_GAP).max(0);
    let sql = "SELECT count(*) FROM journal WHERE seq > ?1";
    let after: i64 = connection.query_row(sql, [from], |row| row.get(0)).map_err(|error| failed(&error))?;
    let count = from + after;
    if first != 1 || count != last {
        let what = format!("the journal goes from {first} to {last} but has {count} entries");
        return Err(StoreError::Damaged { what });
    }
    read::entries(connection, last - TAIL, TAIL).map(drop)
}

/// An error that says which file it is about.
pub(super) fn named(path: &Path, error: &rusqlite::Error) -> StoreError {
    let about = |text: String| format!("{}: {text}", path.display());
    match failed(error) {
        StoreError::Damaged { what } => StoreError::Damaged { what: about(what) },
        StoreError::Unavailable { reason } => StoreError::Unavailable { reason: about(reason) },
        StoreError::Full { reason } => StoreError::Full { reason: about(reason) },
        other @ (StoreError::Conflict { .. }
        | StoreError::Taken { .. }
        | StoreError::OutcomeUnknown { .. }
        | StoreError::Lost { .. }
        | StoreError::Gone { .. }
        | StoreError::InUse { .. }
        | StoreError::Mismatched { .. }
        | StoreError::Unsupported { .. }
        | StoreError::Invalid { .. }) => other,
    }
}
