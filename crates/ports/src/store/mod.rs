//! Where everything is kept: one append-only journal, and tables derived from it in the same transaction.
//!
//! The journal is the truth. The tables are there to be asked quickly, and can be rebuilt from it at any time.
//! One small trait for each ledger; [`Store`] is all of them together. How they are kept is not here.

mod commit;
mod error;
mod flaw;
mod page;
mod tables;

pub use commit::{Change, Commit, Committed, Entry, Seq};
pub use error::{ErrorKind, StoreError};
pub use flaw::Flaw;
pub use page::{Listing, Page};
pub use tables::{Difference, Tables};

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
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The append-only record, with one global sequence whose order is the order of commits.
pub trait Journal {
    /// Writes all changes or none, durably, before it answers. Many commits may share one sync.
    fn commit(&self, commit: Commit) -> Answer<'_, Committed>;

    /// Entries after a position, in order. A position stays valid for ever, across restarts and rebuilds.
    fn entries(&self, after: Seq, limit: usize) -> Answer<'_, Vec<Entry>>;

    /// The same for one run.
    fn entries_of(&self, run: RunId, after: Seq, limit: usize) -> Answer<'_, Vec<Entry>>;

    /// The position of the latest entry, 0 before the first.
    fn head(&self) -> Answer<'_, Seq>;
}

/// A run whose row cannot be read, so that nothing can be done for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRun {
    /// Its id, as the row has it.
    pub run_id: String,
    /// What is wrong.
    pub what: String,
}

/// Runs as they stand. A row that cannot be read hides no other: lists leave it out, and [`Runs::damaged`] names it.
pub trait Runs {
    /// One run.
    fn run(&self, id: RunId) -> Answer<'_, Option<Run>>;

    /// Runs, the newest first, of one status or of all.
    fn runs(&self, status: Option<RunStatus>, page: Page) -> Answer<'_, Listing<Run>>;

    /// Runs whose deadline is at or before `until`, the earliest first.
    fn due(&self, until: Timestamp, limit: usize) -> Answer<'_, Vec<(RunId, Deadline)>>;

    /// Every run that holds a slot or waits for one.
    fn occupying(&self) -> Answer<'_, Vec<(RunId, SlotOccupancy)>>;

    /// Runs that hold a slot, wait for one, owe an order or wait for a deadline, and whose row cannot be read. Reads every
    /// such run.
    fn damaged(&self) -> Answer<'_, Vec<DamagedRun>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// How many runs there are of each status; a status that no run has is left out. No run is read for that.
    fn tally(&self) -> Answer<'_, BTreeMap<RunStatus, u64>>;
}

/// The ledger of turns.
pub trait Turns {
    /// One turn.
    fn turn(&self, id: TurnId) -> Answer<'_, Option<Turn>>;

    /// A run's turns, the first first.
    fn turns_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Turn>>;
}

/// The ledger of messages that reached us.
pub trait Inbounds {
    /// One message.
    fn inbound(&self, key: MessageKey) -> Answer<'_, Option<Inbound>>;
}

/// The ledger of questions.
pub trait Interactions {
    /// One question.
    fn interaction(&self, id: InteractionId) -> Answer<'_, Option<Interaction>>;

    /// A run's questions, the first first.
    fn interactions_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Interaction>>;

    /// The inbox: every question that can be answered, the oldest first.
    fn open_interactions(&self, page: Page) -> Answer<'_, Listing<Interaction>>;

    /// How many those are. No question is read for that.
    fn count_open(&self) -> Answer<'_, u64>;
}

/// The ledger of deliveries.
pub trait Deliveries {
    /// One delivery.
    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Delivery>>;

    /// A run's deliveries, the first first.
    fn deliveries_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Delivery>>;

    /// Runs that have something for this conversation which could not be brought and may be tried once more.
    fn undelivered_to(&self, conversation_ref: &str) -> Answer<'_, Vec<RunId>>;
}

/// What is owed to the world. It stands in the runs and nowhere else.
pub trait Effects {
    /// Orders after this one, by run and number.
    fn owed(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> Answer<'_, Vec<(RunId, PendingEffect)>>;
}

/// Keys that can be used once, for ever.
pub trait Claims {
    /// Who used a key, and for what.
    fn claimed(&self, scope: &str, key: &str) -> Answer<'_, Option<Claimed>>;
}

/// A key in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The run that it led to.
    pub run_id: RunId,
    /// What it was used for.
    pub fingerprint: String,
}

/// How far each reader of the journal has got.
pub trait Cursors {
    /// A reader's position, 0 for one that has never been heard of.
    fn cursor(&self, reader: &str) -> Answer<'_, Seq>;

    /// Moves a reader on. It never moves back.
    fn advance(&self, reader: &str, to: Seq) -> Answer<'_, ()>;
}

/// What an operator needs.
pub trait Upkeep {
    /// Runs that the journal or any table knows, after this one, by id.
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> Answer<'_, Vec<RunId>>;

    /// Everything that the tables hold of a run.
    fn tables_of(&self, run: RunId) -> Answer<'_, Tables>;

    /// Puts these in the place of what the tables hold of a run.
    fn replace_tables(&self, run: RunId, tables: Tables) -> Answer<'_, ()>;

    /// What is wrong with the store as a whole: lost input, a broken chain, rows that an index does not find, and every
    /// derived column that is not part of a run's tables. Reads everything.
    fn inspect(&self) -> Answer<'_, Vec<Flaw>> {
        Box::pin(async { Ok(vec![]) })
    }

    /// Makes everything anew that [`Flaw::Derived`] can be about. Nobody else may write meanwhile.
    fn reindex(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Writes a consistent copy to a new file while work goes on. `Unsupported` where a server does that.
    fn backup(&self, to: &Path) -> Answer<'_, ()>;

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
    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// All ledgers of one place.
pub trait Store:
    Journal
    + Runs
    + Turns
    + Inbounds
    + Interactions
    + Deliveries
    + Effects
    + Claims
    + Cursors
    + Upkeep
    + Send
    + Sync
{
}

impl<S> Store for S where
    S: Journal
        + Runs
        + Turns
        + Inbounds
        + Interactions
        + Deliveries
        + Effects
        + Claims
        + Cursors
        + Upkeep
        + Send
        + Sync
{
}
