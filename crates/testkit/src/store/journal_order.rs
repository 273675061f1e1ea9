//! The journal's sequence is the order of commits, without gaps, also with concurrent writers.

use std::{collections::BTreeMap, sync::Arc};

use abide_ports::store::{JournalSeq, Store, StoreError};
use tokio::sync::watch;

use super::{TestStoreProvider, open, single_commit};
use crate::history::HistoryGenerator;

/// The number of concurrent writers.
const WRITERS: u16 = 16;
/// The number of commits of each writer.
const COMMITS_PER_WRITER: usize = 12;

pub(super) async fn check(places: &dyn TestStoreProvider) {
    many_writers_leave_no_gap(places).await;
    one_of_many_rivals_commits(places).await;
}

async fn many_writers_leave_no_gap(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let store = open(&*place).await;
    let writers: Vec<_> = (1..=WRITERS).map(|name| tokio::spawn(write(Arc::clone(&store), name))).collect();
    let (end_sender, end_receiver) = watch::channel(None);
    let reader = tokio::spawn(follow(Arc::clone(&store), end_receiver));
    let mut acknowledged = BTreeMap::new();
    for writer in writers {
        acknowledged.extend(writer.await.expect("the writer is done"));
    }
    let head = store.head().await.unwrap();
    end_sender.send(Some(head)).expect("the reader waits for the end");
    let followed = reader.await.expect("the reader is done");
    let entries = store.entries(JournalSeq(0), usize::MAX).await.unwrap();
    let sequence: Vec<_> = entries.iter().map(|entry| entry.seq.0).collect();
    assert_eq!(sequence, (1..=head.0).collect::<Vec<_>>(), "no gap and no repetition");
    assert_eq!(followed, entries, "a reader that moves on misses nothing");
    for (last, run_and_revision) in acknowledged {
        let entry = &entries[last.0 as usize - 1];
        assert_eq!((entry.run_id, entry.revision), run_and_revision, "an answer names its own entry");
    }
}

async fn write(store: Arc<dyn Store>, name: u16) -> Vec<(JournalSeq, (abide_domain::id::RunId, u64))> {
    let mut generator = HistoryGenerator::new(21, name).with_runs(2);
    let mut acknowledged = Vec::new();
    let mut before = JournalSeq(0);
    for _ in 0..COMMITS_PER_WRITER {
        let commit = generator.commit();
        let run = &commit.changes.last().expect("a commit has a change").run;
        let run_and_revision = (run.run_id, run.revision);
        let committed = store.commit(commit).await.expect("no other writer changes these runs");
        assert!(committed.last > before, "a later commit has a higher position");
        before = committed.last;
        acknowledged.push((committed.last, run_and_revision));
    }
    acknowledged
}

/// Reads as a front end does: polls for entries after the last position until the end is announced.
async fn follow(
    store: Arc<dyn Store>,
    end_receiver: watch::Receiver<Option<JournalSeq>>,
) -> Vec<abide_ports::store::JournalEntry> {
    let mut entries: Vec<abide_ports::store::JournalEntry> = Vec::new();
    loop {
        let end = *end_receiver.borrow();
        let position = entries.last().map_or(JournalSeq(0), |entry| entry.seq);
        entries.extend(store.entries(position, 7).await.unwrap());
        if end.is_some_and(|end| entries.last().is_some_and(|entry| entry.seq == end)) {
            return entries;
        }
        tokio::task::yield_now().await;
    }
}

async fn one_of_many_rivals_commits(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let store = open(&*place).await;
    let mut generator = HistoryGenerator::new(22, 1);
    let created = generator.create();
    let run_id = created.run.run_id;
    store.commit(single_commit(created)).await.unwrap();
    let wanting: Vec<_> = (0..WRITERS)
        .map(|_| {
            let event = abide_domain::event::RunEvent::Admitted;
            let change = generator.clone().apply(run_id, event).expect("it waits for a slot");
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.commit(single_commit(change)).await })
        })
        .collect();
    let mut taken = 0;
    for outcome in wanting {
        match outcome.await.expect("the writer is done") {
            Ok(_) => taken += 1,
            Err(StoreError::Conflict { expected: 1, found: 2, .. }) => {}
            Err(other) => panic!("not the conflict that it is: {other}"),
        }
    }
    assert_eq!(taken, 1);
    assert_eq!(store.head().await.unwrap(), JournalSeq(2));
}
