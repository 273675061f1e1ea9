//! A store that counts what it is asked and tells when a run has come to a question or to its end.
//!
//! Nothing is added to what is measured but counting; the lengths of rows are only looked at when that is asked for.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use abide_domain::{
    deadline::Deadline,
    delivery::Delivery,
    effect::{EffectNumber, Owed},
    id::{DeliveryId, InteractionId, RunId, TurnId},
    inbound::{Inbound, MessageKey},
    interaction::Interaction,
    run::{Run, Status},
    slots::Occupancy,
    time::Timestamp,
    turn::Turn,
};
use abide_ports::store::{
    Answer, Change, Claimed, Claims, Commit, Committed, Cursors, Deliveries, Effects, Entry, Inbounds,
    Interactions, Journal, Listing, Page, Runs, Seq, Store, Tables, Turns, Upkeep,
};
use serde::Serialize;
use tokio::sync::mpsc;

type Watchers = BTreeMap<RunId, mpsc::UnboundedSender<Arc<Run>>>;

pub(crate) struct Counted {
    inner: Arc<dyn Store>,
    pub(crate) counts: Counts,
    watchers: Mutex<Watchers>,
}

/// What was counted.
#[derive(Default)]
pub(crate) struct Counts {
    commits: AtomicU64,
    finished: AtomicU64,
    reads: AtomicU64,
    /// The lengths of each commit's rows, while they are looked at.
    rows: Mutex<Option<Vec<Vec<usize>>>>,
}

pub(crate) struct Count {
    pub(crate) commits: u64,
    pub(crate) finished: u64,
    pub(crate) reads: u64,
}

impl Counts {
    pub(crate) fn reset(&self) {
        for count in [&self.commits, &self.finished, &self.reads] {
            count.store(0, Ordering::Relaxed);
        }
        *lock(&self.rows) = None;
    }

    pub(crate) fn read(&self) -> Count {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Count { commits: read(&self.commits), finished: read(&self.finished), reads: read(&self.reads) }
    }

    pub(crate) fn look_at_rows(&self) {
        *lock(&self.rows) = Some(Vec::new());
    }

    pub(crate) fn shape(&self) -> Vec<Vec<usize>> {
        lock(&self.rows).take().unwrap_or_default()
    }
}

impl Counted {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, counts: Counts::default(), watchers: Mutex::default() }
    }

    /// Hears of a run whenever a commit leaves it with a question or at its end.
    pub(crate) fn watch(&self, run: RunId) -> mpsc::UnboundedReceiver<Arc<Run>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.watchers).insert(run, sender);
        receiver
    }

    fn tell(&self, run: Arc<Run>) {
        let mut watchers = lock(&self.watchers);
        let finished = match run.status() {
            Status::WaitingUser => false,
            Status::Succeeded | Status::Failed | Status::Canceled => true,
            Status::Queued | Status::Running | Status::Idle => return,
        };
        let run_id = run.run_id;
        if let Some(watcher) = watchers.get(&run_id) {
            let _nobody_may_wait = watcher.send(run);
        }
        if finished {
            watchers.remove(&run_id);
            self.counts.finished.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn asked<T>(&self, answer: T) -> T {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

/// The rows that a commit has to write at the least: every event, what the run is in the end, and each ledger row once.
fn lengths(changes: &[Change]) -> Vec<usize> {
    let mut rows = Vec::new();
    let mut named: BTreeMap<String, usize> = BTreeMap::new();
    for change in changes {
        rows.push(length(&change.event));
        named.insert(change.run.run_id.to_string(), length(&*change.run));
        let kept = &change.rows;
        named.extend(kept.inbound.iter().map(|row| (row.message.key.message_id.clone(), length(row))));
        named.extend(kept.turns.iter().map(|row| (row.turn_id.to_string(), length(row))));
        named.extend(kept.interactions.iter().map(|row| (row.interaction_id.to_string(), length(row))));
        named.extend(kept.deliveries.iter().map(|row| (row.delivery_id.to_string(), length(row))));
        named.extend(change.owed.iter().map(|row| (row.number.0.to_string(), length(row))));
        for settled in &change.settled {
            named.remove(&settled.0.to_string());
        }
    }
    rows.extend(named.into_values());
    rows
}

fn length(row: &impl Serialize) -> usize {
    serde_json::to_string(row).map_or(0, |text| text.len())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal for Counted {
    fn commit(&self, commit: Commit) -> Answer<'_, Committed> {
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        if let Some(rows) = lock(&self.counts.rows).as_mut() {
            rows.push(lengths(&commit.changes));
        }
        let last = commit.changes.last().map(|change| change.run.clone());
        Box::pin(async move {
            let committed = self.inner.commit(commit).await?;
            if let Some(run) = last {
                self.tell(run);
            }
            Ok(committed)
        })
    }

    fn entries(&self, after: Seq, limit: usize) -> Answer<'_, Vec<Entry>> {
        self.asked(self.inner.entries(after, limit))
    }

    fn entries_of(&self, run: RunId, after: Seq, limit: usize) -> Answer<'_, Vec<Entry>> {
        self.asked(self.inner.entries_of(run, after, limit))
    }

    fn head(&self) -> Answer<'_, Seq> {
        self.asked(self.inner.head())
    }
}

