//! Missing acknowledged input is detected, whatever the cause, and there are no false positives.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, Ordering},
};

use abide_ports::store::{Journal, JournalSeq, StoreError, StoreMaintenance, StoreQueries};
use abide_store::{
    LossPolicy,
    sqlite::{SqliteOptions, SqliteStore, restore},
    verification,
};
use abide_testkit::history::HistoryGenerator;
use tempfile::TempDir;

/// The database of a killed daemon: with commits in its log.
struct KilledDatabase {
    folder: TempDir,
    path: PathBuf,
    head: JournalSeq,
    author: HistoryGenerator,
}

impl KilledDatabase {
    async fn with_commits(commits: usize) -> Self {
        let live = tempfile::tempdir().unwrap();
        let path = live.path().join("abide.db");
        let store = SqliteStore::open(&path).unwrap();
        let mut author = HistoryGenerator::new(3, 1);
        for commit in author.commits(commits) {
            store.commit(commit).await.unwrap();
        }
        let head = store.head().await.unwrap();
        // A copy of the open files equals the files of a killed daemon.
        let folder = tempfile::tempdir().unwrap();
        for file in ["abide.db", "abide.db-wal", "abide.db-shm", "abide.db-witness", "abide.db.lock"] {
            fs::copy(live.path().join(file), folder.path().join(file)).unwrap();
        }
        let path = folder.path().join("abide.db");
        Self { folder, path, head, author }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| !path.to_str().unwrap().ends_with("-shm"))
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    }
}

fn accept_loss_options() -> SqliteOptions {
    let mut options = SqliteOptions::default();
    options.loss = LossPolicy::Accept;
    options
}

fn refused(path: &Path) -> String {
    let error = SqliteStore::open(path).expect_err("it must not open");
    assert!(matches!(error, StoreError::InputLost { .. }), "{error}");
    error.to_string()
}

