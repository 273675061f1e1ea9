//! Writes the ledgers of this version as fixtures for `tests/fixtures.rs` of all later versions.
//!
//! Run it once before a release and commit its output. An existing fixture is never overwritten:
//!
//!     cargo run -p abide-store --example fixture
//!
//! The SQLite database is always written. The Postgres dump is written only if ABIDE_TEST_POSTGRES_URL is set; this
//! needs the program `pg_dump`.

use std::{fs, path::Path, process::Command};

use abide_ports::store::{JournalSeq, Store};
use abide_store::registry;
use abide_testkit::history::HistoryGenerator;

/// The schema name in the dump, which the test replaces by its own.
const SCHEMA: &str = "abide_fixture";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folder = fixtures.join(concat!("v", env!("CARGO_PKG_VERSION")));
    fs::create_dir_all(&folder).expect("the folder can be made");
    let database = folder.join("abide.db");
    if database.exists() {
        println!("{} exists and is left as it is", database.display());
    } else {
        let store = registry::open(&format!("sqlite:{}", database.display())).await.expect("it opens");
        let head = write_history(&*store).await;
        drop(store);
        fs::remove_file(folder.join("abide.db.lock")).expect("the lock is no part of it");
        fs::write(folder.join("head"), format!("{}\n", head.0)).expect("the head can be written");
        println!("{} has {} entries", database.display(), head.0);
    }
    let dump = folder.join("postgres.sql");
    match postgres_url() {
        Some(url) if !dump.exists() => {
            let join = if url.contains('?') { '&' } else { '?' };
            let store = registry::open(&format!("{url}{join}schema={SCHEMA}")).await.expect("it opens");
            write_history(&*store).await;
            fs::write(&dump, dump_schema(&url)).expect("the dump can be written");
            println!("{} is written; drop the schema {SCHEMA} now", dump.display());
        }
        Some(_) => println!("{} exists and is left as it is", dump.display()),
        None => println!("no Postgres dump: ABIDE_TEST_POSTGRES_URL is not set"),
    }
}

/// Writes a history with all kinds of rows, most kinds of events including rare ones, and a reader in the middle of it.
async fn write_history(store: &dyn Store) -> JournalSeq {
    for commit in HistoryGenerator::new(2161, 1).with_runs(8).commits(70) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    let head = store.head().await.expect("it has a head");
    store.advance_cursor("fixture", JournalSeq(head.0 / 2)).await.expect("a reader moves on");
    head
}

#[expect(clippy::disallowed_methods, reason = "the server's own program makes the dump")]
fn dump_schema(url: &str) -> String {
    let arguments = ["--inserts", "--no-owner", "--no-privileges", "--schema", SCHEMA, url];
    let output = Command::new("pg_dump").args(arguments).output().expect("pg_dump is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a dump is text");
    // Commands of psql and settings of the server are omitted.
    let wanted =
        |line: &&str| !line.starts_with(['\\', '-']) && !line.starts_with("SET ") && !line.is_empty();
    text.lines().filter(wanted).map(|line| format!("{line}\n")).collect()
}

#[expect(clippy::disallowed_methods, reason = "the caller says where a server is")]
fn postgres_url() -> Option<String> {
    std::env::var("ABIDE_TEST_POSTGRES_URL").ok()
}
