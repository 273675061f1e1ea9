//! Inspection of a database that a daemon uses: it is verified and copied, and never written, while the daemon commits.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use abide_domain::id::RunId;
use abide_ports::store::{
    Journal, JournalCommit, JournalSeq, RunTables, StoreError, StoreMaintenance, StoreQueries,
};
use abide_store::{registry, sqlite::SqliteStore, verification};
use abide_testkit::{history::HistoryGenerator, wait};

/// A task that commits without pauses until it is stopped.
struct BusyWriter {
    store: Arc<SqliteStore>,
    stop: Arc<AtomicBool>,
    /// The last acknowledged head of the journal.
    acknowledged: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Vec<RunId>>>,
}

impl BusyWriter {
    async fn start(path: &Path) -> Self {
        let store = Arc::new(SqliteStore::open(path).unwrap());
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..4_u16)
            .map(|name| {
                let (store, stop, acknowledged) = (store.clone(), stop.clone(), acknowledged.clone());
                tokio::spawn(async move {
                    let mut author = HistoryGenerator::new(u64::from(name), name + 1).with_runs(10_000);
                    let mut runs = Vec::new();
                    while !stop.load(Ordering::Acquire) {
                        let change = author.create();
                        let run = change.run.run_id;
                        let committed = store.commit(JournalCommit { changes: vec![change] }).await.unwrap();
                        runs.push(run);
                        acknowledged.fetch_max(committed.last.0, Ordering::AcqRel);
                    }
                    runs
                })
            })
            .collect();
        let busy = Self { store, stop, acknowledged, tasks };
        busy.wait_for_seq(50).await;
        busy
    }

    async fn wait_for_seq(&self, seq: u64) {
        let acknowledged = async {
            while self.acknowledged.load(Ordering::Acquire) < seq {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(wait::LIMIT, acknowledged).await.expect("commits are acknowledged");
    }

    async fn end(self) -> (Arc<SqliteStore>, Vec<RunId>) {
        self.stop.store(true, Ordering::Release);
        let mut runs = Vec::new();
        for task in self.tasks {
            runs.extend(task.await.unwrap());
        }
        (self.store, runs)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_made_under_load_verifies_and_has_everything_acknowledged_before_it_began() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let busy = BusyWriter::start(&path).await;
    let beside = registry::open_for_inspection(&format!("sqlite:{}", path.display())).await.unwrap();
    for round in 0..3_u64 {
        busy.wait_for_seq(50 + 200 * round).await;
        let before = busy.acknowledged.load(Ordering::Acquire);
        let entries = busy.store.entries(JournalSeq(0), usize::MAX >> 1).await.unwrap();
        let copy = folder.path().join(format!("copy-{round}.db"));
        beside.backup(&copy).await.unwrap();
        let copied = SqliteStore::open(&copy).unwrap();
        assert!(copied.head().await.unwrap() >= JournalSeq(before));
        for entry in entries.iter().filter(|entry| entry.seq.0 <= before) {
            assert!(copied.run(entry.run_id).await.unwrap().is_some(), "{} is missing", entry.run_id);
        }
        let verification = verification::verify(&copied, |_| {}).await.unwrap();
        assert!(verification.is_clean(), "{:?}", verification.findings);
    }
    let (store, runs) = busy.end().await;
    assert_eq!(store.count_by_status().await.unwrap().values().sum::<u64>(), runs.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_in_use_is_verified_beside_its_daemon_and_cannot_be_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let busy = BusyWriter::start(&path).await;
    let beside = SqliteStore::open_for_inspection(&path).unwrap();
    let verification = verification::verify(&beside, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{:?}", verification.findings);
    assert!(verification.entries >= 50);
    let (_store, runs) = busy.end().await;
    let refused = beside.replace_tables(runs[0], RunTables::default()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("abide down --keep"), "{refused}");
}

#[tokio::test]
async fn inspection_creates_no_database_and_keeps_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    assert!(SqliteStore::open_for_inspection(&path).unwrap_err().to_string().contains("does not exist"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(SqliteStore::open(&path).unwrap());
    drop(SqliteStore::open_for_inspection(&path).unwrap());
    drop(SqliteStore::open(&path).unwrap());
}
