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
    ClaimHolder, CommitReceipt, DamagedRun, Journal, JournalCommit, JournalEntry, JournalPage,
    JournalPageRequest, JournalSeq, ListPage, PageRequest, RunTables, Store, StoreError, StoreFlaw,
    StoreFuture, StoreMaintenance, StoreQueries,
};

/// Intercepts calls to a store.
pub trait StoreInterceptor: Send + Sync {
    fn store(&self) -> &dyn Store;

    /// Called before every call except [`StoreInterceptor::commit`].
    fn on_read(&self) {}

    /// Performs a commit. The default passes it on.
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        self.store().commit(commit)
    }

    /// Counts the runs per status. The default passes the call on.
    fn count_by_status(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        self.store().count_by_status()
    }
}

/// A store whose calls an interceptor handles.
pub struct ObservedStore<W>(pub W);

impl<W: StoreInterceptor> ObservedStore<W> {
    fn observe_read(&self) -> &dyn Store {
        self.0.on_read();
        self.0.store()
    }
}

impl<W: StoreInterceptor> Journal for ObservedStore<W> {
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        self.0.commit(commit)
    }

    fn entries(&self, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.observe_read().entries(after, limit)
    }

    fn entries_of(&self, run: RunId, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.observe_read().entries_of(run, after, limit)
    }

    fn journal_page(&self, request: JournalPageRequest) -> StoreFuture<'_, JournalPage> {
        self.observe_read().journal_page(request)
    }

    fn head(&self) -> StoreFuture<'_, JournalSeq> {
        self.observe_read().head()
    }
}

impl<W: StoreInterceptor> StoreQueries for ObservedStore<W> {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>> {
        self.observe_read().run(id)
    }

    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>> {
        self.observe_read().runs(status, page)
    }

    fn runs_due(&self, until: Timestamp, limit: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>> {
        self.observe_read().runs_due(until, limit)
    }

    fn slot_occupancies(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>> {
        self.observe_read().slot_occupancies()
    }

    fn damaged_runs(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        self.observe_read().damaged_runs()
    }

    fn count_by_status(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        self.0.on_read();
        self.0.count_by_status()
    }

    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>> {
        self.observe_read().turn(id)
    }

    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>> {
        self.observe_read().turns_of(run, page)
    }

    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>> {
        self.observe_read().inbound(key)
    }

    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>> {
        self.observe_read().interaction(id)
    }

    fn interaction_with_run(&self, id: InteractionId) -> StoreFuture<'_, Option<(Interaction, Run)>> {
        self.observe_read().interaction_with_run(id)
    }

    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.observe_read().interactions_of(run, page)
    }

    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.observe_read().open_interactions(page)
    }

    fn count_open_interactions(&self) -> StoreFuture<'_, u64> {
        self.observe_read().count_open_interactions()
    }

    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        self.observe_read().delivery(id)
    }

    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>> {
        self.observe_read().deliveries_of(run, page)
    }

    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>> {
        self.observe_read().undelivered_to(conversation_ref)
    }

    fn pending_effects(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>> {
        self.observe_read().pending_effects(after, limit)
    }

    fn claim_holder(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>> {
        self.observe_read().claim_holder(scope, key)
    }
}

impl<W: StoreInterceptor> StoreMaintenance for ObservedStore<W> {
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<RunId>> {
        self.observe_read().known_runs(after, limit)
    }

    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables> {
        self.observe_read().tables_of(run)
    }

    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()> {
        self.observe_read().replace_tables(run, tables)
    }

    fn backup(&self, to: &Path) -> StoreFuture<'_, ()> {
        self.observe_read().backup(to)
    }

    fn inspect(&self) -> StoreFuture<'_, Vec<StoreFlaw>> {
        self.observe_read().inspect()
    }

    fn reindex(&self) -> StoreFuture<'_, ()> {
        self.observe_read().reindex()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.0.store().health()
    }

    fn warning(&self) -> Option<String> {
        self.0.store().warning()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.observe_read().close()
    }
}

impl<W> fmt::Debug for ObservedStore<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedStore").finish_non_exhaustive()
    }
}
