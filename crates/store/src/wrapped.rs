//! A store around another one: everything is passed on as it is, but for what the wrapper wants to see.
//!
//! What is done on the way is not here: each wrapper says that for itself.

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
    Answer, Claimed, Claims, Commit, Committed, Cursors, DamagedRun, Deliveries, Effects, Entry, Flaw,
    Inbounds, Interactions, Journal, Listing, Page, Runs, Seq, Store, StoreError, Tables, Turns, Upkeep,
};

/// Who stands around a store.
pub trait Wrapper: Send + Sync {
    /// The store.
    fn store(&self) -> &dyn Store;

    /// Somebody asks it anything; called before it answers, for everything but a commit.
    fn asked(&self) {}

    /// Somebody commits.
    fn commit(&self, commit: Commit) -> Answer<'_, Committed> {
        self.store().commit(commit)
    }

    /// Somebody wants to know how many runs there are.
    fn tally(&self) -> Answer<'_, BTreeMap<RunStatus, u64>> {
        self.store().tally()
    }
}

/// A store with a wrapper around it.
pub struct Wrapped<W>(pub W);

impl<W: Wrapper> Wrapped<W> {
    fn ask(&self) -> &dyn Store {
        self.0.asked();
        self.0.store()
    }
}

impl<W: Wrapper> Journal for Wrapped<W> {
    fn commit(&self, commit: Commit) -> Answer<'_, Committed> {
        self.0.commit(commit)
    }

    fn entries(&self, after: Seq, limit: usize) -> Answer<'_, Vec<Entry>> {
        self.ask().entries(after, limit)
    }

    fn entries_of(&self, run: RunId, after: Seq, limit: usize) -> Answer<'_, Vec<Entry>> {
        self.ask().entries_of(run, after, limit)
    }

    fn head(&self) -> Answer<'_, Seq> {
        self.ask().head()
    }
}

impl<W: Wrapper> Runs for Wrapped<W> {
    fn run(&self, id: RunId) -> Answer<'_, Option<Run>> {
        self.ask().run(id)
    }

    fn runs(&self, status: Option<RunStatus>, page: Page) -> Answer<'_, Listing<Run>> {
        self.ask().runs(status, page)
    }

    fn due(&self, until: Timestamp, limit: usize) -> Answer<'_, Vec<(RunId, Deadline)>> {
        self.ask().due(until, limit)
    }

    fn occupying(&self) -> Answer<'_, Vec<(RunId, SlotOccupancy)>> {
        self.ask().occupying()
    }

    fn damaged(&self) -> Answer<'_, Vec<DamagedRun>> {
        self.ask().damaged()
    }

    fn tally(&self) -> Answer<'_, BTreeMap<RunStatus, u64>> {
        self.0.asked();
        self.0.tally()
    }
}

impl<W: Wrapper> Turns for Wrapped<W> {
    fn turn(&self, id: TurnId) -> Answer<'_, Option<Turn>> {
        self.ask().turn(id)
    }

    fn turns_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Turn>> {
        self.ask().turns_of(run, page)
    }
}

impl<W: Wrapper> Inbounds for Wrapped<W> {
    fn inbound(&self, key: MessageKey) -> Answer<'_, Option<Inbound>> {
        self.ask().inbound(key)
    }
}

impl<W: Wrapper> Interactions for Wrapped<W> {
    fn interaction(&self, id: InteractionId) -> Answer<'_, Option<Interaction>> {
        self.ask().interaction(id)
    }

    fn interactions_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Interaction>> {
        self.ask().interactions_of(run, page)
    }

    fn open_interactions(&self, page: Page) -> Answer<'_, Listing<Interaction>> {
        self.ask().open_interactions(page)
    }

    fn count_open(&self) -> Answer<'_, u64> {
        self.ask().count_open()
    }
}

impl<W: Wrapper> Deliveries for Wrapped<W> {
    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Delivery>> {
        self.ask().delivery(id)
    }

    fn deliveries_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Delivery>> {
        self.ask().deliveries_of(run, page)
    }

    fn undelivered_to(&self, conversation_ref: &str) -> Answer<'_, Vec<RunId>> {
        self.ask().undelivered_to(conversation_ref)
    }
}

impl<W: Wrapper> Effects for Wrapped<W> {
    fn owed(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> Answer<'_, Vec<(RunId, PendingEffect)>> {
        self.ask().owed(after, limit)
    }
}

impl<W: Wrapper> Claims for Wrapped<W> {
    fn claimed(&self, scope: &str, key: &str) -> Answer<'_, Option<Claimed>> {
        self.ask().claimed(scope, key)
    }
}

impl<W: Wrapper> Cursors for Wrapped<W> {
    fn cursor(&self, reader: &str) -> Answer<'_, Seq> {
        self.ask().cursor(reader)
    }

    fn advance(&self, reader: &str, to: Seq) -> Answer<'_, ()> {
        self.ask().advance(reader, to)
    }
}

impl<W: Wrapper> Upkeep for Wrapped<W> {
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> Answer<'_, Vec<RunId>> {
        self.ask().known_runs(after, limit)
    }

    fn tables_of(&self, run: RunId) -> Answer<'_, Tables> {
        self.ask().tables_of(run)
    }

    fn replace_tables(&self, run: RunId, tables: Tables) -> Answer<'_, ()> {
        self.ask().replace_tables(run, tables)
    }

    fn backup(&self, to: &Path) -> Answer<'_, ()> {
        self.ask().backup(to)
    }

    fn inspect(&self) -> Answer<'_, Vec<Flaw>> {
        self.ask().inspect()
    }

    fn reindex(&self) -> Answer<'_, ()> {
        self.ask().reindex()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.0.store().health()
    }

    fn concern(&self) -> Option<String> {
        self.0.store().concern()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.ask().close()
    }
}

impl<W> fmt::Debug for Wrapped<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrapped").finish_non_exhaustive()
    }
}
