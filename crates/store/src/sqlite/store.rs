//! Implements the store's traits: queries go to the readers, changes to the writer.

use std::{collections::BTreeMap, path::Path, thread};

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
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{SqliteStore, backup, guard::FileGuard, inspect, read, writer::SqliteWriteJob};
use crate::record::{TableRows, commit_rows, limit_to_db_integer};

impl SqliteStore {
    fn query<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        Box::pin(self.readers.run(job))
    }
}

impl Journal for SqliteStore {
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        Box::pin(async move {
            let records = commit_rows(&commit)?;
            drop(commit);
            self.writer.submit(SqliteWriteJob::Commit(records)).await
        })
    }

    fn entries(&self, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.query(move |connection| {
            read::entries(connection, read::seq_to_db_integer(after), limit_to_db_integer(limit))
        })
    }

    fn entries_of(&self, run: RunId, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.query(move |connection| {
            read::entries_of(connection, run, read::seq_to_db_integer(after), limit_to_db_integer(limit))
        })
    }

    fn journal_page(&self, request: JournalPageRequest) -> StoreFuture<'_, JournalPage> {
        self.query(move |connection| read::journal_page(connection, &request))
    }

    fn head(&self) -> StoreFuture<'_, JournalSeq> {
        self.query(read::head)
    }
}

impl StoreQueries for SqliteStore {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>> {
        self.query(move |connection| read::row_by_key(connection, read::RUNS, &id.to_string()))
    }

    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>> {
        self.query(move |connection| read::runs(connection, status, &page))
    }

    fn runs_due(&self, until: Timestamp, limit: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>> {
        self.query(move |connection| read::runs_due(connection, until, limit))
    }

    fn slot_occupancies(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>> {
        self.query(read::slot_occupancies)
    }

    fn damaged_runs(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        self.query(read::damaged_runs)
    }

    fn count_by_status(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        self.query(read::count_by_status)
    }

    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>> {
        self.query(move |connection| read::row_by_key(connection, read::TURNS, &id.to_string()))
    }

    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>> {
        self.query(move |connection| read::rows_of_run::<TurnId, _>(connection, read::TURNS, run, &page))
    }

    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>> {
        self.query(move |connection| read::inbound(connection, &key))
    }

    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>> {
        self.query(move |connection| read::row_by_key(connection, read::INTERACTIONS, &id.to_string()))
    }

    fn interaction_with_run(&self, id: InteractionId) -> StoreFuture<'_, Option<(Interaction, Run)>> {
        self.query(move |connection| read::interaction_with_run(connection, &id.to_string()))
    }

    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.query(move |connection| {
            read::rows_of_run::<InteractionId, _>(connection, read::INTERACTIONS, run, &page)
        })
    }

    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.query(move |connection| read::open_interactions::<InteractionId, _>(connection, &page))
    }

    fn count_open_interactions(&self) -> StoreFuture<'_, u64> {
        self.query(read::count_open_interactions)
    }

    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        self.query(move |connection| read::row_by_key(connection, read::DELIVERIES, &id.to_string()))
    }

    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>> {
        self.query(move |connection| {
            read::rows_of_run::<DeliveryId, _>(connection, read::DELIVERIES, run, &page)
        })
    }

    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>> {
        let conversation = conversation_ref.to_owned();
        self.query(move |connection| read::undelivered_to(connection, &conversation))
    }

    fn pending_effects(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>> {
        self.query(move |connection| read::pending_effects(connection, after, limit))
    }

    fn claim_holder(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>> {
        let (scope, key) = (scope.to_owned(), key.to_owned());
        self.query(move |connection| read::claim_holder(connection, &scope, &key))
    }
}

impl StoreMaintenance for SqliteStore {
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<RunId>> {
        self.query(move |connection| read::known_runs(connection, after, limit_to_db_integer(limit)))
    }

    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables> {
        self.query(move |connection| read::tables_of(connection, run))
    }

    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let rows = TableRows::of(run, &tables)?;
            self.writer.submit(SqliteWriteJob::Replace(Box::new(rows))).await.map(drop)
        })
    }

    fn inspect(&self) -> StoreFuture<'_, Vec<StoreFlaw>> {
        let path = self.path.clone();
        run_on_thread("abide-inspect", move || inspect::inspect(&path))
    }

    fn reindex(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.writer.submit(SqliteWriteJob::Reindex).await.map(drop) })
    }

    fn health(&self) -> Result<(), StoreError> {
        self.guard.as_ref().map_or(Ok(()), FileGuard::health)
    }

    fn warning(&self) -> Option<String> {
        let reason = self.guard.as_ref().and_then(FileGuard::witness_error)?;
        Some(format!("the witness beside {} cannot be written: {reason}", self.path.display()))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.writer.submit(SqliteWriteJob::Close).await.map(drop) })
    }

    fn backup(&self, to: &Path) -> StoreFuture<'_, ()> {
        let (database, to) = (self.path.clone(), to.to_owned());
        run_on_thread("abide-backup", move || backup::copy(&database, &to))
    }
}

/// Runs an operation whose duration depends on the size of the database on a separate thread.
fn run_on_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> StoreFuture<'static, T> {
    let (reply, answer) = oneshot::channel();
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || drop(reply.send(work())));
    Box::pin(async move {
        let stopped = |reason: String| StoreError::Unavailable { reason };
        started.map_err(|error| stopped(format!("cannot start the thread {name}: {error}")))?;
        answer.await.unwrap_or_else(|_| Err(stopped(format!("{name} stopped"))))
    })
}
