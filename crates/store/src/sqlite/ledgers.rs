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
    ClaimHolder, ClaimQueries, CommitReceipt, CursorStore, DamagedRun, DeliveryQueries, EffectQueries,
    InboundQueries, InteractionQueries, Journal, JournalCommit, JournalEntry, JournalSeq, ListPage,
    PageRequest, RunQueries, RunTables, StoreError, StoreFlaw, StoreFuture, StoreMaintenance, TurnQueries,
};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{SqliteStore, backup, guard::FileGuard, inspect, read, writer::SqliteWriteJob};
use crate::record::{TableRows, limit, records};

impl SqliteStore {
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        Box::pin(self.readers.ask(question))
    }
}

impl Journal for SqliteStore {
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        Box::pin(async move {
            let records = records(&commit)?;
            drop(commit);
            self.writer.order(SqliteWriteJob::Commit(records)).await
        })
    }

    fn entries(&self, after: JournalSeq, most: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.ask(move |connection| read::entries(connection, read::place(after), limit(most)))
    }

    fn entries_of(&self, run: RunId, after: JournalSeq, most: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.ask(move |connection| read::entries_of(connection, run, read::place(after), limit(most)))
    }

    fn head(&self) -> StoreFuture<'_, JournalSeq> {
        self.ask(read::head)
    }
}

impl RunQueries for SqliteStore {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>> {
        self.ask(move |connection| read::one(connection, read::RUNS, &id.to_string()))
    }

    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>> {
        self.ask(move |connection| read::runs(connection, status, &page))
    }

    fn due(&self, until: Timestamp, most: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>> {
        self.ask(move |connection| read::due(connection, until, most))
    }

    fn occupying(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>> {
        self.ask(read::occupying)
    }

    fn damaged(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        self.ask(read::damaged)
    }

    fn tally(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        self.ask(read::tally)
    }
}

impl TurnQueries for SqliteStore {
    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>> {
        self.ask(move |connection| read::one(connection, read::TURNS, &id.to_string()))
    }

    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>> {
        self.ask(move |connection| read::of_run::<TurnId, _>(connection, read::TURNS, run, &page))
    }
}

impl InboundQueries for SqliteStore {
    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>> {
        self.ask(move |connection| read::inbound(connection, &key))
    }
}

impl InteractionQueries for SqliteStore {
    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>> {
        self.ask(move |connection| read::one(connection, read::INTERACTIONS, &id.to_string()))
    }

    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.ask(move |connection| {
            read::of_run::<InteractionId, _>(connection, read::INTERACTIONS, run, &page)
        })
    }

    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.ask(move |connection| read::open_interactions::<InteractionId, _>(connection, &page))
    }

    fn count_open(&self) -> StoreFuture<'_, u64> {
        self.ask(read::count_open)
    }
}

impl DeliveryQueries for SqliteStore {
    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        self.ask(move |connection| read::one(connection, read::DELIVERIES, &id.to_string()))
    }

    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>> {
        self.ask(move |connection| read::of_run::<DeliveryId, _>(connection, read::DELIVERIES, run, &page))
    }

    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>> {
        let conversation = conversation_ref.to_owned();
        self.ask(move |connection| read::undelivered_to(connection, &conversation))
    }
}

impl EffectQueries for SqliteStore {
    fn owed(
        &self,
        after: Option<(RunId, EffectNumber)>,
        most: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>> {
        self.ask(move |connection| read::owed(connection, after, most))
    }
}

impl ClaimQueries for SqliteStore {
    fn claimed(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>> {
        let (scope, key) = (scope.to_owned(), key.to_owned());
        self.ask(move |connection| read::claimed(connection, &scope, &key))
    }
}

impl CursorStore for SqliteStore {
    fn cursor(&self, reader: &str) -> StoreFuture<'_, JournalSeq> {
        let reader = reader.to_owned();
        self.ask(move |connection| read::cursor(connection, &reader))
    }

    fn advance(&self, reader: &str, to: JournalSeq) -> StoreFuture<'_, ()> {
        let job = SqliteWriteJob::Advance { reader: reader.to_owned(), to };
        Box::pin(async move { self.writer.order(job).await.map(drop) })
    }
}

impl StoreMaintenance for SqliteStore {
    fn known_runs(&self, after: Option<RunId>, most: usize) -> StoreFuture<'_, Vec<RunId>> {
        self.ask(move |connection| read::known_runs(connection, after, limit(most)))
    }

    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables> {
        self.ask(move |connection| read::tables_of(connection, run))
    }

    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let rows = TableRows::of(run, &tables)?;
            self.writer.order(SqliteWriteJob::Replace(Box::new(rows))).await.map(drop)
        })
    }

    fn inspect(&self) -> StoreFuture<'_, Vec<StoreFlaw>> {
        let path = self.path.clone();
        apart("abide-inspect", move || inspect::inspect(&path))
    }

    fn reindex(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.writer.order(SqliteWriteJob::Reindex).await.map(drop) })
    }

    fn health(&self) -> Result<(), StoreError> {
        self.guard.as_ref().map_or(Ok(()), FileGuard::health)
    }

    fn concern(&self) -> Option<String> {
        let why = self.guard.as_ref().and_then(FileGuard::unwitnessed)?;
        Some(format!("the witness beside {} cannot be written: {why}", self.path.display()))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.writer.order(SqliteWriteJob::Close).await.map(drop) })
    }

    fn backup(&self, to: &Path) -> StoreFuture<'_, ()> {
        let (database, to) = (self.path.clone(), to.to_owned());
        apart("abide-backup", move || backup::copy(&database, &to))
    }
}

/// Runs an operation whose duration depends on the size of the database on a separate thread.
fn apart<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> StoreFuture<'static, T> {
    let (reply, answer) = oneshot::channel();
    let started = thread::Builder::new().name(name.to_owned()).spawn(move || drop(reply.send(work())));
    Box::pin(async move {
        let stopped = |reason: String| StoreError::Unavailable { reason };
        started.map_err(|error| stopped(format!("no thread for {name}: {error}")))?;
        answer.await.unwrap_or_else(|_| Err(stopped(format!("{name} stopped"))))
    })
}
