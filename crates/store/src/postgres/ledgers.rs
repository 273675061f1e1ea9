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
    ClaimHolder, ClaimQueries, CommitReceipt, CursorStore, DamagedRun, DeliveryQueries, EffectQueries,
    InboundQueries, InteractionQueries, Journal, JournalCommit, JournalEntry, JournalSeq, ListPage,
    PageRequest, RunQueries, RunTables, StoreError, StoreFlaw, StoreFuture, StoreMaintenance, TurnQueries,
};
use tokio_postgres::Row;

use super::{
    PostgresStore, inspect,
    read::{DELIVERIES, ENTRY, INTERACTIONS, RUNS, TURNS, one_more},
    text::{original, plain},
    writer::PostgresWriteJob,
};
use crate::{
    assembly,
    cursor::position,
    record::{BOTH, OCCUPIES, OWES, TALLY, TableRows, id, limit, number, owed_after, records, status},
};

impl Journal for PostgresStore {
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        Box::pin(async move {
            let records = records(&commit)?;
            drop(commit);
            self.writer.order(PostgresWriteJob::Commit(records)).await
        })
    }

    fn entries(&self, after: JournalSeq, most: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        Box::pin(async move {
            let sql = format!("{ENTRY} WHERE seq > $1 ORDER BY seq LIMIT $2");
            self.reader.entries(&sql, &[&number(after.0), &limit(most)]).await
        })
    }

    fn entries_of(&self, run: RunId, after: JournalSeq, most: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        Box::pin(async move {
            let sql = format!("{ENTRY} WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3");
            self.reader.entries(&sql, &[&run.to_string(), &number(after.0), &limit(most)]).await
        })
    }

    fn head(&self) -> StoreFuture<'_, JournalSeq> {
        Box::pin(async move {
            let rows = self.reader.rows("SELECT coalesce(max(seq), 0) FROM journal", &[]).await?;
            Ok(JournalSeq(rows.first().map_or(0, |row| row.get::<_, i64>(0)) as u64))
        })
    }
}

impl RunQueries for PostgresStore {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>> {
        Box::pin(self.reader.one("runs", "run_id", id.to_string()))
    }

    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>> {
        Box::pin(async move {
            let before = position::<RunId>(&page)?.map_or("run_~".to_owned(), |run| run.to_string());
            let (name, more) = (status.map(RunStatus::name), one_more(&page));
            let readable = |row: &Row| Ok(RUNS.value::<Run>(row).ok());
            let found = match &name {
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
            let ListPage { items, next_cursor } = found;
            Ok(ListPage { items: items.into_iter().flatten().collect(), next_cursor })
        })
    }

    fn due(&self, until: Timestamp, most: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>> {
        Box::pin(async move {
            let sql = "SELECT run_id, body FROM runs WHERE deadline_at IS NOT NULL AND deadline_at <= $1
                       ORDER BY deadline_at, run_id LIMIT $2";
            let mut wanted = most;
            loop {
                let found = self.reader.runs(sql, &[&until.0, &limit(wanted)]).await?;
                let read = found.len();
                let runs = found.into_iter().filter_map(|(_, run)| run.ok());
                let mut due: Vec<_> = runs.filter_map(|run| Some((run.run_id, run.deadline()?))).collect();
                // Unreadable rows are skipped, so that they do not hide later rows.
                if due.len() >= most || read < wanted {
                    due.truncate(most);
                    return Ok(due);
                }
                wanted = wanted.saturating_mul(2);
            }
        })
    }

    fn occupying(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>> {
        Box::pin(async move {
            let sql = "SELECT run_id, body FROM runs WHERE astir IN ($1, $2) ORDER BY run_id";
            let found = self.reader.runs(sql, &[&OCCUPIES, &BOTH]).await?;
            let runs = found.into_iter().filter_map(|(_, run)| run.ok());
            Ok(runs.map(|run| (run.run_id, run.occupancy())).collect())
        })
    }

    fn damaged(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        Box::pin(async move {
            let sql = "SELECT run_id, body FROM runs WHERE astir IS NOT NULL OR deadline_at IS NOT NULL
                       ORDER BY run_id";
            let found = self.reader.runs(sql, &[]).await?;
            let damaged = found
                .into_iter()
                .filter_map(|(run_id, run)| Some(DamagedRun { run_id, what: run.err()?.to_string() }));
            Ok(damaged.collect())
        })
    }

    fn tally(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        Box::pin(async move {
            let rows = self.reader.rows(TALLY, &[]).await?;
            rows.iter().map(|row| Ok((status(row.get(0))?, row.get::<_, i64>(1) as u64))).collect()
        })
    }
}

impl TurnQueries for PostgresStore {
    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>> {
        Box::pin(self.reader.one("turns", "turn_id", id.to_string()))
    }

    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>> {
        Box::pin(async move { self.reader.of_run::<TurnId, _>(TURNS, run, &page).await })
    }
}

impl InboundQueries for PostgresStore {
    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>> {
        Box::pin(async move {
            let sql = "SELECT message_id, body FROM inbound WHERE channel = $1 AND message_id = $2";
            let (channel, message) = (plain(&key.channel), plain(&key.message_id));
            let found = self.reader.bodies("inbound", sql, &[&channel, &message]).await?.pop();
            Ok(found.map(|(_, inbound)| inbound))
        })
    }
}

impl InteractionQueries for PostgresStore {
    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>> {
        Box::pin(self.reader.one("interactions", "interaction_id", id.to_string()))
    }

    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        Box::pin(async move { self.reader.of_run::<InteractionId, _>(INTERACTIONS, run, &page).await })
    }

    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        Box::pin(async move {
            let after = position::<InteractionId>(&page)?.map_or(String::new(), |id| id.to_string());
            let sql = "SELECT interaction_id, body FROM interactions WHERE open AND interaction_id > $1
                       ORDER BY interaction_id LIMIT $2";
            let more = one_more(&page);
            let read = |row: &Row| INTERACTIONS.value(row);
            self.reader.page(INTERACTIONS, sql, vec![&after, &more], &page, read).await
        })
    }

    fn count_open(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let rows = self.reader.rows("SELECT COUNT(*) FROM interactions WHERE open", &[]).await?;
            Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0) as u64))
        })
    }
}

