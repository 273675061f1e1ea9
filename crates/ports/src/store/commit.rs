//! A commit: events with all changes that follow from them, written atomically.

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

/// A position in the journal. The first entry has position 1; positions have no gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JournalSeq(pub u64);

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    pub seq: JournalSeq,
    pub run_id: RunId,
    /// The run's revision after this entry.
    pub revision: u64,
    /// The time of the event and the seed of its new ids.
    pub stamp: EventStamp,
    pub event: RunEvent,
}

/// Changes that are written atomically. They may concern several runs, and one run several times.
#[derive(Clone, Debug, Default)]
pub struct JournalCommit {
    /// In the order in which they are applied.
    pub changes: Vec<RunChange>,
}

/// One event and all changes that follow from it.
#[derive(Clone, Debug)]
pub struct RunChange {
    /// The time of the event and the seed of its new ids.
    pub stamp: EventStamp,
    pub event: RunEvent,
    /// The status of the run before the event. None if the event created it.
    pub previous_status: Option<RunStatus>,
    /// The run after the event, shared with caches. Its revision is one more than the revision that the store must
    /// find.
    pub run: Arc<Run>,
    rows: ChangedRows,
}

impl RunChange {
    /// Derives the changed rows from a step of the domain.
    pub fn new(before: Option<&Run>, stamp: EventStamp, event: RunEvent, step: RunStep) -> Self {
        let (rows, was) = (ChangedRows::between(before, &step.run), before.map(Run::status));
        Self { rows, stamp, event, previous_status: was, run: Arc::new(step.run) }
    }

    pub fn inbound(&self) -> impl Iterator<Item = &Inbound> {
        self.rows.inbound(&self.run)
    }

    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.rows.turns(&self.run)
    }

    pub fn interactions(&self) -> impl Iterator<Item = &Interaction> {
        self.rows.interactions(&self.run)
    }

    pub fn deliveries(&self) -> impl Iterator<Item = &Delivery> {
        self.rows.deliveries(&self.run)
    }

    /// The keys that the event claims.
    pub fn claims(&self) -> Vec<KeyClaim> {
        self.event.claims()
    }
}

/// The position of a commit in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitReceipt {
    /// The position of its last entry. For an empty commit, the position of the journal's head.
    pub last: JournalSeq,
}
