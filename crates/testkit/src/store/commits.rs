//! Commits are atomic and never overwrite concurrent changes.

use abide_domain::event::RunEvent;
use abide_ports::store::{CommitReceipt, JournalCommit, JournalSeq, StoreError};

use super::{TestStoreProvider, open, read_view, single_commit, store_with_history};
use crate::history::HistoryGenerator;

pub(super) async fn check(places: &dyn TestStoreProvider) {
    an_empty_store_is_empty(places).await;
    a_commit_over_several_runs_is_taken_whole(places).await;
    a_stale_change_is_a_conflict_and_spoils_its_whole_commit(places).await;
    a_run_is_created_once(places).await;
    one_run_may_change_several_times_in_one_commit(places).await;
}

async fn an_empty_store_is_empty(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let store = open(&*place).await;
    assert_eq!(store.head().await.unwrap(), JournalSeq(0));
    assert_eq!(store.entries(JournalSeq(0), 10).await.unwrap(), vec![]);
    let committed = store.commit(JournalCommit::default()).await.unwrap();
    assert_eq!(
        committed,
        CommitReceipt { last: JournalSeq(0) },
        "an empty commit stands where the journal does"
    );
    assert_eq!(read_view(&*store).await, read_view(&*places.reference()).await);
}

async fn a_commit_over_several_runs_is_taken_whole(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let (store, mut generator) = store_with_history(&*place, 1, 5).await;
    let before = store.head().await.unwrap();
    let changes = vec![generator.create(), generator.create(), generator.create()];
    let ids: Vec<_> = changes.iter().map(|change| change.run.run_id).collect();
    let committed = store.commit(JournalCommit { changes }).await.unwrap();
    assert_eq!(committed.last, JournalSeq(before.0 + 3));
    assert_eq!(store.head().await.unwrap(), committed.last);
    for id in ids {
        assert_eq!(store.run(id).await.unwrap().as_ref(), generator.runs().get(&id));
    }
}

async fn a_stale_change_is_a_conflict_and_spoils_its_whole_commit(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let (store, mut generator) = store_with_history(&*place, 2, 0).await;
    let created = generator.create();
    let run_id = created.run.run_id;
    store.commit(single_commit(created)).await.unwrap();
    let mut rival = generator.clone();
    let admitted = generator.apply(run_id, RunEvent::Admitted).expect("it waits for a slot");
    store.commit(single_commit(admitted)).await.unwrap();

    let before = read_view(&*store).await;
    let innocent = HistoryGenerator::new(2, 9).create();
    let stale = rival.apply(run_id, RunEvent::Admitted).expect("the rival does not know better");
    let refused = store.commit(JournalCommit { changes: vec![innocent, stale] }).await.unwrap_err();
    let conflict =
        matches!(refused, StoreError::Conflict { run_id: it, expected: 1, found: 2 } if it == run_id);
    assert!(conflict, "not the conflict that it is: {refused}");
    assert_eq!(read_view(&*store).await, before, "nothing of a refused commit is left behind");

    // A change must not be skipped either.
    let mut ahead = generator.clone();
    let _skipped = ahead.apply(run_id, RunEvent::InterruptRequested { by: "a".into() }).expect("it works");
    let too_new = ahead.apply(run_id, RunEvent::CancelRequested { by: "a".into() });
    if let Some(too_new) = too_new {
        let refused = store.commit(single_commit(too_new)).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { expected: 3, found: 2, .. }), "{refused}");
    }
    assert_eq!(read_view(&*store).await, before);
}

async fn a_run_is_created_once(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let store = open(&*place).await;
    let created = HistoryGenerator::new(3, 1).create();
    let mut again = created.clone();
    store.commit(single_commit(created)).await.unwrap();
    // Other keys are used, so that only the run itself conflicts.
    if let RunEvent::RunCreated(new) = &mut again.event {
        new.message.key.message_id = "another".to_owned();
        new.idempotency = None;
    }
    let refused = store.commit(single_commit(again)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { expected: 0, found: 1, .. }), "{refused}");
    assert_eq!(store.head().await.unwrap(), JournalSeq(1));
}

async fn one_run_may_change_several_times_in_one_commit(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let store = open(&*place).await;
    let mut generator = HistoryGenerator::new(4, 1);
    let created = generator.create();
    let run_id = created.run.run_id;
    let admitted = generator.apply(run_id, RunEvent::Admitted).expect("it waits for a slot");
    let canceled = generator.apply(run_id, RunEvent::CancelRequested { by: "a".into() }).expect("it runs");
    let committed = store.commit(JournalCommit { changes: vec![created, admitted, canceled] }).await.unwrap();
    assert_eq!(committed.last, JournalSeq(3));
    assert_eq!(store.run(run_id).await.unwrap().as_ref(), generator.runs().get(&run_id));
    let revisions: Vec<_> = store
        .entries_of(run_id, JournalSeq(0), 9)
        .await
        .unwrap()
        .iter()
        .map(|entry| entry.revision)
        .collect();
    assert_eq!(revisions, [1, 2, 3]);
}
