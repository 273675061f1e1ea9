//! Inspection of a schema as a whole: the witness, the chain, rows that are missing in an index, and derived columns
//! that belong to no single run.

use abide_domain::id::RunId;
use abide_ports::store::{StoreError, StoreFlaw};
use tokio_postgres::{Error, SimpleQueryMessage};

use super::{
    PostgresStore, connect::PostgresConnection, error::failed, witness_check, writer::PostgresWriteJob,
};
use crate::{chain::ChainCheck, run_rows::TABLES};

/// The number of entries per query.
const PAGE_ENTRIES: i64 = 10_000;
/// The maximum number of reported findings per kind.
const MAX_FINDINGS: usize = 100;

/// Inspects everything, on a separate connection.
pub(super) async fn inspect(store: &PostgresStore) -> Result<Vec<StoreFlaw>, StoreError> {
    let session = store.reader.connect().await?;
    let mut flaws = Vec::new();
    if let Some(path) = &store.witness {
        match witness_check::compare_with_witness(&session, path).await {
            Ok(None) => {}
            Ok(Some(detail)) => flaws.push(StoreFlaw::Note { detail }),
            Err(StoreError::InputLost { detail }) => flaws.push(StoreFlaw::InputLost { detail }),
            Err(other) => return Err(other),
        }
    }
    inspect_snapshot(&session, store.reader.schema(), &mut flaws).await.map_err(|error| failed(&error))?;
    Ok(flaws)
}

async fn inspect_snapshot(
    session: &PostgresConnection,
    schema: &str,
    flaws: &mut Vec<StoreFlaw>,
) -> Result<(), Error> {
    // All following queries read one snapshot.
    session.client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    for row in session.query("SELECT value FROM meta WHERE key = 'accepted_loss'", &[]).await? {
        flaws.push(StoreFlaw::Note { detail: format!("a loss was accepted at {}", row.get::<_, String>(0)) });
    }
    check_chain(session, flaws).await?;
    check_indexes(session, schema, flaws).await?;
    for (table, id) in invalid_run_ids(session).await? {
        flaws.push(StoreFlaw::Derived {
            detail: format!("{table} has rows with the run id {id:?}, which is invalid"),
        });
    }
    session.client.batch_execute("ROLLBACK").await
}

/// Rebuilds derived data that belongs to no single run.
pub(super) async fn reindex(store: &PostgresStore) -> Result<(), StoreError> {
    // Takes the lock, because no daemon may run at the same time.
    store.writer.submit(PostgresWriteJob::AcquireLock).await?;
    let session = store.reader.connect().await?;
    rebuild_derived(&session).await.map_err(|error| failed(&error))
}

async fn rebuild_derived(session: &PostgresConnection) -> Result<(), Error> {
    session.client.batch_execute("BEGIN").await?;
    for table in TABLES.iter().chain(&["journal"]) {
        session.client.batch_execute(&format!("REINDEX TABLE {table}")).await?;
    }
    for (table, id) in invalid_run_ids(session).await? {
        session.execute(&format!("DELETE FROM {table} WHERE run_id = $1"), &[&id]).await?;
    }
    session.client.batch_execute("COMMIT").await
}

async fn check_chain(session: &PostgresConnection, flaws: &mut Vec<StoreFlaw>) -> Result<(), Error> {
    let (mut check, mut at, mut mismatch_count, mut last) = (ChainCheck::default(), 0_i64, 0, 0_i64);
    loop {
        let sql = "SELECT seq, checksum, chain FROM journal WHERE seq > $1 ORDER BY seq LIMIT $2";
        let rows = session.query(sql, &[&at, &PAGE_ENTRIES]).await?;
        for row in &rows {
            at = row.get(0);
            let chain: Option<i64> = row.get(2);
            last = chain.unwrap_or(0);
            if let Some(detail) = check.check_entry(at, row.get(1), chain) {
                mismatch_count += 1;
                if mismatch_count <= MAX_FINDINGS {
                    flaws.push(StoreFlaw::Journal { detail });
                }
            }
        }
        if rows.is_empty() {
            break;
        }
    }
    for row in session.query("SELECT seq, chain FROM head", &[]).await? {
        let (seq, chain): (i64, i64) = (row.get(0), row.get(1));
        if (seq, chain) != (at, last) {
            flaws.push(StoreFlaw::Journal {
                detail: format!("the head is entry {seq} and the journal ends at entry {at}, or their chained checksums differ"),
            });
        }
    }
    Ok(())
}

/// Counts the rows of each table, once without its indexes and once with each index.
async fn check_indexes(
    session: &PostgresConnection,
    schema: &str,
    flaws: &mut Vec<StoreFlaw>,
) -> Result<(), Error> {
    let sql = "
        SELECT quote_ident(i.relname), quote_ident(t.relname), coalesce(pg_get_expr(x.indpred, x.indrelid), 'true'),
            (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY k.place)
                FROM unnest(x.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
                JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number),
            x.indisvalid AND x.indisready
        FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
        JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE n.nspname = $1 AND x.indexprs IS NULL ORDER BY 2, 1";
    for row in session.query(sql, &[&schema]).await? {
        let (index, table, predicate): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        let (columns, is_used): (Option<String>, bool) = (row.get(3), row.get(4));
        let Some(columns) = columns.filter(|_| is_used) else {
            flaws.push(StoreFlaw::Derived { detail: format!("the index {index} of {table} is not in use") });
            continue;
        };
        scan_by(session, "off").await?;
        let all = count(session, &format!("SELECT count(*) FROM {table} WHERE {predicate}")).await?;
        scan_by(session, "on").await?;
        let ordered = format!(
            "SELECT count(*) FROM (SELECT {columns} FROM {table} WHERE {predicate} ORDER BY {columns} OFFSET 0) AS found"
        );
        let indexed = count(session, &ordered).await?;
        if indexed != all {
            let detail = format!("the index {index} has {indexed} of the {all} rows of {table}");
            flaws.push(StoreFlaw::Derived { detail });
        }
    }
    Ok(())
}

/// Makes the server read tables only by their indexes, or only without them.
async fn scan_by(session: &PostgresConnection, index: &str) -> Result<(), Error> {
    let table = if index == "on" { "off" } else { "on" };
    let settings = format!(
        "SET LOCAL enable_seqscan = {table}; SET LOCAL enable_sort = {table}; SET LOCAL enable_indexscan = {index};
         SET LOCAL enable_indexonlyscan = {index}; SET LOCAL enable_bitmapscan = off"
    );
    session.client.batch_execute(&settings).await
}

async fn count(session: &PostgresConnection, sql: &str) -> Result<i64, Error> {
    // Not prepared, because a cached plan may have been made under other settings.
    let rows = session.client.simple_query(sql).await?;
    let number = rows.iter().find_map(|message| {
        let SimpleQueryMessage::Row(row) = message else { return None };
        row.get(0)?.parse().ok()
    });
    Ok(number.unwrap_or(-1))
}

/// Ids in tables that are not valid run ids.
async fn invalid_run_ids(session: &PostgresConnection) -> Result<Vec<(&'static str, String)>, Error> {
    let mut ids = Vec::new();
    for table in TABLES {
        for row in session.query(&format!("SELECT DISTINCT run_id FROM {table}"), &[]).await? {
            let id: String = row.get(0);
            if id.parse::<RunId>().is_err() {
                ids.push((table, id));
            }
        }
    }
    Ok(ids)
}
