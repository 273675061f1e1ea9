//! Writes events of runs to a store without a daemon, to prepare the state that a test needs.

use abide_domain::{
    event::RunEvent,
    id::RunId,
    run::{self, Run},
};
use abide_ports::{
    clock::Clock,
    store::{JournalCommit, RunChange, Store},
};

/// Applies an event to a stored run and commits the result. Panics if it is refused or changes nothing.
pub async fn write_event(store: &dyn Store, clock: &dyn Clock, run: RunId, event: RunEvent) -> Run {
    let before = store.run(run).await.expect("the store can be read");
    let stamp = clock.stamp();
    let step = run::apply(before.as_ref(), &stamp, &event).expect("the event is not refused");
    assert_eq!(step.outcome, run::ApplyOutcome::Changed, "{event:?}");
    let change = RunChange::new(before.as_ref(), stamp, event, step);
    let after = Run::clone(&change.run);
    store.commit(JournalCommit { changes: vec![change] }).await.expect("it is written");
    after
}
