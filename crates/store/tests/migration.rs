//! The migration of a store with the first names: it changes names and nothing else, is complete after a crash, and hides
//! no damage.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
};

use abide_domain::run::{RunState, RunStatus};
use abide_ports::store::{JournalSeq, PageRequest, Store, StoreError, StoreQueries};
use abide_store::{
    registry::{self, StoreOptions},
    sqlite::{self, SqliteStore},
    verification,
};
use abide_testkit::store::assert_equal;
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

/// The names that no stored value has any more, except in texts and labels of people.
const OLD_NAMES: [&str; 16] = [
    "owed",
    "auto_decisions_in_a_row",
    "cause",
    "asker",
    "because",
    "carries",
    "ending",
    "aftermath",
    "within",
    "heard",
    "must_confirm",
    "losses",
    "searched",
    "work_left",
    "hold",
    "cut",
];

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/v0.1.0-first-names")
}

/// A copy of the SQLite fixture with its witness.
fn copy_of_fixture() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for file in ["abide.db", "abide.db-witness"] {
        fs::copy(fixture().join(file), folder.path().join(file)).unwrap();
    }
    let path = folder.path().join("abide.db");
    (folder, path)
}

fn fixture_head() -> JournalSeq {
    JournalSeq(fs::read_to_string(fixture().join("head")).unwrap().trim().parse().unwrap())
}

async fn assert_clean(store: &dyn Store) {
    let report = verification::verify(store, |_| {}).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.entries, fixture_head().0);
    assert_eq!(report.notes, Vec::<String>::new());
}

async fn findings(store: &dyn Store) -> Vec<String> {
    let report = verification::verify(store, |_| {}).await.unwrap();
    report.findings.iter().map(ToString::to_string).collect()
}

