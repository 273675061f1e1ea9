//! A store that wraps another one and passes all calls on, except those that the wrapper intercepts.
//!
//! The wrappers themselves are defined elsewhere.

use std::{collections::BTreeMap, fmt, path::Path};

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
    PageRequest, RunQueries, RunTables, Store, StoreError, StoreFlaw, StoreFuture, StoreMaintenance,
    TurnQueries,
};

/// Intercepts calls to a store.
pub trait StoreObserver: Send + Sync {
    /// The wrapped store.
    fn store(&self) -> &dyn Store;

    /// Called before every call except [`StoreObserver::commit`].
    fn asked(&self) {}

    /// Performs a commit. The default passes it on.
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        self.store().commit(commit)
    }

    /// Counts the runs per status. The default passes the call on.
    fn tally(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        self.store().tally()
    }
}

/// A store with an observer.
pub struct ObservedStore<W>(pub W);

impl<W: StoreObserver> ObservedStore<W> {
    fn ask(&self) -> &dyn Store {
        self.0.asked();
        self.0.store()
    }
}

impl<W: StoreObserver> Journal for ObservedStore<W> {
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        self.0.commit(commit)
    }

    fn entries(&self, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.ask().entries(after, limit)
    }

    fn entries_of(&self, run: RunId, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.ask().entries_of(run, after, limit)
    }

    fn head(&self) -> StoreFuture<'_, JournalSeq> {
        self.ask().head()
    }
}

impl<W: StoreObserver> RunQueries for ObservedStore<W> {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>> {
        self.ask().run(id)
    }

    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>> {
        self.ask().runs(status, page)
    }

    fn due(&self, until: Timestamp, limit: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>> {
        self.ask().due(until, limit)
    }

    fn occupying(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>> {
        self.ask().occupying()
    }

    fn damaged(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        self.ask().damaged()
    }

    fn tally(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        self.0.asked();
        self.0.tally()
    }
}

impl<W: StoreObserver> TurnQueries for ObservedStore<W> {
    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>> {
        self.ask().turn(id)
    }

    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>> {
        self.ask().turns_of(run, page)
    }
}

impl<W: StoreObserver> InboundQueries for ObservedStore<W> {
    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>> {
        self.ask().inbound(key)
    }
}

impl<W: StoreObserver> InteractionQueries for ObservedStore<W> {
    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>> {
        self.ask().interaction(id)
    }

    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.ask().interactions_of(run, page)
    }

    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.ask().open_interactions(page)
    }

    fn count_open(&self) -> StoreFuture<'_, u64> {
        self.ask().count_open()
    }
}

impl<W: StoreObserver> DeliveryQueries for ObservedStore<W> {
    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        self.ask().delivery(id)
    }

    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>> {
        self.ask().deliveries_of(run, page)
    }

    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>> {
        self.ask().undelivered_to(conversation_ref)
    }
}

impl<W: StoreObserver> EffectQueries for ObservedStore<W> {
    fn owed(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>> {
        self.ask().owed(after, limit)
    }
}

impl<W: StoreObserver> ClaimQueries for ObservedStore<W> {
    fn claimed(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>> {
        self.ask().claimed(scope, key)
    }
}

impl<W: StoreObserver> CursorStore for ObservedStore<W> {
    fn cursor(&self, reader: &str) -> StoreFuture<'_, JournalSeq> {
        self.ask().cursor(reader)
    }

    fn advance(&self, reader: &str, to: JournalSeq) -> StoreFuture<'_, ()> {
        self.ask().advance(reader, to)
    }
}

impl<W: StoreObserver> StoreMaintenance for ObservedStore<W> {
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<RunId>> {
        self.ask().known_runs(after, limit)
    }

    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables> {
        self.ask().tables_of(run)
    }

    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()> {
        self.ask().replace_tables(run, tables)
    }

    fn backup(&self, to: &Path) -> StoreFuture<'_, ()> {
        self.ask().backup(to)
    }

    fn inspect(&self) -> StoreFuture<'_, Vec<StoreFlaw>> {
        self.ask().inspect()
    }

    fn reindex(&self) -> StoreFuture<'_, ()> {
        self.ask().reindex()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.0.store().health()
    }

    fn concern(&self) -> Option<String> {
        self.0.store().concern()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.ask().close()
    }
}

impl<W> fmt::Debug for ObservedStore<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedStore").finish_non_exhaustive()
    }
}
