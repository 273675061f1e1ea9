//! A run whose row cannot be read does not hide others: lists omit it, and it is reported.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use abide_domain::{id::RunId, time::Timestamp};
use abide_ports::store::{PageRequest, Store};
use abide_store::{
    registry,
    verification::{self, VerificationFinding},
};
use abide_testkit::history::HistoryGenerator;

/// The runs of each list that the daemon's loops use.
async fn listed_runs(store: &dyn Store) -> [Vec<RunId>; 4] {
    let due = store.runs_due(Timestamp(i64::MAX), usize::MAX).await.unwrap();
    let occupying = store.slot_occupancies().await.unwrap();
    let effects = store.pending_effects(None, usize::MAX).await.unwrap();
    let listed = store.runs(None, PageRequest::first(10_000)).await.unwrap();
    [
        due.into_iter().map(|(run, _)| run).collect(),
        occupying.into_iter().map(|(run, _)| run).collect(),
        effects.into_iter().map(|(run, _)| run).collect(),
        listed.items.into_iter().map(|run| run.run_id).collect(),
    ]
}

#[tokio::test]
async fn a_damaged_run_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let store = registry::open(&format!("sqlite:{}", path.display())).await.unwrap();
    for commit in HistoryGenerator::new(11, 1).with_runs(40).commits(400) {
        store.commit(commit).await.unwrap();
    }
    let before = listed_runs(&*store).await;
    // The first run of each list is damaged, so that all others come after a damaged one.
    let mut damaged: Vec<RunId> = before.iter().filter_map(|list| list.first().copied()).collect();
    damaged.sort();
    damaged.dedup();
    assert!(before.iter().all(|list| list.len() > 1), "the history is long enough: {before:?}");
    let bodies = ["", "{", "{\"run_id\": 7}", "null"];
    let beside = rusqlite::Connection::open(&path).unwrap();
    for (run, body) in damaged.iter().zip(bodies.iter().cycle()) {
        let written = "UPDATE runs SET body = ?2 WHERE run_id = ?1";
        assert_eq!(beside.execute(written, (run.to_string(), body)).unwrap(), 1);
    }
    let sound = before.map(|list| list.into_iter().filter(|run| !damaged.contains(run)).collect::<Vec<_>>());
    assert_eq!(listed_runs(&*store).await, sound);
    // Pages have the requested length, and continue after damaged rows.
    let first = store.runs_due(Timestamp(i64::MAX), 1).await.unwrap();
    assert_eq!(first.first().map(|(run, _)| *run), sound[0].first().copied());
    let effects = store.pending_effects(None, 1).await.unwrap();
    assert_eq!(effects.first().map(|(run, _)| *run), sound[2].first().copied());
    let named: Vec<String> = store.damaged_runs().await.unwrap().into_iter().map(|run| run.run_id).collect();
    for list in [&sound[0], &sound[1], &sound[2]] {
        assert!(list.iter().all(|run| !named.contains(&run.to_string())));
    }
    assert!(damaged.iter().any(|run| named.contains(&run.to_string())), "{named:?}");
}

#[tokio::test]
async fn a_damaged_row_is_distinguished_from_a_damaged_entry_and_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let store = registry::open(&format!("sqlite:{}", path.display())).await.unwrap();
    for commit in HistoryGenerator::new(12, 1).with_runs(4).commits(40) {
        store.commit(commit).await.unwrap();
    }
    let beside = rusqlite::Connection::open(&path).unwrap();
    beside.execute("UPDATE runs SET body = '{' WHERE run_id = (SELECT min(run_id) FROM runs)", []).unwrap();
    let report = verification::verify(&*store, |_| {}).await.unwrap();
    assert!(matches!(report.findings[..], [VerificationFinding::DamagedRow { .. }]), "{:?}", report.findings);
    verification::rebuild(&*store, |_| {}).await.unwrap();
    let report = verification::verify(&*store, |_| {}).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);

    beside.execute("UPDATE journal SET event = '{' WHERE seq = 1", []).unwrap();
    let report = verification::verify(&*store, |_| {}).await.unwrap();
    assert!(
        report.findings.iter().any(|finding| matches!(finding, VerificationFinding::DamagedEntry { .. })),
        "{:?}",
        report.findings
    );
}
