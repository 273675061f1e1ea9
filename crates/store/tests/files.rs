//! Defects of a database file: each gives a clear error, or a start with all acknowledged input.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use abide_ports::store::{Journal, JournalSeq, StoreError, StoreMaintenance};
use abide_store::{sqlite::SqliteStore, verification};
use abide_testkit::history::HistoryGenerator;
use tempfile::TempDir;

async fn filled_store(commits: usize) -> (TempDir, PathBuf, SqliteStore, HistoryGenerator) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let store = SqliteStore::open(&path).unwrap();
    let mut author = HistoryGenerator::new(3, 1);
    for commit in author.commits(commits) {
        store.commit(commit).await.unwrap();
    }
    (folder, path, store, author)
}

fn refused(path: &Path) -> StoreError {
    SqliteStore::open(path).expect_err("it must not open")
}

fn log_of(path: &Path) -> PathBuf {
    path.with_file_name("abide.db-wal")
}

async fn assert_clean(store: &SqliteStore) {
    let verification = verification::verify(store, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{:?}", verification.findings);
}

#[tokio::test]
async fn a_second_daemon_gets_the_name_of_the_lock_holder() {
    let (_folder, path, store, _) = filled_store(3).await;
    let error = refused(&path);
    let expected = format!("is in use by process {}; stop it first", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    assert!(matches!(error, StoreError::Unavailable { .. }));
    drop(store);
    SqliteStore::open(&path).expect("it is free again");
}

#[tokio::test]
async fn database_files_are_private() {
    let (folder, _, store, _) = filled_store(3).await;
    store.backup(&folder.path().join("backup.db")).await.unwrap();
    let mut files = 0;
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.path());
        files += 1;
    }
    assert!(files >= 5, "database, log, index, lock and backup");
}

#[tokio::test]
async fn a_copy_without_its_log_is_refused() {
    let (folder, path, store, _) = filled_store(20).await;
    let copy = folder.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    let error = refused(&copy);
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("copy.db-wal is missing"), "{error}");
    drop(store);
    fs::remove_file(&copy).unwrap();
    // After closing, the store consists of the main file only.
    assert!(!log_of(&path).exists());
    let other = tempfile::tempdir().unwrap();
    fs::copy(&path, other.path().join("abide.db")).unwrap();
    SqliteStore::open(&other.path().join("abide.db")).expect("a whole copy");
}

#[tokio::test]
async fn a_copy_with_its_log_has_everything_acknowledged() {
    let (_folder, path, store, _) = filled_store(40).await;
    let head = store.head().await.unwrap();
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("abide.db");
    fs::copy(&path, &copy).unwrap();
    fs::copy(log_of(&path), log_of(&copy)).unwrap();
    let copied = SqliteStore::open(&copy).unwrap();
    assert_eq!(copied.head().await.unwrap(), head);
    assert_clean(&copied).await;
}

#[tokio::test]
async fn a_torn_end_of_the_log_costs_nothing_that_was_acknowledged_before() {
    let (_folder, path, store, mut author) = filled_store(10).await;
    let acknowledged = store.head().await.unwrap();
    let before = fs::metadata(log_of(&path)).unwrap().len();
    store.commit(author.commit()).await.unwrap();
    let (main, log) = (fs::read(&path).unwrap(), fs::read(log_of(&path)).unwrap());
    assert!(log.len() as u64 > before, "the log has grown and was not written back");
    let step = (log.len() - before as usize) / 12 + 1;
    for end in (before as usize..=log.len()).step_by(step) {
        for garbage in [&[][..], &[0xa5; 700]] {
            let other = tempfile::tempdir().unwrap();
            let copy = other.path().join("abide.db");
            fs::write(&copy, &main).unwrap();
            fs::write(log_of(&copy), [&log[..end], garbage].concat()).unwrap();
            let copied = SqliteStore::open(&copy).unwrap();
            assert!(copied.head().await.unwrap() >= acknowledged);
            assert_clean(&copied).await;
            let next = if copied.head().await.unwrap() == acknowledged {
                HistoryGenerator::new(4, 2)
            } else {
                author.clone()
            };
            copied.commit(next.clone().commit()).await.expect("it continues");
        }
    }
}

#[tokio::test]
async fn a_file_that_was_cut_short_is_refused() {
    let (folder, path, store, _) = filled_store(60).await;
    drop(store);
    let whole = fs::read(&path).unwrap();
    for length in [0, 1, 99, 100, 511, 4096, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        println!("{length} of {} bytes", whole.len());
        let error = refused(&path);
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("abide.db"), "{error}");
    }
    fs::write(&path, &whole).unwrap();
    let store = SqliteStore::open(&path).expect("the whole one opens");
    assert_clean(&store).await;
    drop((store, folder));
}

#[tokio::test]
async fn foreign_files_are_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("garbage.db");
    let garbage: Vec<u8> = (0..50_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::write(&path, &garbage).unwrap();
    assert!(matches!(refused(&path), StoreError::Damaged { .. }));
    assert_eq!(fs::read(&path).unwrap(), garbage, "it was not touched");

    let path = folder.path().join("theirs.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let error = refused(&path);
    assert!(matches!(error, StoreError::IncompatibleVersion { .. }), "{error}");
}

#[tokio::test]
async fn a_newer_or_edited_history_of_migrations_is_refused() {
    let changes = [
        ("INSERT INTO migrations VALUES (99, 'from the future', 1)", "newer Abide"),
        ("UPDATE migrations SET checksum = checksum + 1 WHERE number = 1", "edited"),
        ("UPDATE migrations SET name = 'other' WHERE number = 1", "has migration 1"),
    ];
    for (sql, expected) in changes {
        let (_folder, path, store, _) = filled_store(2).await;
        drop(store);
        rusqlite::Connection::open(&path).unwrap().execute(sql, []).unwrap();
        let error = refused(&path);
        assert!(matches!(error, StoreError::IncompatibleVersion { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_gap_or_a_rotten_end_of_the_journal_is_seen_at_once() {
    let rot = [
        ("DELETE FROM journal WHERE seq = 3", "from 1 to"),
        ("UPDATE journal SET event = event || ' ' WHERE seq = (SELECT max(seq) FROM journal)", "checksum"),
    ];
    for (sql, expected) in rot {
        let (_folder, path, store, _) = filled_store(20).await;
        assert!(store.head().await.unwrap() > JournalSeq(5));
        drop(store);
        rusqlite::Connection::open(&path).unwrap().execute(sql, []).unwrap();
        let error = refused(&path);
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
