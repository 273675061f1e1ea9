//! The ledgers of all released versions can be opened, migrated, verified and continued.
//!
//! The next fixture is written by `cargo run -p abide-store --example fixture`.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_ports::store::{JournalSeq, Store};
use abide_store::{registry, verification};
use abide_testkit::history::HistoryGenerator;

fn folders() -> Vec<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut folders: Vec<_> = fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

async fn check(store: Arc<dyn Store>, folder: &Path) {
    let head: u64 = fs::read_to_string(folder.join("head")).unwrap().trim().parse().unwrap();
    assert_eq!(store.head().await.unwrap(), JournalSeq(head));
    let verification = verification::verify(&*store, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{}: {:?}", folder.display(), verification.findings);
    assert_eq!(verification.entries, head);
    // Old runs can be continued, and new ones can begin.
    let before = verification::rebuild(&*store, |_| {}).await.unwrap();
    assert_eq!(before, verification.runs);
    for commit in HistoryGenerator::new(1, 77).commits(10) {
        store.commit(commit).await.unwrap();
    }
    let verification = verification::verify(&*store, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{}: {:?}", folder.display(), verification.findings);
}

#[tokio::test]
async fn every_sqlite_database_ever_released_opens_and_continues() {
    for folder in folders() {
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join("abide.db");
        fs::copy(folder.join("abide.db"), &path).unwrap();
        let witness = folder.join("abide.db-witness");
        if witness.exists() {
            fs::copy(witness, copy.path().join("abide.db-witness")).unwrap();
        }
        let store = registry::open(&format!("sqlite:{}", path.display())).await.unwrap();
        check(store, &folder).await;
    }
}

#[tokio::test]
async fn every_postgres_schema_ever_released_opens_and_continues() {
    let server = server::postgres_url();
    for folder in folders() {
        let url = server::new_schema(&server);
        let schema = url.split("schema=").last().unwrap();
        let dump = fs::read_to_string(folder.join("postgres.sql")).unwrap().replace("abide_fixture", schema);
        let (client, connection) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(&dump).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
        check(registry::open(&url).await.unwrap(), &folder).await;
    }
}
