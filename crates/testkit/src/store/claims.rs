//! Idempotency keys are claimed once and are never released.

use abide_domain::{
    event::{IdempotencyClaim, RUN_REQUEST_SCOPE, RunEvent},
    id::RunId,
};
use abide_ports::store::{ClaimHolder, JournalCommit, RunChange, Store, StoreError};

use super::{TestStoreDurability, TestStoreProvider, open, read_view, single_commit};
use crate::history::HistoryGenerator;

pub(super) async fn check(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let store = open(&*place).await;
    assert_eq!(store.claim_holder("inbound/api", "m").await.unwrap(), None);

    let mut generator = HistoryGenerator::new(11, 1);
    let mut first = generator.create();
    request(&mut first, "the key", "of this request");
    let run_id = first.run.run_id;
    store.commit(single_commit(first)).await.unwrap();
    let holder = ClaimHolder { run_id, fingerprint: "of this request".to_owned() };
    assert_eq!(store.claim_holder(RUN_REQUEST_SCOPE, "the key").await.unwrap(), Some(holder.clone()));
    assert_eq!(store.claim_holder(RUN_REQUEST_SCOPE, "another").await.unwrap(), None);
    assert_eq!(store.claim_holder("another", "the key").await.unwrap(), None);

    // A second claim of the key is refused, together with the rest of its commit.
    let before = read_view(&*store).await;
    let mut second = generator.create();
    request(&mut second, "the key", "of another request");
    let refused =
        store.commit(JournalCommit { changes: vec![generator.create(), second.clone()] }).await.unwrap_err();
    assert_claimed(refused, &holder);
    assert_eq!(read_view(&*store).await, before, "nothing of a refused commit is left behind");

    // The same within one commit: the error names the first of the two as the holder.
    let (mut one, mut two) = (generator.create(), generator.create());
    request(&mut one, "a new key", "one");
    request(&mut two, "a new key", "two");
    let rival = ClaimHolder { run_id: one.run.run_id, fingerprint: "one".to_owned() };
    let refused = store.commit(JournalCommit { changes: vec![one, two] }).await.unwrap_err();
    assert_claimed(refused, &rival);
    assert_eq!(read_view(&*store).await, before);

    // A refusal names a run that is already stored, even if both commits arrive together.
    for round in 0..20 {
        let (mut one, mut two) = (generator.create(), generator.create());
        request(&mut one, &format!("at once {round}"), "one");
        request(&mut two, &format!("at once {round}"), "two");
        let (one, two) = tokio::join!(holder_if_refused(&*store, one), holder_if_refused(&*store, two));
        assert!(one.is_some() != two.is_some(), "exactly one is refused");
    }
    let before = read_view(&*store).await;

    drop(store);
    if place.durability() == TestStoreDurability::Durable {
        let store = open(&*place).await;
        assert_eq!(read_view(&*store).await, before);
        assert_claimed(store.commit(single_commit(second)).await.unwrap_err(), &holder);
    }
}

/// Commits a change. If its key is taken, returns the holder, which must be readable.
async fn holder_if_refused(store: &dyn Store, change: RunChange) -> Option<RunId> {
    match store.commit(single_commit(change)).await {
        Ok(_) => None,
        Err(StoreError::KeyTaken { holder, .. }) => {
            assert!(store.run(holder.run_id).await.unwrap().is_some(), "the holder is not stored yet");
            Some(holder.run_id)
        }
        Err(other) => panic!("not the taken key that it is: {other}"),
    }
}

fn request(change: &mut RunChange, key: &str, fingerprint: &str) {
    let RunEvent::RunCreated(new) = &mut change.event else { panic!("not a new run") };
    new.idempotency = Some(IdempotencyClaim { key: key.to_owned(), fingerprint: fingerprint.to_owned() });
}

fn assert_claimed(refused: StoreError, expected: &ClaimHolder) {
    let StoreError::KeyTaken { scope, holder, .. } = refused else {
        panic!("not the taken key that it is: {refused}")
    };
    assert_eq!((scope.as_str(), &holder), (RUN_REQUEST_SCOPE, expected));
}
