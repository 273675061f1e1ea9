//! What is written at once: events, with everything that follows from them.

use std::sync::Arc;

use abide_domain::{
    delivery::Delivery,
    event::{KeyClaim, RunEvent},
    id::RunId,
    inbound::Inbound,
    interaction::Interaction,
    ledger::ChangedRows,
    run::{Run, RunStatus, RunStep},
    time::EventStamp,
    turn::Turn,
};
use serde::{Deserialize, Serialize};

/// A position in the journal. The first entry has 1; none is ever skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JournalSeq(pub u64);

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Where it stands.
    pub seq: JournalSeq,
    /// The run that it is about.
    pub run_id: RunId,
    /// The run's revision after it.
    pub revision: u64,
    /// When, and what its new ids are made of.
    pub stamp: EventStamp,
    /// What happened.
    pub event: RunEvent,
}

/// Changes that are written together or not at all. They may concern several runs, and one run several times.
#[derive(Clone, Debug, Default)]
pub struct JournalCommit {
    /// The changes, in order.
    pub changes: Vec<RunChange>,
}

/// One event and everything that follows from it.
#[derive(Clone, Debug)]
pub struct RunChange {
    /// When, and what its new ids are made of.
    pub stamp: EventStamp,
    /// What happened.
    pub event: RunEvent,
    /// What the run was in one word, if it was.
    pub was: Option<RunStatus>,
    /// What the run became, shared with whoever remembers it. Its revision is one more than the revision that the store
    /// must find.
    pub run: Arc<Run>,
    /// The rows that changed.
    rows: ChangedRows,
}

impl RunChange {
    /// What a step of the domain means for the tables.
    pub fn new(before: Option<&Run>, stamp: EventStamp, event: RunEvent, step: RunStep) -> Self {
        let (rows, was) = (ChangedRows::changed(before, &step.run), before.map(Run::status));
        Self { rows, stamp, event, was, run: Arc::new(step.run) }
    }

    /// The messages that changed.
    pub fn inbound(&self) -> impl Iterator<Item = &Inbound> {
        self.rows.inbound(&self.run)
    }

    /// The turns that changed.
    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.rows.turns(&self.run)
    }

    /// The questions that changed.
    pub fn interactions(&self) -> impl Iterator<Item = &Interaction> {
        self.rows.interactions(&self.run)
    }

    /// The deliveries that changed.
    pub fn deliveries(&self) -> impl Iterator<Item = &Delivery> {
        self.rows.deliveries(&self.run)
    }

    /// The keys that it uses up.
    pub fn claims(&self) -> Vec<KeyClaim> {
        self.event.claims()
    }
}

/// Where a commit stands in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitReceipt {
    /// The position of its last entry; that of the journal's head for an empty commit.
    pub last: JournalSeq,
}
