//! A store wrapper that counts commits and notifies when a run has asked a question or ended.
//!
//! Counting is the only addition to the measured path; the lengths of rows are computed only on request.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use abide_domain::{
    id::RunId,
    inbound::Inbound,
    run::{Run, RunStatus},
};
use abide_observe::observed_store::{ObservedStore, StoreInterceptor};
use abide_ports::store::{CommitReceipt, JournalCommit, RunChange, Store, StoreFuture};
use serde::Serialize;
use tokio::sync::mpsc;

type QuestionWatchers = BTreeMap<RunId, mpsc::UnboundedSender<Arc<Run>>>;

pub(crate) struct CountingStore {
    inner: Arc<dyn Store>,
    pub(crate) counts: CommitCounters,
    watchers: Mutex<QuestionWatchers>,
}

#[derive(Default)]
pub(crate) struct CommitCounters {
    commits: AtomicU64,
    finished: AtomicU64,
    reads: AtomicU64,
    /// The lengths of each commit's rows; `None` while they are not recorded.
    rows: Mutex<Option<Vec<Vec<usize>>>>,
}

pub(crate) struct CommitCounts {
    pub(crate) commits: u64,
    pub(crate) finished: u64,
    pub(crate) reads: u64,
}

impl CommitCounters {
    pub(crate) fn reset(&self) {
        for count in [&self.commits, &self.finished, &self.reads] {
            count.store(0, Ordering::Relaxed);
        }
        *lock(&self.rows) = None;
    }

    pub(crate) fn read(&self) -> CommitCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CommitCounts {
            commits: read(&self.commits),
            finished: read(&self.finished),
            reads: read(&self.reads),
        }
    }

    pub(crate) fn record_rows(&self) {
        *lock(&self.rows) = Some(Vec::new());
    }

    pub(crate) fn shape(&self) -> Vec<Vec<usize>> {
        lock(&self.rows).take().unwrap_or_default()
    }
}

impl CountingStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> ObservedStore<Self> {
        ObservedStore(Self { inner, counts: CommitCounters::default(), watchers: Mutex::default() })
    }

    /// Returns a channel that receives the run after each commit that leaves it with a question or ended.
    pub(crate) fn watch(&self, run: RunId) -> mpsc::UnboundedReceiver<Arc<Run>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.watchers).insert(run, sender);
        receiver
    }

    fn notify_watcher(&self, run: Arc<Run>) {
        let mut watchers = lock(&self.watchers);
        let finished = match run.status() {
            RunStatus::WaitingUser => false,
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled => true,
            RunStatus::Queued | RunStatus::Running | RunStatus::Idle => return,
        };
        let run_id = run.run_id;
        if let Some(watcher) = watchers.get(&run_id) {
            // The receiver may have been dropped.
            watcher.send(run).ok();
        }
        if finished {
            watchers.remove(&run_id);
            self.counts.finished.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the lengths of the rows that a commit must write: each event, the run's final state, and each ledger row
/// once.
fn lengths(changes: &[RunChange]) -> Vec<usize> {
    let mut rows = Vec::new();
    let mut named: BTreeMap<String, usize> = BTreeMap::new();
    for change in changes {
        rows.push(length(&change.event));
        named.insert(change.run.run_id.to_string(), length(&*change.run));
        // A message may have the same id as its run.
        let message = |row: &Inbound| format!("message {}", row.message.key.message_id);
        named.extend(change.inbound().map(|row| (message(row), length(row))));
        named.extend(change.turns().map(|row| (row.turn_id.to_string(), length(row))));
        named.extend(change.interactions().map(|row| (row.interaction_id.to_string(), length(row))));
        named.extend(change.deliveries().map(|row| (row.delivery_id.to_string(), length(row))));
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

impl StoreInterceptor for CountingStore {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    fn on_read(&self) {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
    }

    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        if let Some(rows) = lock(&self.counts.rows).as_mut() {
            rows.push(lengths(&commit.changes));
        }
        let last = commit.changes.last().map(|change| change.run.clone());
        Box::pin(async move {
            let committed = self.inner.commit(commit).await?;
            if let Some(run) = last {
                self.notify_watcher(run);
            }
            Ok(committed)
        })
    }
}