/// All names of fields and variants in a value, except the labels of people.
fn collect_names(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                names.insert(name.clone());
                if name != "labels" {
                    collect_names(value, names);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_names(value, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn names_change_and_nothing_else() {
    let (_folder, path) = copy_of_fixture();
    let store = SqliteStore::open(&path).unwrap();
    assert_clean(&store).await;
    let runs = store.runs(None, PageRequest::first(1000)).await.unwrap().items;
    let count = |status| runs.iter().filter(|run| run.status() == status).count();
    assert_eq!([RunStatus::WaitingUser, RunStatus::Running, RunStatus::Succeeded].map(count), [1, 3, 1]);
    assert!(
        runs.iter().any(|run| matches!(&run.state, RunState::WaitingUser(_)) && run.waiting_gates.len() == 1)
    );
    let labelled = runs.iter().find(|run| run.settings.labels.contains_key("owed")).unwrap();
    assert_eq!(labelled.settings.labels.get("owed").map(String::as_str), Some("heard"));
    assert_eq!(labelled.settings.labels.get("cause").map(String::as_str), Some("unseen"));
    drop(store);
    let database = Connection::open(&path).unwrap();
    let mut names = BTreeSet::new();
    for source in [
        "event FROM journal",
        "body FROM runs",
        "body FROM turns",
        "body FROM interactions",
        "body FROM deliveries",
    ] {
        let mut query = database.prepare(&format!("SELECT {source}")).unwrap();
        for text in query.query_map([], |row| row.get::<_, String>(0)).unwrap() {
            collect_names(&serde_json::from_str(&text.unwrap()).unwrap(), &mut names);
        }
    }
    assert!(names.len() > 60, "{names:?}");
    let old: Vec<_> = OLD_NAMES.iter().filter(|name| names.contains(**name)).collect();
    assert_eq!(old, Vec::<&&str>::new());
    for name in ["pending_effects", "trigger", "origin", "processed_position", "other_fields", "truncated"] {
        assert!(names.contains(name), "{name}");
    }
}

#[tokio::test]
async fn a_crash_before_the_witness_is_rewritten_is_recovered() {
    let (_folder, path) = copy_of_fixture();
    let old_witness = fs::read(path.with_file_name("abide.db-witness")).unwrap();
    // An inspection migrates the journal and does not touch the witness, like a crash between the two.
    let inspected = SqliteStore::open_for_inspection(&path).unwrap();
    assert_clean(&inspected).await;
    drop(inspected);
    assert_eq!(fs::read(path.with_file_name("abide.db-witness")).unwrap(), old_witness);
    for _ in 0..2 {
        let store = SqliteStore::open(&path).unwrap();
        assert_clean(&store).await;
        assert_eq!(store.notes(), Vec::<String>::new());
    }
    assert_ne!(fs::read(path.with_file_name("abide.db-witness")).unwrap(), old_witness);
}

#[tokio::test]
async fn a_kill_during_the_migration_leaves_a_store_that_opens() {
    let old_witness = fs::read(fixture().join("abide.db-witness")).unwrap();
    let (_folder, path) = copy_of_fixture();
    let complete_log_bytes = kill_at_log_length(&path, u64::MAX);
    let mut killed_at = BTreeMap::new();
    for round in 0..=KILLS {
        let (_folder, path) = copy_of_fixture();
        // The COMMIT of the migration writes most of the log. The witness is written shortly afterwards.
        kill_at_log_length(&path, complete_log_bytes * round / KILLS);
        let migrations: i64 = Connection::open(&path)
            .unwrap()
            .query_row("SELECT count(*) FROM migrations", [], |row| row.get(0))
            .unwrap();
        let has_old_witness = fs::read(path.with_file_name("abide.db-witness")).unwrap() == old_witness;
        *killed_at.entry((migrations, has_old_witness)).or_insert(0) += 1;
        assert!(migrations == 3 || has_old_witness, "the witness is written after the migration");
        let store = SqliteStore::open(&path).unwrap();
        assert_clean(&store).await;
        assert_eq!(store.notes(), Vec::<String>::new());
    }
    println!("kills by migrations and whether the witness was the old one: {killed_at:?}");
    assert!(
        killed_at.keys().any(|(migrations, _)| *migrations < 3),
        "no kill was before the end: {killed_at:?}"
    );
}

/// The number of kills, at equal distances of the log's length.
const KILLS: u64 = 30;

/// Opens a store in another process, and kills that process when the log of the database has this length, or when the
/// process has exited. Returns the greatest length that was seen.
#[expect(clippy::disallowed_methods, reason = "the process is killed by this test")]
fn kill_at_log_length(path: &Path, log_bytes: u64) -> u64 {
    let test = std::env::current_exe().unwrap();
    let committer = test.parent().unwrap().with_file_name("examples").join("committer");
    assert!(committer.exists(), "`cargo build -p abide-store --examples` makes {}", committer.display());
    let url = format!("sqlite:{}", path.display());
    let mut child =
        Command::new(committer).args([&url, "1", "0", "0"]).stdout(Stdio::null()).spawn().unwrap();
    let log = path.with_file_name("abide.db-wal");
    let mut greatest_length = 0;
    loop {
        let length = fs::metadata(&log).map_or(0, |file| file.len());
        greatest_length = greatest_length.max(length);
        if length >= log_bytes || child.try_wait().unwrap().is_some() {
            break;
        }
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    greatest_length
}

#[tokio::test]
async fn damage_from_before_the_migration_is_still_found_after_it() {
    let damages = [
        (
            "UPDATE journal SET event = replace(event, '\"type\"', '\"kind\"') WHERE seq = 40",
            "entry 40 of the journal",
        ),
        ("UPDATE journal SET chain = chain + 1 WHERE seq = 50", "entry 50 of the journal does not continue"),
        ("UPDATE runs SET body = '{}' WHERE rowid = 3", "of runs cannot be read"),
    ];
    for (sql, expected) in damages {
        let (_folder, path) = copy_of_fixture();
        Connection::open(&path).unwrap().execute(sql, []).unwrap();
        let store = SqliteStore::open(&path).unwrap();
        let findings = findings(&store).await;
        assert!(findings.iter().any(|finding| finding.contains(expected)), "{sql}: {findings:?}");
    }
}

#[tokio::test]
async fn lost_entries_are_found_before_and_after_the_migration() {
    let remove_last = "DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)";
    let (_folder, path) = copy_of_fixture();
    Connection::open(&path).unwrap().execute(remove_last, []).unwrap();
    assert!(matches!(SqliteStore::open(&path), Err(StoreError::InputLost { .. })));
    let (_folder, path) = copy_of_fixture();
    drop(SqliteStore::open_for_inspection(&path).unwrap());
    Connection::open(&path).unwrap().execute(remove_last, []).unwrap();
    assert!(matches!(SqliteStore::open(&path), Err(StoreError::InputLost { .. })));
    // Another journal of the same length is not the witnessed one.
    let (_folder, path) = copy_of_fixture();
    let change = "UPDATE journal SET chain = chain + 1 WHERE seq = (SELECT max(seq) FROM journal)";
    Connection::open(&path).unwrap().execute(change, []).unwrap();
    assert!(matches!(SqliteStore::open(&path), Err(StoreError::InputLost { .. })));
}

#[tokio::test]
async fn a_backup_with_the_first_names_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let report = sqlite::restore(&fixture().join("abide.db"), &path).unwrap();
    assert_eq!(report.head, fixture_head());
    assert_clean(&SqliteStore::open(&path).unwrap()).await;
}

/// Loads the Postgres fixture, and puts a witness from before the migration into a home. Both fixtures have the same
/// journal, so they have the same witness.
async fn load_server_fixture(server: &str) -> (String, TempDir) {
    let url = server::new_schema(server);
    let schema = url.split("schema=").last().unwrap();
    let dump = fs::read_to_string(fixture().join("postgres.sql")).unwrap().replace("abide_fixture", schema);
    let (client, connection) = tokio_postgres::connect(server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&dump).await.unwrap();
    let sql = format!("SELECT value FROM {schema}.meta WHERE key = 'id'");
    let id: String = client.query_one(&sql, &[]).await.unwrap().get(0);
    let home = tempfile::tempdir().unwrap();
    let witness = home.path().join(format!("postgres-{id}.witness"));
    fs::copy(fixture().join("abide.db-witness"), witness).unwrap();
    (url, home)
}

async fn open_server(url: &str, home: &Path) -> Result<Arc<dyn Store>, StoreError> {
    let options = StoreOptions { home: Some(home.to_owned()), ..StoreOptions::default() };
    let opened = registry::open_with(url, options).await?;
    assert_eq!(opened.notes, Vec::<String>::new());
    Ok(opened.store)
}

#[tokio::test]
async fn a_schema_with_the_first_names_has_the_contents_of_the_file() {
    let server = server::postgres_url();
    let (url, home) = load_server_fixture(&server).await;
    let on_server = open_server(&url, home.path()).await.unwrap();
    assert_clean(&*on_server).await;
    let (_folder, path) = copy_of_fixture();
    let in_file = SqliteStore::open(&path).unwrap();
    assert_equal(&*on_server, &in_file).await;
}

#[tokio::test]
async fn a_witness_from_before_the_migration_of_a_schema_is_accepted() {
    let server = server::postgres_url();
    let (url, home) = load_server_fixture(&server).await;
    let witness = fs::read_dir(home.path()).unwrap().next().unwrap().unwrap().path();
    let before = fs::read(&witness).unwrap();
    drop(open_server(&url, home.path()).await.unwrap());
    assert_ne!(fs::read(&witness).unwrap(), before, "the witness follows the migration");
    // The state after a crash between the migration and the rewriting of the witness, or the home of another daemon.
    fs::write(&witness, &before).unwrap();
    let reopened = open_server(&url, home.path()).await.unwrap();
    assert_clean(&*reopened).await;
    drop(reopened);
    // A changed journal is not the witnessed one.
    fs::write(&witness, &before).unwrap();
    let (client, connection) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = url.split("schema=").last().unwrap();
    let sql = format!(
        "UPDATE {schema}.journal SET chain_before_names = 1 WHERE seq = (SELECT max(seq) FROM {schema}.journal)"
    );
    client.execute(&sql, &[]).await.unwrap();
    assert!(matches!(open_server(&url, home.path()).await, Err(StoreError::InputLost { .. })));
}
