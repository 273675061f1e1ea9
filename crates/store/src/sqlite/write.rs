//! Writes the rows of a change. The caller owns the transaction.

use abide_domain::event::KeyClaim;
use abide_ports::store::{ClaimHolder, StoreError};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params};

use super::error::failed;
use crate::{
    chain::JournalHead,
    record::{CommitRow, RunKeys, TableRows, parse_id, to_db_integer},
    run_rows::TABLES,
};

/// The reason why a write was not performed.
#[derive(Debug)]
pub(super) enum SqliteWriteError {
    /// The request was refused.
    Refused(StoreError),
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for SqliteWriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl SqliteWriteError {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::Failed(error) => failed(&error),
        }
    }
}

/// The maximum number of unindexed entries that a query for one run has to scan.
const MAX_UNINDEXED_ENTRIES: i64 = 2048;

/// Appends a run's changes to the journal, and returns its new head.
pub(super) fn append_record(
    connection: &Connection,
    record: &CommitRow,
    head: JournalHead,
) -> Result<JournalHead, SqliteWriteError> {
    let rows = &record.rows;
    check_claims(connection, record)?;
    if let Some((keys, body)) = &rows.state {
        write_run(connection, record, keys, &rows.text[*body])?;
    }
    insert_claims(connection, record)?;
    let sql = "INSERT INTO journal (seq, run_id, revision, at, id_seed, event, checksum, chain)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let mut insert = cached(connection, sql)?;
    let mut head = head;
    for entry in &record.entries {
        let checksum = entry.checksum(head.seq + 1);
        head = head.next(checksum);
        let (id_seed, event) = (&rows.text[entry.id_seed], &rows.text[entry.event]);
        insert.execute((
            head.seq,
            rows.run(),
            entry.revision,
            entry.at,
            id_seed,
            event,
            checksum,
            head.chain,
        ))?;
    }
    write_ledgers(connection, rows)?;
    Ok(head)
}

/// Replaces all rows of a run.
pub(super) fn replace(connection: &Connection, rows: &TableRows) -> Result<(), SqliteWriteError> {
    for table in TABLES {
        execute(connection, &format!("DELETE FROM {table} WHERE run_id = ?1"), (rows.run(),))?;
    }
    remove_misplaced(connection, rows)?;
    if let Some((keys, body)) = &rows.state {
        insert_run(connection, rows.run(), keys, &rows.text[*body])?;
    }
    for KeyClaim { scope, key, fingerprint } in &rows.claims {
        let sql = "INSERT OR REPLACE INTO claims (scope, key, fingerprint, run_id) VALUES (?1, ?2, ?3, ?4)";
        execute(connection, sql, (scope, key, fingerprint, rows.run()))?;
    }
    write_ledgers(connection, rows)
}

/// Deletes rows with these keys that are stored under another run.
fn remove_misplaced(connection: &Connection, rows: &TableRows) -> Result<(), SqliteWriteError> {
    let text = &rows.text;
    for (channel, message, _) in &rows.inbound {
        let sql = "DELETE FROM inbound WHERE channel = ?1 AND message_id = ?2";
        execute(connection, sql, (&text[*channel], &text[*message]))?;
    }
    for (turn, _) in &rows.turns {
        execute(connection, "DELETE FROM turns WHERE turn_id = ?1", (&text[*turn],))?;
    }
    for (interaction, _, _) in &rows.interactions {
        execute(connection, "DELETE FROM interactions WHERE interaction_id = ?1", (&text[*interaction],))?;
    }
    for (delivery, _, _) in &rows.deliveries {
        execute(connection, "DELETE FROM deliveries WHERE delivery_id = ?1", (&text[*delivery],))?;
    }
    Ok(())
}

