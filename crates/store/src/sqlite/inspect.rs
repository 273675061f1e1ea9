//! Inspection of a database as a whole: SQLite's own check, the witness, the chain, and derived columns that belong to
//! no single run.

use std::path::Path;

use abide_domain::id::RunId;
use abide_ports::store::{StoreError, StoreFlaw};
use rusqlite::Connection;

use super::{
    connect,
    error::failed,
    witness_check::{self, WitnessVerdict},
    write,
};
use crate::{chain::ChainCheck, run_rows::TABLES};

/// The maximum number of reported findings per kind.
const MAX_FINDINGS: usize = 100;

/// Inspects everything, on a separate connection.
pub(super) fn inspect(path: &Path) -> Result<Vec<StoreFlaw>, StoreError> {
    let connection = connect::reader(path)?;
    let mut flaws = Vec::new();
    match witness_check::compare_with_witness(&connection, path)? {
        WitnessVerdict::Agrees | WitnessVerdict::NeverWitnessed => {}
        WitnessVerdict::Unavailable { reason } => flaws.push(StoreFlaw::Note { detail: reason }),
        WitnessVerdict::InputLost { detail } => flaws.push(StoreFlaw::InputLost { detail }),
    }
    if let Some(detail) = connect::property(&connection, "accepted_loss").map_err(read_error)? {
        flaws.push(StoreFlaw::Note { detail: format!("a loss was accepted at {detail}") });
    }
    // All following queries read one snapshot.
    connection.execute_batch("BEGIN").map_err(read_error)?;
    check_integrity(&connection, &mut flaws).map_err(read_error)?;
    check_chain(&connection, &mut flaws).map_err(read_error)?;
    check_run_index(&connection, &mut flaws).map_err(read_error)?;
    for (table, id) in invalid_run_ids(&connection).map_err(read_error)? {
        flaws.push(StoreFlaw::Derived {
            detail: format!("{table} has rows with the run id {id:?}, which is invalid"),
        });
    }
    Ok(flaws)
}

/// Rebuilds derived data that belongs to no single run. The caller owns the transaction.
pub(super) fn reindex(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("REINDEX")?;
    for (table, id) in invalid_run_ids(connection)? {
        connection.execute(&format!("DELETE FROM {table} WHERE run_id = ?1"), [id])?;
    }
    connection.execute_batch(
        "DELETE FROM journal_by_run;
         DELETE FROM journal_by_run_end;
         INSERT INTO journal_by_run_end (seq) SELECT coalesce(max(seq), 0) FROM journal;
         INSERT INTO journal_by_run (run_id, seq) SELECT run_id, seq FROM journal ORDER BY run_id, seq",
    )
}

fn check_integrity(connection: &Connection, flaws: &mut Vec<StoreFlaw>) -> rusqlite::Result<()> {
    let mut check = connection.prepare(&format!("PRAGMA integrity_check({MAX_FINDINGS})"))?;
    let mut lines = check.query([])?;
    while let Some(line) = lines.next()? {
        let message: String = line.get(0)?;
        if message == "ok" {
            continue;
        }
        let detail = format!("the integrity check of SQLite reports: {message}");
        // An index can be rebuilt from its table, which is intact if there are no other findings.
        let is_index = message.contains("missing from index")
            || message.contains("entries in index")
            || message.contains("non-unique entry in index");
        flaws.push(if is_index { StoreFlaw::Derived { detail } } else { StoreFlaw::Journal { detail } });
    }
    Ok(())
}

fn check_chain(connection: &Connection, flaws: &mut Vec<StoreFlaw>) -> rusqlite::Result<()> {
    let mut query = connection.prepare("SELECT seq, checksum, chain FROM journal ORDER BY seq")?;
    let mut rows = query.query([])?;
    let (mut check, mut mismatch_count) = (ChainCheck::default(), 0);
    while let Some(row) = rows.next()? {
        if let Some(detail) = check.check_entry(row.get(0)?, row.get(1)?, row.get(2)?) {
            mismatch_count += 1;
            if mismatch_count <= MAX_FINDINGS {
                flaws.push(StoreFlaw::Journal { detail });
            }
        }
    }
    Ok(())
}

/// Checks the index of entries by run.
fn check_run_index(connection: &Connection, flaws: &mut Vec<StoreFlaw>) -> rusqlite::Result<()> {
    let query_number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let head = write::head(connection)?.seq;
    let rows = query_number("SELECT count(*) FROM journal_by_run_end")?;
    let up_to = query_number("SELECT coalesce(max(seq), -1) FROM journal_by_run_end")?;
    let mut derived = |detail: String| flaws.push(StoreFlaw::Derived { detail });
    if rows != 1 || up_to < 0 || up_to > head {
        derived(format!(
            "journal_by_run_end has {rows} rows with the end {up_to}, and the journal ends at {head}"
        ));
    }
    let missing_entries = query_number(
        "SELECT count(*) FROM journal WHERE seq <= (SELECT max(seq) FROM journal_by_run_end) AND NOT EXISTS (
             SELECT 1 FROM journal_by_run AS indexed WHERE indexed.run_id = journal.run_id AND indexed.seq = journal.seq)",
    )?;
    let extra_entries = query_number(
        "SELECT count(*) FROM journal_by_run AS indexed WHERE NOT EXISTS (
             SELECT 1 FROM journal WHERE journal.seq = indexed.seq AND journal.run_id = indexed.run_id
                 AND journal.seq <= (SELECT max(seq) FROM journal_by_run_end))",
    )?;
    if (missing_entries, extra_entries) != (0, 0) {
        derived(format!(
            "journal_by_run lacks {missing_entries} entries of the journal and has {extra_entries} that the journal lacks"
        ));
    }
    Ok(())
}

/// Ids in tables that are not valid run ids.
fn invalid_run_ids(connection: &Connection) -> rusqlite::Result<Vec<(&'static str, String)>> {
    let mut ids = Vec::new();
    for table in TABLES {
        let mut query = connection.prepare(&format!("SELECT DISTINCT run_id FROM {table}"))?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let id: String = row.get(0)?;
            if id.parse::<RunId>().is_err() {
                ids.push((table, id));
            }
        }
    }
    Ok(ids)
}

fn read_error(error: rusqlite::Error) -> StoreError {
    failed(&error)
}
