//! The SQL queries.

use std::{collections::BTreeMap, str::FromStr};

use abide_domain::{
    deadline::Deadline,
    effect::{EffectNumber, PendingEffect},
    id::RunId,
    inbound::{Inbound, MessageKey},
    run::{Run, RunStatus},
    slots::SlotOccupancy,
    time::Timestamp,
};
use abide_ports::store::{
    ClaimHolder, DamagedRun, JournalEntry, JournalPage, JournalPageRequest, JournalSeq, ListPage,
    PageRequest, RunTables, StoreError,
};
use rusqlite::{Connection, Params, Row};
use serde::de::DeserializeOwned;

use super::error::failed;
use crate::{
    cursor::position,
    record::{
        ACTIVITY_EFFECTS, ACTIVITY_SLOT, ACTIVITY_SLOT_AND_EFFECTS, COUNT_BY_STATUS_SQL, StoredEntry,
        decode_body, limit_to_db_integer, parse_id, parse_status, pending_effects_after, to_db_integer,
    },
    run_rows,
};

type ReadResult<T> = Result<T, StoreError>;

const ENTRIES_SQL: &str = "SELECT seq, run_id, revision, at, id_seed, event, checksum FROM journal
    WHERE seq > ?1 ORDER BY seq LIMIT ?2";

/// Indexed entries are found by `journal_by_run`; the latest entries are not indexed yet and are scanned.
const ENTRIES_OF_RUN_SQL: &str = "SELECT seq, run_id, revision, at, id_seed, event, checksum FROM journal
    WHERE seq IN (SELECT seq FROM journal_by_run WHERE run_id = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3)
    UNION ALL
    SELECT seq, run_id, revision, at, id_seed, event, checksum FROM journal
    WHERE seq > max(?2, (SELECT seq FROM journal_by_run_end)) AND run_id = ?1
    ORDER BY seq LIMIT ?3";

/// Entries after a position.
pub(super) fn entries(connection: &Connection, after: i64, limit: i64) -> ReadResult<Vec<JournalEntry>> {
    rows(connection, ENTRIES_SQL, (after, limit), entry)
}

/// Entries of one run after a position.
pub(super) fn entries_of(
    connection: &Connection,
    run: RunId,
    after: i64,
    limit: i64,
) -> ReadResult<Vec<JournalEntry>> {
    rows(connection, ENTRIES_OF_RUN_SQL, (run.to_string(), after, limit), entry)
}