async fn check_commit_and_verify(store: &SqliteStore) {
    static NAMES: AtomicU16 = AtomicU16::new(1000);
    let name = NAMES.fetch_add(1, Ordering::Relaxed);
    store.commit(HistoryGenerator::new(77, name).commit()).await.expect("it continues");
    let verification = verification::verify(store, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{:?}", verification.findings);
}

#[tokio::test]
async fn the_files_of_a_killed_daemon_are_complete() {
    let killed = KilledDatabase::with_commits(30).await;
    let store = SqliteStore::open(&killed.path).unwrap();
    assert_eq!(store.head().await.unwrap(), killed.head);
    assert_eq!(store.notes(), &[] as &[String]);
    check_commit_and_verify(&store).await;
}

#[tokio::test]
async fn an_emptied_or_cut_log_is_refused_and_can_be_accepted() {
    for keep in [0.0, 0.3, 0.5, 0.9] {
        let mut killed = KilledDatabase::with_commits(40).await;
        let log = killed.file("abide.db-wal");
        let whole = fs::read(&log).unwrap();
        let kept = (whole.len() as f64 * keep) as usize;
        fs::write(&log, &whole[..kept]).unwrap();
        let before = killed.bytes();
        let message = refused(&killed.path);
        for part in ["abide.db", &format!("entry {}", killed.head.0), "abide restore FILE", "--accept-loss"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert_eq!(killed.bytes(), before, "a database that is refused is left as it was found");
        // With its log restored, everything is present again.
        fs::write(&log, &whole).unwrap();
        let head = SqliteStore::open_for_inspection(&killed.path).unwrap().head().await.unwrap();
        assert_eq!(head, killed.head);

        let killed_again = KilledDatabase::with_commits(40).await;
        let log = killed_again.file("abide.db-wal");
        fs::write(&log, &whole[..kept]).unwrap();
        let store = SqliteStore::open_with(&killed_again.path, &accept_loss_options()).unwrap();
        assert!(store.head().await.unwrap() < killed.head);
        assert!(store.notes().iter().any(|note| note.contains("--accept-loss")), "{:?}", store.notes());
        check_commit_and_verify(&store).await;
        drop(store);
        let store = SqliteStore::open(&killed_again.path).expect("once accepted, it is as good as any");
        assert_eq!(store.notes(), &[] as &[String]);
        check_commit_and_verify(&store).await;
        killed.author.commit();
    }
}

#[tokio::test]
async fn a_deleted_log_is_refused_and_can_be_accepted() {
    let killed = KilledDatabase::with_commits(30).await;
    fs::remove_file(killed.file("abide.db-wal")).unwrap();
    let message = SqliteStore::open(&killed.path).unwrap_err().to_string();
    assert!(message.contains("abide.db-wal is missing") && message.contains("--accept-loss"), "{message}");
    let store = SqliteStore::open_with(&killed.path, &accept_loss_options()).unwrap();
    check_commit_and_verify(&store).await;
}

#[tokio::test]
async fn a_log_that_another_program_moved_into_the_database_is_not_missed() {
    let killed = KilledDatabase::with_commits(30).await;
    let other = rusqlite::Connection::open(&killed.path).unwrap();
    let entries: i64 = other.query_row("SELECT count(*) FROM journal", [], |row| row.get(0)).unwrap();
    assert!(entries > 0);
    other.close().unwrap();
    assert!(!killed.file("abide.db-wal").exists(), "closing moves the log into the database");
    assert_eq!(SqliteStore::open_for_inspection(&killed.path).unwrap().head().await.unwrap(), killed.head);
    let store = SqliteStore::open(&killed.path).unwrap();
    assert_eq!(store.head().await.unwrap(), killed.head);
    check_commit_and_verify(&store).await;
}

#[tokio::test]
async fn an_older_or_another_copy_in_its_place_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let mut author = HistoryGenerator::new(5, 1);
    let mut open = async |commits: usize| {
        let store = SqliteStore::open(&path).unwrap();
        for commit in author.commits(commits) {
            store.commit(commit).await.unwrap();
        }
        drop(store);
        fs::read(&path).unwrap()
    };
    let old = open(20).await;
    let new = open(1).await;
    fs::write(&path, &old).unwrap();
    assert!(refused(&path).contains("older copy"));
    // A database with another, longer history.
    let other = tempfile::tempdir().unwrap();
    let longer = other.path().join("abide.db");
    let store = SqliteStore::open(&longer).unwrap();
    for commit in HistoryGenerator::new(6, 1).commits(60) {
        store.commit(commit).await.unwrap();
    }
    drop(store);
    fs::copy(&longer, &path).unwrap();
    assert!(refused(&path).contains("another copy"));
    fs::remove_file(&path).unwrap();
    let message = SqliteStore::open(&path).unwrap_err().to_string();
    assert!(message.contains("is missing or empty") && message.contains("--accept-loss"), "{message}");
    // Even without the lock file, a missing database is not treated as a new one.
    fs::remove_file(path.with_file_name("abide.db.lock")).unwrap();
    refused(&path);
    fs::write(&path, &new).unwrap();
    check_commit_and_verify(&SqliteStore::open(&path).expect("the right one opens")).await;
}

#[tokio::test]
async fn an_accepted_total_loss_starts_empty_and_keeps_the_log() {
    let killed = KilledDatabase::with_commits(30).await;
    let log = fs::read(killed.file("abide.db-wal")).unwrap();
    fs::remove_file(&killed.path).unwrap();
    assert!(SqliteStore::open(&killed.path).is_err());
    let store = SqliteStore::open_with(&killed.path, &accept_loss_options()).unwrap();
    assert_eq!(store.head().await.unwrap(), JournalSeq(0));
    assert_eq!(fs::read(killed.file("abide.db-wal-lost-1")).unwrap(), log);
    check_commit_and_verify(&store).await;
}

#[tokio::test]
async fn a_missing_index_of_the_log_costs_nothing() {
    let killed = KilledDatabase::with_commits(30).await;
    fs::remove_file(killed.file("abide.db-shm")).unwrap();
    let store = SqliteStore::open(&killed.path).unwrap();
    assert_eq!(store.head().await.unwrap(), killed.head);
}

#[tokio::test]
async fn a_missing_or_broken_witness_is_reported_and_recreated() {
    for broken in [None, Some(vec![]), Some(vec![0xa5; 1024])] {
        let killed = KilledDatabase::with_commits(20).await;
        let witness = killed.file("abide.db-witness");
        match &broken {
            None => fs::remove_file(&witness).unwrap(),
            Some(bytes) => fs::write(&witness, bytes).unwrap(),
        }
        // Opening for inspection leaves it unchanged.
        let looked = SqliteStore::open_for_inspection(&killed.path).unwrap();
        assert_eq!(looked.notes().len(), 1, "{:?}", looked.notes());
        drop(looked);
        let store = SqliteStore::open(&killed.path).unwrap();
        assert_eq!(store.head().await.unwrap(), killed.head);
        let [note] = store.notes() else { panic!("{:?}", store.notes()) };
        assert!(note.contains("abide.db-witness") && note.contains("it is unknown whether"), "{note}");
        check_commit_and_verify(&store).await;
        drop(store);
        assert_eq!(SqliteStore::open(&killed.path).unwrap().notes(), &[] as &[String]);
    }
}

#[tokio::test]
async fn a_witness_that_lags_behind_its_database_is_normal() {
    let killed = KilledDatabase::with_commits(20).await;
    let witness = fs::read(killed.file("abide.db-witness")).unwrap();
    let store = SqliteStore::open(&killed.path).unwrap();
    let mut author = killed.author.clone();
    for commit in author.commits(10) {
        store.commit(commit).await.unwrap();
    }
    drop(store);
    fs::write(killed.file("abide.db-witness"), witness).unwrap();
    let store = SqliteStore::open(&killed.path).unwrap();
    assert_eq!(store.notes(), &[] as &[String]);
    check_commit_and_verify(&store).await;
}

#[tokio::test]
async fn a_restored_backup_is_what_it_was_and_the_old_database_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = (folder.path().join("abide.db"), folder.path().join("a b%20?c.db"));
    let store = SqliteStore::open(&path).unwrap();
    let mut author = HistoryGenerator::new(8, 1);
    for commit in author.commits(20) {
        store.commit(commit).await.unwrap();
    }
    store.backup(&backup).await.unwrap();
    let then = store.head().await.unwrap();
    for commit in author.commits(5) {
        store.commit(commit).await.unwrap();
    }
    let now = store.head().await.unwrap();
    let in_use = restore(&backup, &path).unwrap_err();
    assert!(in_use.to_string().contains("in use by process"), "{in_use}");
    // The database is left as by a killed daemon.
    let killed = tempfile::tempdir().unwrap();
    for file in ["abide.db", "abide.db-wal", "abide.db-witness", "abide.db.lock"] {
        fs::copy(folder.path().join(file), killed.path().join(file)).unwrap();
    }
    let path = killed.path().join("abide.db");
    let bytes = fs::read(&backup).unwrap();
    let restored = restore(&backup, &path).unwrap();
    assert_eq!((restored.head, restored.acknowledged_head), (then, Some(now)));
    assert_eq!(fs::read(&backup).unwrap(), bytes, "the backup is left as it was");
    let store = SqliteStore::open(&path).expect("its witness has started again");
    assert_eq!(store.head().await.unwrap(), then);
    assert_eq!(store.notes(), &[] as &[String]);
    check_commit_and_verify(&store).await;
    let kept = restored.previous_path.unwrap();
    let kept = SqliteStore::open(&kept).expect("the previous files are a database with its log");
    assert_eq!(kept.head().await.unwrap(), now);
    drop((store, kept));
    // A second restore within the same second keeps the database under another name.
    let again = restore(&backup, &path).unwrap();
    assert!(again.previous_path.is_some_and(|kept| kept.exists()));
    assert!(!killed.path().join("abide.db-restoring").exists());
}

