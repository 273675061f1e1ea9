//! Implements the store's traits: queries go to the reader, changes to the writer.

use std::{collections::BTreeMap, path::Path};

use abide_domain::{
    deadline::Deadline,
    delivery::Delivery,
    effect::{EffectNumber, PendingEffect},
    id::{DeliveryId, InteractionId, RunId, TurnId},
    inbound::{Inbound, MessageKey},
    interaction::Interaction,
    run::{Run, RunStatus},
    slots::SlotOccupancy,
    time::Timestamp,
    turn::Turn,
};
use abide_ports::store::{
    ClaimHolder, CommitReceipt, DamagedRun, Journal, JournalCommit, JournalEntry, JournalPage,
    JournalPageRequest, JournalSeq, ListPage, PageRequest, RunTables, StoreError, StoreFlaw, StoreFuture,
    StoreMaintenance, StoreQueries,
};
use tokio_postgres::Row;

use super::{
    PostgresStore, inspect,
    read::{DELIVERIES, INTERACTIONS, RUNS, SELECT_ENTRY, TURNS, limit_plus_one},
    text::{escape_nul, unescape_nul},
    writer::PostgresWriteJob,
};
use crate::{
    cursor::position,
    record::{
        ACTIVITY_EFFECTS, ACTIVITY_SLOT, ACTIVITY_SLOT_AND_EFFECTS, COUNT_BY_STATUS_SQL, TableRows,
        commit_rows, decode_body, limit_to_db_integer, parse_id, parse_status, pending_effects_after,
        to_db_integer,
    },
    run_rows,
};

impl Journal for PostgresStore {
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        Box::pin(async move {
            let records = commit_rows(&commit)?;
            drop(commit);
            self.writer.submit(PostgresWriteJob::Commit(records)).await
        })
    }

    fn entries(&self, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        Box::pin(async move {
            let sql = format!("{SELECT_ENTRY} WHERE seq > $1 ORDER BY seq LIMIT $2");
            self.reader.entries(&sql, &[&to_db_integer(after.0), &limit_to_db_integer(limit)]).await
        })
    }

    fn entries_of(&self, run: RunId, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        Box::pin(async move {
            let sql = format!("{SELECT_ENTRY} WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3");
            self.reader
                .entries(&sql, &[&run.to_string(), &to_db_integer(after.0), &limit_to_db_integer(limit)])
                .await
        })
    }

    fn journal_page(&self, request: JournalPageRequest) -> StoreFuture<'_, JournalPage> {
        Box::pin(async move { self.reader.journal_page(&request).await })
    }

    fn head(&self) -> StoreFuture<'_, JournalSeq> {
        Box::pin(async move {
            let rows = self.reader.rows("SELECT coalesce(max(seq), 0) FROM journal", &[]).await?;
            Ok(JournalSeq(rows.first().map_or(0, |row| row.get::<_, i64>(0)) as u64))
        })
    }
}

impl StoreQueries for PostgresStore {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>> {
        Box::pin(self.reader.row_by_key("runs", "run_id", id.to_string()))
    }

    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>> {
        Box::pin(async move {
            let before = position::<RunId>(&page)?.map_or("run_~".to_owned(), |run| run.to_string());
            let (name, more) = (status.map(RunStatus::name), limit_plus_one(&page));
            let readable = |row: &Row| Ok(RUNS.value::<Run>(row).ok());
            let page = match &name {
                Some(name) => {
                    let sql = "SELECT run_id, body FROM runs WHERE status = $1 AND run_id < $2
                               ORDER BY run_id DESC LIMIT $3";
                    self.reader.page(RUNS, sql, vec![name, &before, &more], &page, readable).await?
                }
                None => {
                    let sql = "SELECT run_id, body FROM runs WHERE run_id < $1 ORDER BY run_id DESC LIMIT $2";
                    self.reader.page(RUNS, sql, vec![&before, &more], &page, readable).await?
                }
            };
            let ListPage { items, next_cursor } = page;
            Ok(ListPage { items: items.into_iter().flatten().collect(), next_cursor })
        })
    }