impl DeliveryQueries for PostgresStore {
    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        Box::pin(self.reader.one("deliveries", "delivery_id", id.to_string()))
    }

    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>> {
        Box::pin(async move { self.reader.of_run::<DeliveryId, _>(DELIVERIES, run, &page).await })
    }

    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>> {
        let conversation = plain(conversation_ref).into_owned();
        Box::pin(async move {
            let sql = "SELECT DISTINCT run_id FROM deliveries WHERE waiting AND conversation_ref = $1
                       ORDER BY run_id";
            self.reader.run_ids(sql, &[&conversation]).await
        })
    }
}

impl EffectQueries for PostgresStore {
    fn owed(
        &self,
        after: Option<(RunId, EffectNumber)>,
        most: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>> {
        Box::pin(async move {
            // Each of these runs has at least one pending effect, so the limit of effects is also sufficient for runs.
            let sql = "SELECT run_id, body FROM runs WHERE astir IN ($1, $2) AND run_id >= $3
                       ORDER BY run_id LIMIT $4";
            let first = after.map_or(String::new(), |(run, _)| run.to_string());
            let mut wanted = most.saturating_add(1);
            loop {
                let found = self.reader.runs(sql, &[&OWES, &BOTH, &first, &limit(wanted)]).await?;
                let read = found.len();
                let runs: Vec<Run> = found.into_iter().filter_map(|(_, run)| run.ok()).collect();
                // Unreadable rows are skipped, so that they do not hide later rows.
                if runs.len() > most || read < wanted {
                    return Ok(owed_after(runs, after, most));
                }
                wanted = wanted.saturating_mul(2);
            }
        })
    }
}

impl ClaimQueries for PostgresStore {
    fn claimed(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>> {
        let (scope, key) = (plain(scope).into_owned(), plain(key).into_owned());
        Box::pin(async move {
            let sql = "SELECT run_id, fingerprint FROM claims WHERE scope = $1 AND key = $2";
            let rows = self.reader.rows(sql, &[&scope, &key]).await?;
            let holder = rows.first().map(|row| {
                Ok(ClaimHolder { run_id: id("claims", row.get(0))?, fingerprint: original(row.get(1)) })
            });
            holder.transpose()
        })
    }
}

impl CursorStore for PostgresStore {
    fn cursor(&self, reader: &str) -> StoreFuture<'_, JournalSeq> {
        let reader = plain(reader).into_owned();
        Box::pin(async move {
            let rows = self.reader.rows("SELECT seq FROM cursors WHERE reader = $1", &[&reader]).await?;
            Ok(JournalSeq(rows.first().map_or(0, |row| row.get::<_, i64>(0)) as u64))
        })
    }

    fn advance(&self, reader: &str, to: JournalSeq) -> StoreFuture<'_, ()> {
        let job = PostgresWriteJob::Advance { reader: reader.to_owned(), to };
        Box::pin(async move { self.writer.order(job).await.map(drop) })
    }
}

impl StoreMaintenance for PostgresStore {
    fn known_runs(&self, after: Option<RunId>, most: usize) -> StoreFuture<'_, Vec<RunId>> {
        Box::pin(async move {
            let after = after.map_or(String::new(), |run| run.to_string());
            self.reader.known_runs(&assembly::known_runs(), &[&after, &limit(most)]).await
        })
    }

    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables> {
        Box::pin(async move {
            let rows = self.reader.rows(assembly::ROWS_OF_RUN, &[&run.to_string()]).await?;
            assembly::tables(rows.iter().map(|row| {
                let (table, body): (String, String) = (row.get(0), row.get(6));
                let body = if table == "claims" { original(body) } else { body };
                assembly::TableRow {
                    table,
                    name: original(row.get(1)),
                    other: original(row.get(2)),
                    number: row.get(3),
                    time: row.get(4),
                    mark: row.get(5),
                    body,
                }
            }))
        })
    }

    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let rows = TableRows::of(run, &tables)?;
            self.writer.order(PostgresWriteJob::Replace(Box::new(rows))).await.map(drop)
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