#[tokio::test]
async fn a_backup_restores_over_garbage_and_where_nothing_was() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = (folder.path().join("abide.db"), folder.path().join("backup.db"));
    let store = SqliteStore::open(&path).unwrap();
    store.commit(HistoryGenerator::new(8, 1).commit()).await.unwrap();
    store.backup(&backup).await.unwrap();
    drop(store);
    fs::write(&path, "garbage").unwrap();
    let kept = restore(&backup, &path).unwrap().previous_path.unwrap();
    assert_eq!(fs::read(kept).unwrap(), b"garbage");
    check_commit_and_verify(&SqliteStore::open(&path).unwrap()).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("abide.db");
    assert_eq!(restore(&backup, &path).unwrap().previous_path, None);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.count_by_status().await.unwrap().values().sum::<u64>(), 1);
}

#[tokio::test]
async fn invalid_backups_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = (folder.path().join("abide.db"), folder.path().join("backup.db"));
    let store = SqliteStore::open(&path).unwrap();
    for commit in HistoryGenerator::new(8, 1).commits(30) {
        store.commit(commit).await.unwrap();
    }
    store.backup(&backup).await.unwrap();
    let in_use = fs::read(&path).unwrap();
    drop(store);
    let whole = fs::read(&backup).unwrap();
    let before = fs::read(&path).unwrap();
    let edited = |sql: &str| {
        fs::write(&backup, &whole).unwrap();
        rusqlite::Connection::open(&backup).unwrap().execute_batch(sql).unwrap();
        fs::read(&backup).unwrap()
    };
    let bad: [(&str, Vec<u8>, &str); 9] = [
        ("empty", vec![], "no store of Abide"),
        ("short", whole[..50].to_vec(), "backup.db"),
        ("half", whole[..whole.len() / 2].to_vec(), "backup.db"),
        ("garbage", vec![0x5a; 20_000], "backup.db"),
        ("in use", in_use, "log"),
        ("newer", edited("INSERT INTO migrations VALUES (99, 'from the future', 1)"), "newer Abide"),
        ("foreign", edited("PRAGMA application_id = 7"), "another program"),
        ("gap", edited("DELETE FROM journal WHERE seq = 3"), "the journal has"),
        ("tables", edited("DROP TABLE journal"), "no store of Abide"),
    ];
    for (name, bytes, expected) in bad {
        fs::write(&backup, bytes).unwrap();
        let error = restore(&backup, &path).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert_eq!(fs::read(&path).unwrap(), before, "{name}");
        assert!(!folder.path().join("abide.db-restoring").exists(), "{name}");
    }
    for (file, expected) in [(folder.path(), "not a file"), (&path, "the database itself")] {
        let error = restore(file, &path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(restore(&folder.path().join("none"), &path).unwrap_err().to_string().contains("cannot be read"));
    check_commit_and_verify(&SqliteStore::open(&path).unwrap()).await;
}