impl Runs for Counted {
    fn tally(&self) -> Answer<'_, BTreeMap<Status, u64>> {
        self.asked(self.inner.tally())
    }

    fn run(&self, id: RunId) -> Answer<'_, Option<Run>> {
        self.asked(self.inner.run(id))
    }

    fn runs(&self, status: Option<Status>, page: Page) -> Answer<'_, Listing<Run>> {
        self.asked(self.inner.runs(status, page))
    }

    fn due(&self, until: Timestamp, limit: usize) -> Answer<'_, Vec<(RunId, Deadline)>> {
        self.asked(self.inner.due(until, limit))
    }

    fn occupying(&self) -> Answer<'_, Vec<(RunId, Occupancy)>> {
        self.asked(self.inner.occupying())
    }
}

impl Turns for Counted {
    fn turn(&self, id: TurnId) -> Answer<'_, Option<Turn>> {
        self.asked(self.inner.turn(id))
    }

    fn turns_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Turn>> {
        self.asked(self.inner.turns_of(run, page))
    }
}

impl Inbounds for Counted {
    fn inbound(&self, key: MessageKey) -> Answer<'_, Option<Inbound>> {
        self.asked(self.inner.inbound(key))
    }
}

impl Interactions for Counted {
    fn count_open(&self) -> Answer<'_, u64> {
        self.asked(self.inner.count_open())
    }

    fn interaction(&self, id: InteractionId) -> Answer<'_, Option<Interaction>> {
        self.asked(self.inner.interaction(id))
    }

    fn interactions_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Interaction>> {
        self.asked(self.inner.interactions_of(run, page))
    }

    fn open_interactions(&self, page: Page) -> Answer<'_, Listing<Interaction>> {
        self.asked(self.inner.open_interactions(page))
    }
}

impl Deliveries for Counted {
    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Delivery>> {
        self.asked(self.inner.delivery(id))
    }

    fn deliveries_of(&self, run: RunId, page: Page) -> Answer<'_, Listing<Delivery>> {
        self.asked(self.inner.deliveries_of(run, page))
    }

    fn undelivered_to(&self, conversation_ref: &str) -> Answer<'_, Vec<RunId>> {
        self.asked(self.inner.undelivered_to(conversation_ref))
    }
}

impl Effects for Counted {
    fn owed(&self, after: Option<(RunId, EffectNumber)>, limit: usize) -> Answer<'_, Vec<(RunId, Owed)>> {
        self.asked(self.inner.owed(after, limit))
    }
}

impl Claims for Counted {
    fn claimed(&self, scope: &str, key: &str) -> Answer<'_, Option<Claimed>> {
        self.asked(self.inner.claimed(scope, key))
    }
}

impl Cursors for Counted {
    fn cursor(&self, reader: &str) -> Answer<'_, Seq> {
        self.asked(self.inner.cursor(reader))
    }

    fn advance(&self, reader: &str, to: Seq) -> Answer<'_, ()> {
        self.asked(self.inner.advance(reader, to))
    }
}

impl Upkeep for Counted {
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> Answer<'_, Vec<RunId>> {
        self.asked(self.inner.known_runs(after, limit))
    }

    fn tables_of(&self, run: RunId) -> Answer<'_, Tables> {
        self.asked(self.inner.tables_of(run))
    }

    fn replace_tables(&self, run: RunId, tables: Tables) -> Answer<'_, ()> {
        self.asked(self.inner.replace_tables(run, tables))
    }

    fn backup(&self, to: &Path) -> Answer<'_, ()> {
        self.asked(self.inner.backup(to))
    }
}