    fn runs_due(&self, until: Timestamp, limit: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>> {
        Box::pin(async move {
            let sql = "SELECT run_id, body FROM runs WHERE deadline_at IS NOT NULL AND deadline_at <= $1
                       ORDER BY deadline_at, run_id LIMIT $2";
            let mut row_limit = limit;
            loop {
                let rows = self.reader.runs(sql, &[&until.0, &limit_to_db_integer(row_limit)]).await?;
                let read = rows.len();
                let runs = rows.into_iter().filter_map(|(_, run)| run.ok());
                let mut due: Vec<_> = runs.filter_map(|run| Some((run.run_id, run.deadline()?))).collect();
                // Unreadable rows are skipped, so that they do not hide later rows.
                if due.len() >= limit || read < row_limit {
                    due.truncate(limit);
                    return Ok(due);
                }
                row_limit = row_limit.saturating_mul(2);
            }
        })
    }

    fn slot_occupancies(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>> {
        Box::pin(async move {
            let sql = "SELECT run_id, body FROM runs WHERE activity IN ($1, $2) ORDER BY run_id";
            let rows = self.reader.runs(sql, &[&ACTIVITY_SLOT, &ACTIVITY_SLOT_AND_EFFECTS]).await?;
            let runs = rows.into_iter().filter_map(|(_, run)| run.ok());
            Ok(runs.map(|run| (run.run_id, run.occupancy())).collect())
        })
    }

    fn damaged_runs(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        Box::pin(async move {
            let sql = "SELECT run_id, body FROM runs WHERE activity IS NOT NULL OR deadline_at IS NOT NULL
                       ORDER BY run_id";
            let rows = self.reader.runs(sql, &[]).await?;
            let damaged = rows
                .into_iter()
                .filter_map(|(run_id, run)| Some(DamagedRun { run_id, detail: run.err()?.to_string() }));
            Ok(damaged.collect())
        })
    }

    fn count_by_status(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        Box::pin(async move {
            let rows = self.reader.rows(COUNT_BY_STATUS_SQL, &[]).await?;
            rows.iter().map(|row| Ok((parse_status(row.get(0))?, row.get::<_, i64>(1) as u64))).collect()
        })
    }

    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>> {
        Box::pin(self.reader.row_by_key("turns", "turn_id", id.to_string()))
    }

    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>> {
        Box::pin(async move { self.reader.rows_of_run::<TurnId, _>(TURNS, run, &page).await })
    }

    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>> {
        Box::pin(async move {
            let sql = "SELECT message_id, body FROM inbound WHERE channel = $1 AND message_id = $2";
            let (channel, message) = (escape_nul(&key.channel), escape_nul(&key.message_id));
            let rows = self.reader.bodies("inbound", sql, &[&channel, &message]).await?.pop();
            Ok(rows.map(|(_, inbound)| inbound))
        })
    }

    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>> {
        Box::pin(self.reader.row_by_key("interactions", "interaction_id", id.to_string()))
    }

    fn interaction_with_run(&self, id: InteractionId) -> StoreFuture<'_, Option<(Interaction, Run)>> {
        Box::pin(async move {
            let sql = "SELECT interaction_id, interactions.body, run_id, runs.body
                       FROM interactions JOIN runs USING (run_id) WHERE interaction_id = $1";
            let rows = self.reader.rows(sql, &[&id.to_string()]).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let interaction = decode_body(INTERACTIONS.name, row.get(0), row.get(1))?;
            Ok(Some((interaction, decode_body(RUNS.name, row.get(2), row.get(3))?)))
        })
    }

    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        Box::pin(async move { self.reader.rows_of_run::<InteractionId, _>(INTERACTIONS, run, &page).await })
    }

    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        Box::pin(async move {
            let after = position::<InteractionId>(&page)?.map_or(String::new(), |id| id.to_string());
            let sql = "SELECT interaction_id, body FROM interactions WHERE open AND interaction_id > $1
                       ORDER BY interaction_id LIMIT $2";
            let more = limit_plus_one(&page);
            let read = |row: &Row| INTERACTIONS.value(row);
            self.reader.page(INTERACTIONS, sql, vec![&after, &more], &page, read).await
        })
    }

    fn count_open_interactions(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let rows = self.reader.rows("SELECT COUNT(*) FROM interactions WHERE open", &[]).await?;
            Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0) as u64))
        })
    }

    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        Box::pin(self.reader.row_by_key("deliveries", "delivery_id", id.to_string()))
    }

    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>> {
        Box::pin(async move { self.reader.rows_of_run::<DeliveryId, _>(DELIVERIES, run, &page).await })
    }

    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>> {
        let conversation = escape_nul(conversation_ref).into_owned();
        Box::pin(async move {
            let sql = "SELECT DISTINCT run_id FROM deliveries WHERE retry_pending AND conversation_ref = $1
                       ORDER BY run_id";
            self.reader.run_ids(sql, &[&conversation]).await
        })
    }

    fn pending_effects(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>> {
        Box::pin(async move {
            // Each of these runs has at least one pending effect, so the limit of effects is also sufficient for runs.
            let sql = "SELECT run_id, body FROM runs WHERE activity IN ($1, $2) AND run_id >= $3
                       ORDER BY run_id LIMIT $4";
            let first = after.map_or(String::new(), |(run, _)| run.to_string());
            let mut row_limit = limit.saturating_add(1);
            loop {
                let rows = self
                    .reader
                    .runs(
                        sql,
                        &[
                            &ACTIVITY_EFFECTS,
                            &ACTIVITY_SLOT_AND_EFFECTS,
                            &first,
                            &limit_to_db_integer(row_limit),
                        ],
                    )
                    .await?;
                let read = rows.len();
                let runs: Vec<Run> = rows.into_iter().filter_map(|(_, run)| run.ok()).collect();
                // Unreadable rows are skipped, so that they do not hide later rows.
                if runs.len() > limit || read < row_limit {
                    return Ok(pending_effects_after(runs, after, limit));
                }
                row_limit = row_limit.saturating_mul(2);
            }
        })
    }

    fn claim_holder(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>> {
        let (scope, key) = (escape_nul(scope).into_owned(), escape_nul(key).into_owned());
        Box::pin(async move {
            let sql = "SELECT run_id, fingerprint FROM claims WHERE scope = $1 AND key = $2";
            let rows = self.reader.rows(sql, &[&scope, &key]).await?;
            let holder = rows.first().map(|row| {
                Ok(ClaimHolder {
                    run_id: parse_id("claims", row.get(0))?,
                    fingerprint: unescape_nul(row.get(1)),
                })
            });
            holder.transpose()
        })
    }
}

impl StoreMaintenance for PostgresStore {
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<RunId>> {
        Box::pin(async move {
            let after = after.map_or(String::new(), |run| run.to_string());
            self.reader.known_runs(&run_rows::known_runs_sql(), &[&after, &limit_to_db_integer(limit)]).await
        })
    }

    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables> {
        Box::pin(async move {
            let rows = self.reader.rows(run_rows::ROWS_OF_RUN, &[&run.to_string()]).await?;
            run_rows::assemble_tables(rows.iter().map(|row| {
                let (table, body): (String, String) = (row.get(0), row.get(6));
                let body = if table == "claims" { unescape_nul(body) } else { body };
                run_rows::TableRow {
                    table,
                    name: unescape_nul(row.get(1)),
                    text_key: unescape_nul(row.get(2)),
                    number: row.get(3),
                    time: row.get(4),
                    flag: row.get(5),
                    body,
                }
            }))
        })
    }

    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let rows = TableRows::of(run, &tables)?;
            self.writer.submit(PostgresWriteJob::Replace(Box::new(rows))).await.map(drop)
        })
    }

    fn inspect(&self) -> StoreFuture<'_, Vec<StoreFlaw>> {
        Box::pin(inspect::inspect(self))
    }

    fn reindex(&self) -> StoreFuture<'_, ()> {
        Box::pin(inspect::reindex(self))
    }

    fn health(&self) -> Result<(), StoreError> {
        self.state.health()
    }

    fn backup(&self, _to: &Path) -> StoreFuture<'_, ()> {
        let hint = format!("use `pg_dump --schema={}` on the server's database", self.reader.schema());
        Box::pin(async { Err(StoreError::Unsupported { hint }) })
    }
}