/// The head of the journal.
pub(super) fn head(connection: &Connection) -> rusqlite::Result<JournalHead> {
    let sql = "SELECT seq, coalesce(chain, 0) FROM journal ORDER BY seq DESC LIMIT 1";
    let newest = |row: &rusqlite::Row<'_>| Ok(JournalHead { seq: row.get(0)?, chain: row.get(1)? });
    Ok(cached(connection, sql)?.query_row([], newest).optional()?.unwrap_or_default())
}

/// Adds the latest entries to the index by run, once there are many of them.
pub(super) fn index_entries(connection: &Connection, head: i64) -> rusqlite::Result<()> {
    let indexed_up_to: i64 =
        cached(connection, "SELECT seq FROM journal_by_run_end")?.query_row([], |row| row.get(0))?;
    if head - indexed_up_to < MAX_UNINDEXED_ENTRIES {
        return Ok(());
    }
    let sql = "INSERT INTO journal_by_run (run_id, seq)
               SELECT run_id, seq FROM journal WHERE seq > ?1 AND seq <= ?2 ORDER BY run_id, seq";
    cached(connection, sql)?.execute((indexed_up_to, head))?;
    cached(connection, "UPDATE journal_by_run_end SET seq = ?1")?.execute((head,))?;
    Ok(())
}

fn write_run(
    connection: &Connection,
    record: &CommitRow,
    keys: &RunKeys,
    body: &str,
) -> Result<(), SqliteWriteError> {
    let (run, expected) = (record.rows.run(), to_db_integer(record.expected_revision));
    let written = if expected == 0 {
        insert_run(connection, run, keys, body)?
    } else {
        // Most single changes leave the indexed columns unchanged, and then no index is updated. Several changes at
        // once usually change the status.
        let same =
            if let [_] = record.entries[..] { update_unindexed(connection, record, keys, body)? } else { 0 };
        if same == 1 {
            return Ok(());
        }
        cached(
            connection,
            "UPDATE runs SET revision = ?1, body = ?2, status = ?5, deadline_at = ?6, activity = ?7
             WHERE run_id = ?3 AND revision = ?4",
        )?
        .execute((
            keys.revision,
            body,
            run,
            expected,
            keys.status,
            keys.deadline_at,
            keys.activity,
        ))?
    };
    if written == 1 {
        return Ok(());
    }
    let found = revision(connection, run)?;
    Err(SqliteWriteError::Refused(StoreError::Conflict {
        run_id: record.run_id,
        expected: record.expected_revision,
        found,
    }))
}

/// Updates a run whose indexed columns are unchanged. Returns the number of updated rows.
fn update_unindexed(
    connection: &Connection,
    record: &CommitRow,
    keys: &RunKeys,
    body: &str,
) -> rusqlite::Result<usize> {
    let sql = "UPDATE runs SET revision = ?1, body = ?2
               WHERE run_id = ?3 AND revision = ?4 AND status = ?5 AND deadline_at IS ?6 AND activity IS ?7";
    let (run, expected) = (record.rows.run(), to_db_integer(record.expected_revision));
    cached(connection, sql)?.execute((
        keys.revision,
        body,
        run,
        expected,
        keys.status,
        keys.deadline_at,
        keys.activity,
    ))
}

/// The revision of a run, 0 if it does not exist.
fn revision(connection: &Connection, run: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT revision FROM runs WHERE run_id = ?1";
    let revision: Option<i64> = cached(connection, sql)?.query_row([run], |row| row.get(0)).optional()?;
    Ok(revision.unwrap_or(0) as u64)
}

fn insert_run(connection: &Connection, run: &str, keys: &RunKeys, body: &str) -> rusqlite::Result<usize> {
    cached(
        connection,
        "INSERT INTO runs (run_id, revision, status, deadline_at, activity, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
    )?
    .execute((run, keys.revision, keys.status, keys.deadline_at, keys.activity, body))
}

