//! What is written at once: events, with everything that follows from them.

use std::sync::Arc;

use abide_domain::{
    effect::{EffectNumber, Owed},
    event::{Claim, Event},
    id::RunId,
    ledger::Rows,
    run::{Run, Status, Step},
    time::Stamp,
};
use serde::{Deserialize, Serialize};

/// A position in the journal. The first entry has 1; none is ever skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it stands.
    pub seq: Seq,
    /// The run that it is about.
    pub run_id: RunId,
    /// The run's revision after it.
    pub revision: u64,
    /// When, and what its new ids are made of.
    pub stamp: Stamp,
    /// What happened.
    pub event: Event,
}

/// Changes that are written together or not at all. They may concern several runs, and one run several times.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// One event and everything that follows from it.
#[derive(Clone, Debug)]
pub struct Change {
    /// When, and what its new ids are made of.
    pub stamp: Stamp,
    /// What happened.
    pub event: Event,
    /// What the run was in one word, if it was.
    pub was: Option<Status>,
    /// What the run became, shared with whoever remembers it. Its revision is one more than the revision that the store
    /// must find.
    pub run: Arc<Run>,
    /// The rows that changed.
    pub rows: Rows,
    /// Orders that are new.
    pub owed: Vec<Owed>,
    /// Orders that are settled.
    pub settled: Vec<EffectNumber>,
}

impl Change {
    /// What a step of the domain means for the tables.
    pub fn new(before: Option<&Run>, stamp: Stamp, event: Event, step: Step) -> Self {
        let run = step.run;
        let held = before.map_or(&[][..], |run| &run.owed);
        let missing_in = |owed: &Owed, others: &[Owed]| !others.iter().any(|it| it.number == owed.number);
        let settled =
            held.iter().filter(|owed| missing_in(owed, &run.owed)).map(|owed| owed.number).collect();
        let owed = run.owed.iter().filter(|owed| missing_in(owed, held)).cloned().collect();
        let was = before.map(Run::status);
        Self { rows: Rows::changed(before, &run), stamp, event, owed, settled, was, run: Arc::new(run) }
    }

    /// The keys that it uses up.
    pub fn claims(&self) -> Vec<Claim> {
        self.event.claims()
    }
}

/// Where a commit stands in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The position of its last entry; that of the journal's head for an empty commit.
    pub last: Seq,
}
