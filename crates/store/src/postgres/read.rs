//! The SQL queries, and their shared connection.
//!
//! Every query is one statement, so each reads one snapshot. Queries are pipelined.

use std::{str::FromStr, sync::Arc};

use abide_domain::{id::RunId, run::Run};
use abide_ports::store::{JournalEntry, JournalPage, JournalPageRequest, ListPage, PageRequest, StoreError};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio_postgres::{Row, types::ToSql};

use super::{
    connect::{PostgresConnection, PostgresTarget, SqlParams},
    error::failed,
};
use crate::{
    cursor::position,
    record::{StoredEntry, decode_body, limit_to_db_integer, parse_id, to_db_integer},
};

pub(super) const SELECT_ENTRY: &str =
    "SELECT seq, run_id, revision, at, id_seed, event, checksum FROM journal";

/// The connection for queries, reestablished after a loss.
#[derive(Debug)]
pub(super) struct PostgresReader {
    target: PostgresTarget,
    session: Mutex<Arc<PostgresConnection>>,
}

impl PostgresReader {
    pub(super) fn new(target: PostgresTarget, session: PostgresConnection) -> Self {
        Self { target, session: Mutex::new(Arc::new(session)) }
    }

    pub(super) fn schema(&self) -> &str {
        self.target.schema()
    }

    /// Opens a connection that is not shared.
    pub(super) async fn connect(&self) -> Result<PostgresConnection, StoreError> {
        self.target.connect().await
    }