/// Refuses a change whose keys are claimed, before it writes anything. A revision conflict takes precedence, because
/// the change may be a repetition of a commit that was written.
fn check_claims(connection: &Connection, record: &CommitRow) -> Result<(), SqliteWriteError> {
    for claim in &record.rows.claims {
        let Some(holder) = claim_holder(connection, claim)? else { continue };
        let (run_id, expected) = (record.run_id, record.expected_revision);
        let found = revision(connection, record.rows.run())?;
        if found != expected {
            return Err(SqliteWriteError::Refused(StoreError::Conflict { run_id, expected, found }));
        }
        return Err(key_taken_error(claim, holder));
    }
    Ok(())
}

fn insert_claims(connection: &Connection, record: &CommitRow) -> Result<(), SqliteWriteError> {
    for claim in &record.rows.claims {
        let sql = "INSERT INTO claims (scope, key, fingerprint, run_id) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT DO NOTHING";
        let KeyClaim { scope, key, fingerprint } = claim;
        let written = cached(connection, sql)?.execute((scope, key, fingerprint, record.rows.run()))?;
        // The key was free when it was checked, so this change claims it twice.
        if written == 0
            && let Some(holder) = claim_holder(connection, claim)?
        {
            return Err(key_taken_error(claim, holder));
        }
    }
    Ok(())
}

fn key_taken_error(claim: &KeyClaim, holder: ClaimHolder) -> SqliteWriteError {
    SqliteWriteError::Refused(StoreError::KeyTaken {
        scope: claim.scope.clone(),
        key: claim.key.clone(),
        holder,
    })
}

/// The holder of a key.
fn claim_holder(connection: &Connection, claim: &KeyClaim) -> Result<Option<ClaimHolder>, SqliteWriteError> {
    let sql = "SELECT run_id, fingerprint FROM claims WHERE scope = ?1 AND key = ?2";
    let holder: Option<(String, String)> = cached(connection, sql)?
        .query_row([&claim.scope, &claim.key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((run, fingerprint)) = holder else { return Ok(None) };
    let run_id = parse_id("claims", &run).map_err(SqliteWriteError::Refused)?;
    Ok(Some(ClaimHolder { run_id, fingerprint }))
}

fn write_ledgers(connection: &Connection, rows: &TableRows) -> Result<(), SqliteWriteError> {
    let (run, text) = (rows.run(), &rows.text);
    for (channel, message, body) in &rows.inbound {
        let sql = "INSERT INTO inbound (channel, message_id, run_id, body) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT (channel, message_id) DO UPDATE SET body = excluded.body";
        execute(connection, sql, (&text[*channel], &text[*message], run, &text[*body]))?;
    }
    for (turn, body) in &rows.turns {
        let sql = "INSERT INTO turns (turn_id, run_id, body) VALUES (?1, ?2, ?3)
                   ON CONFLICT (turn_id) DO UPDATE SET body = excluded.body";
        execute(connection, sql, (&text[*turn], run, &text[*body]))?;
    }
    for (interaction, keys, body) in &rows.interactions {
        let sql = "INSERT INTO interactions (interaction_id, run_id, open, body) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT (interaction_id) DO UPDATE SET open = excluded.open, body = excluded.body";
        execute(connection, sql, (&text[*interaction], run, keys.open, &text[*body]))?;
    }
    for (delivery, keys, body) in &rows.deliveries {
        let sql = "INSERT INTO deliveries (delivery_id, run_id, conversation_ref, retry_pending, body)
                   VALUES (?1, ?2, ?3, ?4, ?5)
                   ON CONFLICT (delivery_id) DO UPDATE SET retry_pending = excluded.retry_pending, body = excluded.body";
        let values = (&text[*delivery], run, &keys.conversation_ref, keys.retry_pending, &text[*body]);
        execute(connection, sql, values)?;
    }
    Ok(())
}

fn execute(connection: &Connection, sql: &str, params: impl Params) -> Result<(), SqliteWriteError> {
    cached(connection, sql)?.execute(params)?;
    Ok(())
}

fn cached<'c>(connection: &'c Connection, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
    connection.prepare_cached(sql)
}
