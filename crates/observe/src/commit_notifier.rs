//! A store wrapper that notifies observers of each commit, with its duration and the items that it completed.
//!
//! All other operations are delegated.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use abide_domain::run::RunStatus;
use abide_ports::{
    observer::{CommitObserver, CommitReport, CompletedItem},
    store::{CommitReceipt, JournalCommit, Store, StoreError, StoreFuture},
};
use tokio::{runtime::Handle, time::Instant};

use crate::observed_store::{ObservedStore, StoreInterceptor};

/// Wraps a store and notifies observers of its commits.
pub struct CommitNotifier(Arc<CommitNotifierState>);

struct CommitNotifierState {
    store: Arc<dyn Store>,
    observers: Vec<Arc<dyn CommitObserver>>,
    /// Number of runs by status, kept in memory if this process is the only writer, because counting in the store is
    /// slow.
    run_counts: Mutex<Option<BTreeMap<RunStatus, u64>>>,
}

/// Whether other processes write to the same store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterSharing {
    Exclusive,
    Shared,
}

impl CommitNotifier {
    /// Wraps a store. No write may be in progress.
    pub async fn open(
        store: Arc<dyn Store>,
        writers: WriterSharing,
        observers: Vec<Arc<dyn CommitObserver>>,
    ) -> Result<ObservedStore<Self>, StoreError> {
        let run_counts = match writers {
            WriterSharing::Exclusive => Some(store.count_by_status().await?),
            WriterSharing::Shared => None,
        };
        Ok(ObservedStore(Self(Arc::new(CommitNotifierState {
            store,
            observers,
            run_counts: Mutex::new(run_counts),
        }))))
    }
}

impl CommitNotifierState {
    async fn commit(self: Arc<Self>, commit: JournalCommit) -> Result<CommitReceipt, StoreError> {
        let completed_items = CompletedItem::of(&commit);
        let moves: Vec<_> =
            commit.changes.iter().map(|change| (change.previous_status, change.run.status())).collect();
        let began = Instant::now();
        let answer = self.store.commit(commit).await;
        self.update_run_counts(&answer, &moves);
        let outcome = answer.as_ref().map(|committed| committed.last);
        let completed_items = if outcome.is_ok() { &completed_items[..] } else { &[] };
        let report = CommitReport { duration: began.elapsed(), outcome, completed_items };
        for watcher in &self.observers {
            watcher.on_commit(&report);
        }
        answer
    }

    fn update_run_counts(
        &self,
        answer: &Result<CommitReceipt, StoreError>,
        moves: &[(Option<RunStatus>, RunStatus)],
    ) {
        let mut run_counts = self.run_counts.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(_) => {
                let Some(run_counts) = &mut *run_counts else { return };
                for (was, is) in moves {
                    if let Some(count) = was.and_then(|was| run_counts.get_mut(&was)) {
                        *count = count.saturating_sub(1);
                    }
                    *run_counts.entry(*is).or_default() += 1;
                }
                run_counts.retain(|_, count| *count > 0);
            }
            // The outcome is unknown, so from now on the store counts.
            Err(StoreError::OutcomeUnknown { .. }) => *run_counts = None,
            Err(_) => {}
        }
    }
}

type CommitFuture = Pin<Box<dyn Future<Output = Result<CommitReceipt, StoreError>> + Send>>;

/// A commit that runs to completion even if its caller is dropped (a client that disconnects). The write completes
/// anyway, so the observers must be notified too.
struct DetachOnDrop(Option<CommitFuture>);

impl Future for DetachOnDrop {
    type Output = Result<CommitReceipt, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let committing = self.0.as_mut().expect("a response is requested once");
        let polled = committing.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        if let (Some(committing), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(committing);
        }
    }
}

impl StoreInterceptor for CommitNotifier {
    fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        Box::pin(DetachOnDrop(Some(Box::pin(self.0.clone().commit(commit)))))
    }

    fn count_by_status(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        let counts = self.0.run_counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match counts {
            Some(run_counts) => Box::pin(async move { Ok(run_counts) }),
            None => self.0.store.count_by_status(),
        }
    }
}

impl fmt::Debug for CommitNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitNotifier").field("watchers", &self.0.observers.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use abide_ports::store::{Journal, StoreQueries};
    use abide_store::memory::{CrashPoint, MemoryStore};
    use abide_testkit::history::HistoryGenerator;

    use super::*;

    async fn observed(store: &Arc<MemoryStore>) -> ObservedStore<CommitNotifier> {
        CommitNotifier::open(store.clone(), WriterSharing::Exclusive, vec![]).await.expect("it opens")
    }

    #[tokio::test]
    async fn cached_run_counts_equal_those_of_the_store() {
        let store = Arc::new(MemoryStore::new());
        let mut generator = HistoryGenerator::new(3, 1).with_runs(20);
        for _ in 0..3 {
            let watched = observed(&store).await;
            for commit in generator.commits(150) {
                watched.commit(commit).await.unwrap();
                assert_eq!(watched.count_by_status().await.unwrap(), store.count_by_status().await.unwrap());
            }
        }
    }

    #[tokio::test]
    async fn dropped_commits_and_unknown_outcomes_are_counted_correctly() {
        let store = Arc::new(MemoryStore::new());
        let mut generator = HistoryGenerator::new(4, 1);
        let watched = observed(&store).await;
        drop(watched.commit(generator.commit()));
        while watched.count_by_status().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(watched.count_by_status().await.unwrap(), store.count_by_status().await.unwrap());
        store.crash_at(CrashPoint::AfterWrite);
        assert!(watched.commit(JournalCommit { changes: vec![generator.create()] }).await.is_err());
        assert_eq!(watched.count_by_status().await.unwrap(), store.count_by_status().await.unwrap());
    }
}
