//! The contract of the store: one append-only journal, and tables derived from it in the same transaction.
//!
//! The journal is authoritative. The tables serve queries and can be rebuilt from the journal at any time. [`Journal`]
//! writes and reads the journal, [`StoreQueries`] reads the tables, [`StoreMaintenance`] serves operators, and [`Store`]
//! is all three. Storage formats are not defined here.

mod commit;
mod error;
mod inspection;
mod page;
mod tables;

pub use commit::{CommitReceipt, JournalCommit, JournalEntry, JournalSeq, RunChange};
pub use error::{StoreError, StoreInputError};
pub use inspection::StoreFlaw;
pub use page::{JournalPage, JournalPageRequest, ListPage, PageRequest};
pub use tables::{JournalMismatch, RunTables};

use std::{collections::BTreeMap, future::Future, path::Path, pin::Pin};

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

/// The pending result of a store call.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The append-only journal. Its global sequence is the order of commits.
pub trait Journal {
    /// Writes all changes atomically. They are durable before the result is returned. Several commits may share one
    /// sync.
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt>;

    /// Entries after a position, in order. Positions remain valid across restarts and rebuilds.
    fn entries(&self, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>>;

    /// Like [`Journal::entries`], for one run.
    fn entries_of(&self, run: RunId, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>>;

    /// Entries after a position, bounded in bytes. Entries beyond the page are not decoded.
    fn journal_page(&self, request: JournalPageRequest) -> StoreFuture<'_, JournalPage>;

    /// The position of the latest entry, 0 for an empty journal.
    fn head(&self) -> StoreFuture<'_, JournalSeq>;
}

/// A run whose row cannot be read, so that it cannot be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRun {
    /// The id in the row, which may be invalid.
    pub run_id: String,
    pub detail: String,
}

/// Queries over the tables. Lists of runs omit rows that cannot be read; [`StoreQueries::damaged_runs`] reports them.
pub trait StoreQueries {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>>;

    /// Runs with this status, or all runs, newest first.
    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>>;

    /// Runs whose deadline is at or before `until`, earliest first.
    fn runs_due(&self, until: Timestamp, limit: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>>;

    /// All runs that hold a slot or wait for one.
    fn slot_occupancies(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>>;

    /// Runs whose row cannot be read and which hold a slot, wait for one, have a pending effect or have a deadline.
    /// Reads all such runs.
    fn damaged_runs(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The number of runs per status, without statuses that have no runs. Does not read any run.
    fn count_by_status(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>>;

    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>>;

    /// A run's turns, oldest first.
    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>>;

    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>>;

    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>>;

    /// A question and its run, in one read.
    fn interaction_with_run(&self, id: InteractionId) -> StoreFuture<'_, Option<(Interaction, Run)>>;

    /// A run's questions, oldest first.
    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>>;

    /// The inbox: all open questions, oldest first.
    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>>;

    /// The number of open questions. Does not read any question.
    fn count_open_interactions(&self) -> StoreFuture<'_, u64>;

    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>>;

    /// A run's deliveries, oldest first.
    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>>;

    /// Runs that have a failed delivery to this conversation which may be retried once.
    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>>;

    /// Pending effects after this one, ordered by run and number. They are stored in the runs only.
    fn pending_effects(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>>;

    /// The run and request that claimed a key. A key can be claimed only once.
    fn claim_holder(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>>;
}

/// The run and request that claimed a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHolder {
    /// The run that the request created or reached.
    pub run_id: RunId,
    /// A digest of the request, to distinguish a repetition from another request with the same key.
    pub fingerprint: String,
}

/// Maintenance operations for operators.
pub trait StoreMaintenance {
    /// Runs that appear in the journal or in any table, after this one, ordered by id.
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<RunId>>;

    /// All rows of a run.
    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables>;

    /// Replaces all rows of a run.
    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()>;

    /// Checks the store as a whole for lost input, a broken checksum chain, rows that are missing in an index, and
    /// wrong derived columns that are not part of a run's tables. Reads everything.
    fn inspect(&self) -> StoreFuture<'_, Vec<StoreFlaw>> {
        Box::pin(async { Ok(vec![]) })
    }

    /// Rebuilds all data that [`StoreFlaw::Derived`] can refer to. No other process may write at the same time.
    fn reindex(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Writes a consistent copy to a new file, concurrently with commits. `Unsupported` for stores on a server.
    fn backup(&self, to: &Path) -> StoreFuture<'_, ()>;

    /// Whether commits are possible, without IO. Returns [`StoreError::FilesGone`] once the files were found deleted or
    /// replaced.
    fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// A problem that the operator should examine, while commits remain possible.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Closes the store, even if other handles to it exist: pending writes are completed and later ones are refused.
    /// The default does nothing, for stores that need no closing.
    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// All contracts of a store together.
pub trait Store: Journal + StoreQueries + StoreMaintenance + Send + Sync {}

impl<S> Store for S where S: Journal + StoreQueries + StoreMaintenance + Send + Sync {}