    /// Runs a query, and retries it once if the connection was lost. Repeating a query is harmless.
    pub(super) async fn rows(&self, sql: &str, values: SqlParams<'_>) -> Result<Vec<Row>, StoreError> {
        let session = self.session().await?;
        match session.query(sql, values).await {
            Ok(rows) => Ok(rows),
            Err(_) if session.client.is_closed() => {
                self.session().await?.query(sql, values).await.map_err(|error| failed(&error))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    async fn session(&self) -> Result<Arc<PostgresConnection>, StoreError> {
        let mut session = self.session.lock().await;
        if session.client.is_closed() {
            *session = Arc::new(self.target.connect().await?);
        }
        Ok(Arc::clone(&session))
    }

    /// Entries of the journal.
    pub(super) async fn entries(
        &self,
        sql: &str,
        values: SqlParams<'_>,
    ) -> Result<Vec<JournalEntry>, StoreError> {
        self.rows(sql, values).await?.iter().map(entry).collect()
    }

    /// Entries after a position, bounded in bytes. The server does not send entries beyond the page.
    pub(super) async fn journal_page(&self, request: &JournalPageRequest) -> Result<JournalPage, StoreError> {
        let after = to_db_integer(request.after.0);
        let more = limit_to_db_integer(request.limit).saturating_add(1);
        let max_bytes = limit_to_db_integer(request.max_bytes);
        let run = request.run.map(|run| run.to_string());
        let of_run = if run.is_some() { "AND run_id = $4" } else { "" };
        let sql = format!(
            "SELECT seq, run_id, revision, at, id_seed, event, checksum, found FROM (
                 SELECT *, count(*) OVER () AS found,
                        sum(octet_length(event)) OVER (ORDER BY seq) - octet_length(event) AS before
                 FROM ({SELECT_ENTRY} WHERE seq > $1 {of_run} ORDER BY seq LIMIT $2) AS looked_up) AS sized
             WHERE before < $3 OR before = 0 ORDER BY seq"
        );
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&after, &more, &max_bytes];
        values.extend(run.as_ref().map(|run| run as &(dyn ToSql + Sync)));
        let rows = self.rows(&sql, &values).await?;
        let total = rows.first().map_or(0, |row| row.get::<_, i64>(7));
        let page_rows = rows.get(..rows.len().min(request.limit)).unwrap_or_default();
        let has_more = total > limit_to_db_integer(page_rows.len());
        let entries = page_rows.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(JournalPage { entries, has_more })
    }

    /// Values of a query that returns a name and a body.
    pub(super) async fn bodies<T: DeserializeOwned>(
        &self,
        table: &str,
        sql: &str,
        values: SqlParams<'_>,
    ) -> Result<Vec<(String, T)>, StoreError> {
        let rows = self.rows(sql, values).await?;
        rows.iter().map(|row| Ok((row.get(0), decode_body(table, row.get(0), row.get(1))?))).collect()
    }

    /// A page of a query that returns a table's key and a body. The query requests one row more than the page may have.
    /// The server does not send rows that do not fit into the page.
    pub(super) async fn page<T>(
        &self,
        table: PostgresLedgerTable,
        sql: &str,
        mut values: Vec<&(dyn ToSql + Sync)>,
        page: &PageRequest,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<ListPage<T>, StoreError> {
        let PostgresLedgerTable { key, order, .. } = table;
        let bytes = values.len() + 1;
        let sql = format!(
            "SELECT {key}, body, found FROM (
                 SELECT {key}, body, count(*) OVER () AS found,
                        sum(octet_length(body)) OVER (ORDER BY {key} {order}) - octet_length(body) AS before
                 FROM ({sql}) AS looked_up) AS sized
             WHERE before < ${bytes} OR before = 0 ORDER BY {key} {order}"
        );
        let max_bytes = limit_to_db_integer(page.max_bytes);
        values.push(&max_bytes);
        let rows = self.rows(&sql, &values).await?;
        let total = rows.first().map_or(0, |row| row.get::<_, i64>(2));
        let page_rows = rows.len().min(page.limit);
        let rows = rows.get(..page_rows).unwrap_or_default();
        let next_cursor =
            rows.last().filter(|_| total > limit_to_db_integer(page_rows)).map(|row| row.get(0));
        let items = rows.iter().map(read).collect::<Result<_, _>>()?;
        Ok(ListPage { items, next_cursor })
    }

    /// Runs of a query that returns a name and a body. Unreadable rows are errors of their own.
    pub(super) async fn runs(
        &self,
        sql: &str,
        values: SqlParams<'_>,
    ) -> Result<Vec<(String, Result<Run, StoreError>)>, StoreError> {
        let rows = self.rows(sql, values).await?;
        Ok(rows.iter().map(|row| (row.get(0), decode_body("runs", row.get(0), row.get(1)))).collect())
    }

    /// The value with this name.
    pub(super) async fn row_by_key<T: DeserializeOwned>(
        &self,
        table: &str,
        key: &str,
        name: String,
    ) -> Result<Option<T>, StoreError> {
        let sql = format!("SELECT {key}, body FROM {table} WHERE {key} = $1");
        Ok(self.bodies(table, &sql, &[&name]).await?.pop().map(|(_, value)| value))
    }

    /// A run's rows of one table, oldest first.
    pub(super) async fn rows_of_run<Id: FromStr + ToString, T: DeserializeOwned>(
        &self,
        table: PostgresLedgerTable,
        run: RunId,
        page: &PageRequest,
    ) -> Result<ListPage<T>, StoreError> {
        let after = position::<Id>(page)?.map_or(String::new(), |id| id.to_string());
        let PostgresLedgerTable { name, key, .. } = table;
        let sql = format!(
            "SELECT {key}, body FROM {name} WHERE run_id = $1 AND {key} > $2 ORDER BY {key} LIMIT $3"
        );
        let (run, more) = (run.to_string(), limit_plus_one(page));
        self.page(table, &sql, vec![&run, &after, &more], page, |row| table.value(row)).await
    }

    pub(super) async fn run_ids(&self, sql: &str, values: SqlParams<'_>) -> Result<Vec<RunId>, StoreError> {
        self.rows(sql, values).await?.iter().map(|row| parse_id("the journal", row.get(0))).collect()
    }

    /// Like `run_ids`, but without invalid ids.
    pub(super) async fn known_runs(
        &self,
        sql: &str,
        values: SqlParams<'_>,
    ) -> Result<Vec<RunId>, StoreError> {
        let rows = self.rows(sql, values).await?;
        Ok(rows.iter().filter_map(|row| row.get::<_, String>(0).parse().ok()).collect())
    }
}

/// The limit plus one row, which shows whether there is another page.
pub(super) fn limit_plus_one(page: &PageRequest) -> i64 {
    limit_to_db_integer(page.limit).saturating_add(1)
}

/// A listed table, its key column, and the order of its lists.
#[derive(Clone, Copy)]
pub(super) struct PostgresLedgerTable {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    pub(super) order: &'static str,
}

impl PostgresLedgerTable {
    /// The value of a row that starts with its name and its body.
    pub(super) fn value<T: DeserializeOwned>(&self, row: &Row) -> Result<T, StoreError> {
        decode_body(self.name, row.get(0), row.get(1))
    }
}

pub(super) const RUNS: PostgresLedgerTable =
    PostgresLedgerTable { name: "runs", key: "run_id", order: "DESC" };
pub(super) const TURNS: PostgresLedgerTable =
    PostgresLedgerTable { name: "turns", key: "turn_id", order: "ASC" };
pub(super) const INTERACTIONS: PostgresLedgerTable =
    PostgresLedgerTable { name: "interactions", key: "interaction_id", order: "ASC" };
pub(super) const DELIVERIES: PostgresLedgerTable =
    PostgresLedgerTable { name: "deliveries", key: "delivery_id", order: "ASC" };

fn entry(row: &Row) -> Result<JournalEntry, StoreError> {
    StoredEntry {
        seq: row.get(0),
        run_id: row.get(1),
        revision: row.get(2),
        at: row.get(3),
        id_seed: row.get(4),
        event: row.get(5),
        checksum: row.get(6),
    }
    .check()
}