/// Entries after a position, bounded in bytes. Rows are read one by one, so rows beyond the page are not decoded.
pub(super) fn journal_page(connection: &Connection, request: &JournalPageRequest) -> ReadResult<JournalPage> {
    let (after, more) =
        (seq_to_db_integer(request.after), limit_to_db_integer(request.limit).saturating_add(1));
    let sql = if request.run.is_some() { ENTRIES_OF_RUN_SQL } else { ENTRIES_SQL };
    let mut query = connection.prepare_cached(sql).map_err(read_error)?;
    let cursor = match request.run {
        Some(run) => query.query((run.to_string(), after, more)),
        None => query.query((after, more)),
    };
    let mut cursor = cursor.map_err(read_error)?;
    let (mut entries, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = cursor.next().map_err(read_error)? {
        if entries.len() == request.limit || (bytes >= request.max_bytes && !entries.is_empty()) {
            return Ok(JournalPage { entries, has_more: true });
        }
        bytes = bytes.saturating_add(row.get_ref(5).map_err(read_error)?.as_bytes().map_or(0, <[u8]>::len));
        entries.push(entry(row).map_err(read_error)??);
    }
    Ok(JournalPage { entries, has_more: false })
}

fn entry(row: &Row<'_>) -> rusqlite::Result<ReadResult<JournalEntry>> {
    let text = |column| row.get_ref(column).and_then(|value| Ok(value.as_str()?));
    let entry = StoredEntry {
        seq: row.get(0)?,
        run_id: text(1)?,
        revision: row.get(2)?,
        at: row.get(3)?,
        id_seed: text(4)?,
        event: text(5)?,
        checksum: row.get(6)?,
    };
    Ok(entry.check())
}

/// Runs, newest first.
pub(super) fn runs(
    connection: &Connection,
    status: Option<RunStatus>,
    page: &PageRequest,
) -> ReadResult<ListPage<Run>> {
    let before = position::<RunId>(page)?.map_or("run_~".to_owned(), |run| run.to_string());
    let more = limit_to_db_integer(page.limit).saturating_add(1);
    let page = match status {
        Some(status) => page_of_rows(
            connection,
            "SELECT run_id, body FROM runs WHERE status = ?1 AND run_id < ?2 ORDER BY run_id DESC LIMIT ?3",
            (status.name(), before, more),
            page,
            run_if_readable,
        )?,
        None => page_of_rows(
            connection,
            "SELECT run_id, body FROM runs WHERE run_id < ?1 ORDER BY run_id DESC LIMIT ?2",
            (before, more),
            page,
            run_if_readable,
        )?,
    };
    let ListPage { items, next_cursor } = page;
    Ok(ListPage { items: items.into_iter().flatten().collect(), next_cursor })
}

/// Runs whose deadline has passed, up to a limit of readable ones.
pub(super) fn runs_due(
    connection: &Connection,
    until: Timestamp,
    limit: usize,
) -> ReadResult<Vec<(RunId, Deadline)>> {
    let sql = "SELECT run_id, body FROM runs WHERE deadline_at IS NOT NULL AND deadline_at <= ?1
               ORDER BY deadline_at, run_id";
    let mut query = connection.prepare_cached(sql).map_err(read_error)?;
    let mut cursor = query.query((until.0,)).map_err(read_error)?;
    let mut due = Vec::new();
    while due.len() < limit
        && let Some(row) = cursor.next().map_err(read_error)?
    {
        let (_, run) = run_if_readable(row).map_err(read_error)??;
        due.extend(run.and_then(|run| Some((run.run_id, run.deadline()?))));
    }
    Ok(due)
}

/// Runs that need processing and whose row cannot be read.
pub(super) fn damaged_runs(connection: &Connection) -> ReadResult<Vec<DamagedRun>> {
    let sql =
        "SELECT run_id, body FROM runs WHERE activity IS NOT NULL OR deadline_at IS NOT NULL ORDER BY run_id";
    let damaged = rows(connection, sql, (), |row| {
        let run_id: String = row.get(0)?;
        let detail = body::<Run>("runs", row).map_or_else(
            |error| Some(format!("row {run_id} of runs cannot be read ({error})")),
            |read| read.err().map(|error| error.to_string()),
        );
        Ok(Ok(detail.map(|detail| DamagedRun { run_id, detail })))
    })?;
    Ok(damaged.into_iter().flatten().collect())
}

/// A run, or none if its row is damaged.
fn run_if_readable(row: &Row<'_>) -> rusqlite::Result<ReadResult<(String, Option<Run>)>> {
    let name: String = row.get(0)?;
    let run = body("runs", row).ok().and_then(|read| read.ok()).map(|(_, run)| run);
    Ok(Ok((name, run)))
}

/// Runs that hold a slot or wait for one.
pub(super) fn slot_occupancies(connection: &Connection) -> ReadResult<Vec<(RunId, SlotOccupancy)>> {
    let sql = "SELECT run_id, body FROM runs INDEXED BY runs_by_activity WHERE activity IN (?1, ?2) ORDER BY run_id";
    let rows = rows(connection, sql, (ACTIVITY_SLOT, ACTIVITY_SLOT_AND_EFFECTS), run_if_readable)?;
    let runs = rows.into_iter().filter_map(|(_, run)| run);
    Ok(runs.map(|run| (run.run_id, run.occupancy())).collect())
}

/// The number of runs per status.
pub(super) fn count_by_status(connection: &Connection) -> ReadResult<BTreeMap<RunStatus, u64>> {
    let counted = rows(connection, COUNT_BY_STATUS_SQL, (), |row| {
        let count: i64 = row.get(1)?;
        Ok(parse_status(row.get_ref(0)?.as_str()?).map(|status| (status, count as u64)))
    })?;
    Ok(counted.into_iter().collect())
}

/// The number of open questions.
pub(super) fn count_open_interactions(connection: &Connection) -> ReadResult<u64> {
    let sql = "SELECT COUNT(*) FROM interactions WHERE open = 1";
    let counted = rows(connection, sql, (), |row| Ok(Ok(row.get::<_, i64>(0)? as u64)))?;
    Ok(counted.into_iter().next().unwrap_or(0))
}

/// One row by its key, for tables with a key of one column.
pub(super) fn row_by_key<T: DeserializeOwned>(
    connection: &Connection,
    table: LedgerTable,
    key: &str,
) -> ReadResult<Option<T>> {
    let LedgerTable { name, key: column } = table;
    let sql = format!("SELECT {column}, body FROM {name} WHERE {column} = ?1");
    let rows = rows(connection, &sql, (key,), |row| body(name, row))?;
    Ok(rows.into_iter().next().map(|(_, row)| row))
}

/// A question and its run.
pub(super) fn interaction_with_run<I: DeserializeOwned, R: DeserializeOwned>(
    connection: &Connection,
    id: &str,
) -> ReadResult<Option<(I, R)>> {
    let sql = "SELECT interaction_id, interactions.body, run_id, runs.body
               FROM interactions JOIN runs USING (run_id) WHERE interaction_id = ?1";
    let rows = rows(connection, sql, (id,), |row| {
        let (run_id, run): (String, _) = (row.get(2)?, row.get_ref(3)?.as_str()?);
        let run = decode_body(RUNS.name, &run_id, run);
        Ok(body(INTERACTIONS.name, row)?.and_then(|(_, interaction)| Ok((interaction, run?))))
    })?;
    Ok(rows.into_iter().next())
}

/// A run's rows of one table, oldest first.
pub(super) fn rows_of_run<Id: FromStr + ToString, T: DeserializeOwned>(
    connection: &Connection,
    table: LedgerTable,
    run: RunId,
    page: &PageRequest,
) -> ReadResult<ListPage<T>> {
    let LedgerTable { name, key } = table;
    let after = position::<Id>(page)?.map_or(String::new(), |id| id.to_string());
    let sql =
        format!("SELECT {key}, body FROM {name} WHERE run_id = ?1 AND {key} > ?2 ORDER BY {key} LIMIT ?3");
    let more = limit_to_db_integer(page.limit).saturating_add(1);
    page_of_rows(connection, &sql, (run.to_string(), after, more), page, |row| body(name, row))
}

/// Open questions, oldest first.
pub(super) fn open_interactions<Id: FromStr + ToString, T: DeserializeOwned>(
    connection: &Connection,
    page: &PageRequest,
) -> ReadResult<ListPage<T>> {
    let after = position::<Id>(page)?.map_or(String::new(), |id| id.to_string());
    let sql = "SELECT interaction_id, body FROM interactions WHERE open = 1 AND interaction_id > ?1
               ORDER BY interaction_id LIMIT ?2";
    let more = limit_to_db_integer(page.limit).saturating_add(1);
    page_of_rows(connection, sql, (after, more), page, |row| body("interactions", row))
}

pub(super) fn inbound(connection: &Connection, key: &MessageKey) -> ReadResult<Option<Inbound>> {
    let sql = "SELECT message_id, body FROM inbound WHERE channel = ?1 AND message_id = ?2";
    let rows = rows(connection, sql, (&key.channel, &key.message_id), |row| body("inbound", row))?;
    Ok(rows.into_iter().next().map(|(_, row)| row))
}

/// Runs with a failed delivery to this conversation that may be retried.
pub(super) fn undelivered_to(connection: &Connection, conversation: &str) -> ReadResult<Vec<RunId>> {
    let sql = "SELECT DISTINCT run_id FROM deliveries WHERE retry_pending = 1 AND conversation_ref = ?1 ORDER BY run_id";
    rows(connection, sql, (conversation,), |row| run_id("deliveries", row))
}

/// Pending effects. Each of these runs has at least one, so the limit of effects is also sufficient for runs.
/// Unreadable runs do not count.
pub(super) fn pending_effects(
    connection: &Connection,
    after: Option<(RunId, EffectNumber)>,
    limit: usize,
) -> ReadResult<Vec<(RunId, PendingEffect)>> {
    let sql = "SELECT run_id, body FROM runs INDEXED BY runs_by_activity WHERE activity IN (?1, ?2) AND run_id >= ?3
               ORDER BY run_id";
    let first = after.map_or(String::new(), |(run, _)| run.to_string());
    let mut query = connection.prepare_cached(sql).map_err(read_error)?;
    let mut cursor = query.query((ACTIVITY_EFFECTS, ACTIVITY_SLOT_AND_EFFECTS, first)).map_err(read_error)?;
    let mut runs: Vec<Run> = Vec::new();
    while runs.len() <= limit
        && let Some(row) = cursor.next().map_err(read_error)?
    {
        runs.extend(run_if_readable(row).map_err(read_error)??.1);
    }
    Ok(pending_effects_after(runs, after, limit))
}

/// The run and request that claimed a key.
pub(super) fn claim_holder(
    connection: &Connection,
    scope: &str,
    key: &str,
) -> ReadResult<Option<ClaimHolder>> {
    let sql = "SELECT run_id, fingerprint FROM claims WHERE scope = ?1 AND key = ?2";
    let holders = rows(connection, sql, (scope, key), |row| {
        let fingerprint = row.get(1)?;
        Ok(run_id("claims", row)?.map(|run_id| ClaimHolder { run_id, fingerprint }))
    })?;
    Ok(holders.into_iter().next())
}

/// Runs that appear in any table.
pub(super) fn known_runs(
    connection: &Connection,
    after: Option<RunId>,
    limit: i64,
) -> ReadResult<Vec<RunId>> {
    let after = after.map_or(String::new(), |run| run.to_string());
    let run_ids = rows(connection, &run_rows::known_runs_sql(), (after, limit), |row| {
        Ok(Ok(row.get_ref(0)?.as_str()?.parse().ok()))
    })?;
    // `inspect` reports invalid ids.
    Ok(run_ids.into_iter().flatten().collect())
}

/// All rows of a run, from one snapshot.
pub(super) fn tables_of(connection: &Connection, run: RunId) -> ReadResult<RunTables> {
    let rows = rows(connection, run_rows::ROWS_OF_RUN, (run.to_string(),), |row| {
        Ok(Ok(run_rows::TableRow {
            table: row.get(0)?,
            name: row.get(1)?,
            text_key: row.get(2)?,
            number: row.get(3)?,
            time: row.get(4)?,
            flag: row.get(5)?,
            body: row.get(6)?,
        }))
    })?;
    run_rows::assemble_tables(rows)
}

/// A table and its key column.
#[derive(Clone, Copy)]
pub(super) struct LedgerTable {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
}

pub(super) const RUNS: LedgerTable = LedgerTable { name: "runs", key: "run_id" };
pub(super) const TURNS: LedgerTable = LedgerTable { name: "turns", key: "turn_id" };
pub(super) const INTERACTIONS: LedgerTable = LedgerTable { name: "interactions", key: "interaction_id" };
pub(super) const DELIVERIES: LedgerTable = LedgerTable { name: "deliveries", key: "delivery_id" };

/// A page of a query that returns names and bodies, and the cursor of the next page. The query requests one row more
/// than the page may have. Rows are read one by one, so rows that do not fit into the page are not held in memory.
fn page_of_rows<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    page: &PageRequest,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<ReadResult<(String, T)>>,
) -> ReadResult<ListPage<T>> {
    let mut query = connection.prepare_cached(sql).map_err(read_error)?;
    let mut cursor = query.query(params).map_err(read_error)?;
    let (mut items, mut last, mut bytes) = (Vec::new(), None, 0_usize);
    while let Some(row) = cursor.next().map_err(read_error)? {
        if items.len() == page.limit || (bytes >= page.max_bytes && !items.is_empty()) {
            return Ok(ListPage { items, next_cursor: last });
        }
        bytes = bytes.saturating_add(row.get_ref(1).map_err(read_error)?.as_bytes().map_or(0, <[u8]>::len));
        let (name, item) = read(row).map_err(read_error)??;
        items.push(item);
        last = Some(name);
    }
    Ok(ListPage { items, next_cursor: None })
}

