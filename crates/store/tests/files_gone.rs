//! Database files that are deleted, replaced or truncated while a store has them open: no further commit is
//! acknowledged.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::{fs, path::Path};

use abide_ports::store::{Journal, StoreError, StoreMaintenance};
use abide_store::sqlite::SqliteStore;
use abide_testkit::{history::HistoryGenerator, wait};

type FileHarm = fn(&Path, &[u8]);

/// The damage to the files, and the expected message. The bytes are those of an older copy.
const FILE_HARMS: [(&str, &str, FileHarm); 7] = [
    ("deleted", "abide.db was deleted", |path, _| fs::remove_file(path).unwrap()),
    ("replaced", "abide.db was replaced", |path, old| {
        fs::write(path.with_file_name("new"), old).unwrap();
        fs::rename(path.with_file_name("new"), path).unwrap();
    }),
    ("overwritten", "was written to by another program", |path, old| {
        let now = fs::metadata(path).unwrap().len() as usize;
        fs::write(path, old).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_len(now as u64).unwrap();
    }),
    ("cut", "abide.db was truncated", |path, _| {
        fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
    }),
    ("log deleted", "abide.db-wal was deleted", |path, _| {
        fs::remove_file(path.with_file_name("abide.db-wal")).unwrap();
    }),
    ("log emptied", "abide.db-wal was truncated", |path, _| {
        fs::File::options()
            .write(true)
            .open(path.with_file_name("abide.db-wal"))
            .unwrap()
            .set_len(0)
            .unwrap();
    }),
    ("home deleted", "abide.db was deleted", |path, _| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
];

async fn open_filled(path: &Path) -> (SqliteStore, HistoryGenerator, Vec<u8>) {
    let mut author = HistoryGenerator::new(3, 1);
    let store = SqliteStore::open(path).unwrap();
    store.commit(author.commit()).await.unwrap();
    drop(store);
    let old = fs::read(path).unwrap();
    let store = SqliteStore::open(path).unwrap();
    for commit in author.commits(40) {
        store.commit(commit).await.unwrap();
    }
    drop(store);
    let store = SqliteStore::open(path).unwrap();
    for commit in author.commits(5) {
        store.commit(commit).await.unwrap();
    }
    (store, author, old)
}

#[tokio::test]
async fn no_commit_is_acknowledged_after_the_files_were_harmed() {
    for (name, expected, harm) in FILE_HARMS {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        let (store, mut author, old) = open_filled(&home.join("abide.db")).await;
        store.health().unwrap();
        harm(&home.join("abide.db"), &old);
        let error = store.commit(author.commit()).await.unwrap_err();
        assert!(matches!(error, StoreError::FilesGone { .. }), "{name}: {error}");
        assert!(error.to_string().contains(expected), "{name}: {error}");
        assert!(store.health().is_err(), "{name}");
        let reindexed = store.reindex().await;
        assert!(matches!(reindexed, Err(StoreError::FilesGone { .. })), "{name}: {reindexed:?}");
        store.close().await.expect("it can be left");
    }
}

#[tokio::test]
async fn harm_is_noticed_within_seconds_without_a_commit() {
    for (name, expected, harm) in FILE_HARMS {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        let (store, _, old) = open_filled(&home.join("abide.db")).await;
        harm(&home.join("abide.db"), &old);
        let message = wait::until_some(name, || store.health().err()).to_string();
        assert!(message.contains(expected), "{name}: {message}");
    }
}

#[tokio::test]
async fn own_writes_and_checkpoints_are_not_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let store = SqliteStore::open(&path).unwrap();
    let before = fs::metadata(&path).unwrap().len();
    let mut author = HistoryGenerator::new(4, 1).with_runs(400);
    for round in 0.. {
        for commit in author.commits(50) {
            store.commit(commit).await.unwrap();
        }
        store.health().unwrap();
        // A backup and another modification time are accepted.
        store.backup(&folder.path().join(format!("copy-{round}.db"))).await.unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        if fs::metadata(&path).unwrap().len() > before {
            break;
        }
        assert!(round < 200, "the log is never written back");
    }
    // A deleted witness is created again.
    let witness = folder.path().join("abide.db-witness");
    fs::remove_file(&witness).unwrap();
    wait::until("the witness is made again", || witness.exists());
    store.commit(author.commit()).await.unwrap();
    store.health().unwrap();
    drop(store);
    assert_eq!(SqliteStore::open(&path).unwrap().notes(), &[] as &[String]);
}
