//! Where everything is kept: one append-only journal, and tables derived from it in the same transaction.
//!
//! The journal is the truth. The tables are there to be asked quickly, and can be rebuilt from it at any time.
//! One small trait for each ledger; [`Store`] is all of them together. How they are kept is not here.

mod commit;
mod error;
mod flaw;
mod page;
mod tables;

pub use commit::{CommitReceipt, JournalCommit, JournalEntry, JournalSeq, RunChange};
pub use error::{StoreError, StoreErrorKind};
pub use flaw::StoreFlaw;
pub use page::{ListPage, PageRequest};
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

/// An answer that is on its way.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The append-only record, with one global sequence whose order is the order of commits.
pub trait Journal {
    /// Writes all changes or none, durably, before it answers. Many commits may share one sync.
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt>;

    /// Entries after a position, in order. A position stays valid for ever, across restarts and rebuilds.
    fn entries(&self, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>>;

    /// The same for one run.
    fn entries_of(&self, run: RunId, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>>;

    /// The position of the latest entry, 0 before the first.
    fn head(&self) -> StoreFuture<'_, JournalSeq>;
}

/// A run whose row cannot be read, so that nothing can be done for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRun {
    /// Its id, as the row has it.
    pub run_id: String,
    /// What is wrong.
    pub what: String,
}

/// Runs as they stand. A row that cannot be read hides no other: lists leave it out, and [`RunQueries::damaged`] names it.
pub trait RunQueries {
    /// One run.
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>>;

    /// Runs, the newest first, of one status or of all.
    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>>;

    /// Runs whose deadline is at or before `until`, the earliest first.
    fn due(&self, until: Timestamp, limit: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>>;

    /// Every run that holds a slot or waits for one.
    fn occupying(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>>;

    /// Runs that hold a slot, wait for one, owe an order or wait for a deadline, and whose row cannot be read. Reads every
    /// such run.
    fn damaged(&self) -> StoreFuture<'_, Vec<DamagedRun>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// How many runs there are of each status; a status that no run has is left out. No run is read for that.
    fn tally(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>>;
}

/// The ledger of turns.
pub trait TurnQueries {
    /// One turn.
    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>>;

    /// A run's turns, the first first.
    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>>;
}

/// The ledger of messages that reached us.
pub trait InboundQueries {
    /// One message.
    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>>;
}

/// The ledger of questions.
pub trait InteractionQueries {
    /// One question.
    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>>;

    /// A run's questions, the first first.
    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>>;

    /// The inbox: every question that can be answered, the oldest first.
    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>>;

    /// How many those are. No question is read for that.
    fn count_open(&self) -> StoreFuture<'_, u64>;
}

/// The ledger of deliveries.
pub trait DeliveryQueries {
    /// One delivery.
    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>>;

    /// A run's deliveries, the first first.
    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>>;

    /// Runs that have something for this conversation which could not be brought and may be tried once more.
    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>>;
}

/// What is owed to the world. It stands in the runs and nowhere else.
pub trait EffectQueries {
    /// Orders after this one, by run and number.
    fn owed(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>>;
}

/// Keys that can be used once, for ever.
pub trait ClaimQueries {
    /// Who used a key, and for what.
    fn claimed(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>>;
}

/// A key in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHolder {
    /// The run that it led to.
    pub run_id: RunId,
    /// What it was used for.
    pub fingerprint: String,
}

/// How far each reader of the journal has got.
pub trait CursorStore {
    /// A reader's position, 0 for one that has never been heard of.
    fn cursor(&self, reader: &str) -> StoreFuture<'_, JournalSeq>;

    /// Moves a reader on. It never moves back.
    fn advance(&self, reader: &str, to: JournalSeq) -> StoreFuture<'_, ()>;
}

/// What an operator needs.
pub trait StoreMaintenance {
    /// Runs that the journal or any table knows, after this one, by id.
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<RunId>>;

    /// Everything that the tables hold of a run.
    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables>;

    /// Puts these in the place of what the tables hold of a run.
    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()>;

    /// What is wrong with the store as a whole: lost input, a broken chain, rows that an index does not find, and every
    /// derived column that is not part of a run's tables. Reads everything.
    fn inspect(&self) -> StoreFuture<'_, Vec<StoreFlaw>> {
        Box::pin(async { Ok(vec![]) })
    }

    /// Makes everything anew that [`StoreFlaw::Derived`] can be about. Nobody else may write meanwhile.
    fn reindex(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Writes a consistent copy to a new file while work goes on. `Unsupported` where a server does that.
    fn backup(&self, to: &Path) -> StoreFuture<'_, ()>;

    /// Whether the store can still be written to, without asking it: [`StoreError::Gone`] once its files were found
    /// deleted or replaced.
    fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Something that an operator should look at, though work goes on.
    fn concern(&self) -> Option<String> {
        None
    }

    /// Leaves the store in order, whoever else still holds it: what was asked for is written, and nothing is after it.
    /// A store that nobody can leave otherwise than in order does nothing.
    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// All ledgers of one place.
pub trait Store:
    Journal
    + RunQueries
    + TurnQueries
    + InboundQueries
    + InteractionQueries
    + DeliveryQueries
    + EffectQueries
    + ClaimQueries
    + CursorStore
    + StoreMaintenance
    + Send
    + Sync
{
}

impl<S> Store for S where
    S: Journal
        + RunQueries
        + TurnQueries
        + InboundQueries
        + InteractionQueries
        + DeliveryQueries
        + EffectQueries
        + ClaimQueries
        + CursorStore
        + StoreMaintenance
        + Send
        + Sync
{
}