/// The name and value of a row that starts with them.
fn body<T: DeserializeOwned>(table: &str, row: &Row<'_>) -> rusqlite::Result<ReadResult<(String, T)>> {
    let name: String = row.get(0)?;
    let body = row.get_ref(1)?.as_str()?;
    Ok(decode_body(table, &name, body).map(|row| (name, row)))
}

fn run_id(table: &str, row: &Row<'_>) -> rusqlite::Result<ReadResult<RunId>> {
    Ok(parse_id(table, row.get_ref(0)?.as_str()?))
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<ReadResult<T>>,
) -> ReadResult<Vec<T>> {
    let mut query = connection.prepare_cached(sql).map_err(read_error)?;
    let mut cursor = query.query(params).map_err(read_error)?;
    let mut items = Vec::new();
    while let Some(row) = cursor.next().map_err(read_error)? {
        items.push(read(row).map_err(read_error)??);
    }
    Ok(items)
}

fn read_error(error: rusqlite::Error) -> StoreError {
    failed(&error)
}

pub(super) fn head(connection: &Connection) -> ReadResult<JournalSeq> {
    super::write::head(connection).map(|head| JournalSeq(head.seq as u64)).map_err(read_error)
}

/// A position as a database integer.
pub(super) fn seq_to_db_integer(seq: JournalSeq) -> i64 {
    to_db_integer(seq.0)
}
