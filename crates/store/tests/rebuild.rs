//! Rebuilt tables equal the live ones after random histories, and modified rows are detected and named.

mod providers;
mod server;

use std::sync::Arc;

use abide_ports::store::{RunTables, Store};
use abide_store::{registry::STORE_KINDS, sqlite::SqliteStore, verification};
use abide_testkit::{
    history::HistoryGenerator,
    seeded_rng::SeededRng,
    store::{TestStorePlace, read_view},
};

const SEEDS: u64 = 6;

async fn filled_store(fixture: &dyn TestStorePlace, seed: u64) -> (Arc<dyn Store>, HistoryGenerator) {
    let store = fixture.open().await.expect("the store opens");
    let mut history = HistoryGenerator::new(seed, 1);
    for commit in history.commits(50) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
    (store, history)
}

async fn verification_findings(store: &dyn Store) -> Vec<String> {
    let verification = verification::verify(store, |_| {}).await.expect("verification ends");
    verification.findings.iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilt_tables_equal_the_live_ones() {
    for kind in STORE_KINDS {
        let fixtures = providers::fixtures_for(kind.scheme);
        for seed in 100..100 + SEEDS {
            let fixture = fixtures.new_place();
            let (store, history) = filled_store(&*fixture, seed).await;
            assert_eq!(verification_findings(&*store).await, Vec::<String>::new());
            let before = read_view(&*store).await;
            // Rebuilding correct tables changes nothing, and rebuilding deleted ones restores them.
            let runs = verification::rebuild(&*store, |_| {}).await.expect("it can be rebuilt");
            assert_eq!(runs as usize, history.runs().len());
            assert_eq!(read_view(&*store).await, before, "{} seed {seed}", kind.scheme);
            for &run in history.runs().keys() {
                store.replace_tables(run, RunTables::default()).await.expect("it can be emptied");
            }
            verification::rebuild(&*store, |_| {}).await.expect("it can be rebuilt");
            assert_eq!(read_view(&*store).await, before, "{} seed {seed}", kind.scheme);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_journal_entries_is_reported() {
    for kind in STORE_KINDS {
        let fixture = providers::fixtures_for(kind.scheme).new_place();
        let (store, history) = filled_store(&*fixture, 7).await;
        let mut rng = SeededRng::new(7);
        let before = read_view(&*store).await;
        for (table, tamper) in TAMPERINGS {
            let runs: Vec<_> = history.runs().keys().copied().collect();
            let mut tampered = None;
            for _ in 0..100 {
                let run = rng.choose_nonempty(&runs);
                let mut tables = store.tables_of(run).await.unwrap();
                if tamper(&mut tables) {
                    store.replace_tables(run, tables).await.unwrap();
                    tampered = Some(run);
                    break;
                }
            }
            let run = tampered.expect("some run has a row to tamper with");
            let expected = format!("run {run}: the tables differ from the journal in {table}");
            assert_eq!(verification_findings(&*store).await, [expected], "{}", kind.scheme);
            verification::rebuild(&*store, |_| {}).await.expect("it can be rebuilt");
            assert_eq!(read_view(&*store).await, before);
        }
    }
}

type TableTampering = fn(&mut RunTables) -> bool;

/// Modifications of a run's tables. Each returns whether there was anything to modify.
const TAMPERINGS: [(&str, TableTampering); 6] = [
    ("runs", |tables| tables.run.as_mut().map(|run| run.auto_decision_count += 1).is_some()),
    ("inbound", |tables| tables.inbound.pop_first().is_some()),
    ("turns", |tables| tables.turns.first_entry().map(|mut turn| turn.get_mut().turn_index += 1).is_some()),
    ("interactions", |tables| tables.interactions.pop_last().is_some()),
    ("deliveries", |tables| {
        tables.deliveries.first_entry().map(|mut row| row.get_mut().created_at.0 += 1).is_some()
    }),
    ("claims", |tables| tables.claims.pop().is_some()),
];

#[tokio::test(flavor = "multi_thread")]
async fn rot_in_a_file_is_found_and_named() {
    // The SQL of each damage, and the expected message.
    let rot = [
        (
            "UPDATE journal SET event = replace(event, 'parrot', 'carrot') WHERE seq = 1",
            "entry 1 of the journal does not match its checksum",
        ),
        (
            "UPDATE journal SET at = at + 1 WHERE seq = 3",
            "entry 3 of the journal does not match its checksum",
        ),
        (
            "UPDATE runs SET status = 'lost' WHERE rowid = 1",
            "of runs is inconsistent: its indexed columns do not match its body",
        ),
        (
            "UPDATE runs SET deadline_at = 5, activity = 3 - coalesce(activity, 0) WHERE rowid = 1",
            "of runs is inconsistent: its indexed columns do not match its body",
        ),
        ("UPDATE turns SET body = '{' WHERE rowid = 1", "of turns cannot be read"),
        (
            "UPDATE interactions SET open = 1 - open WHERE rowid = 1",
            "of interactions is inconsistent: its indexed columns do not match its body",
        ),
        (
            "UPDATE deliveries SET retry_pending = 1 - retry_pending WHERE rowid = 1",
            "of deliveries is inconsistent: its indexed columns do not match its body",
        ),
    ];
    for (sql, expected) in rot {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abide.db");
        let store = SqliteStore::open(&path).unwrap();
        for commit in HistoryGenerator::new(8, 1).commits(80) {
            abide_ports::store::Journal::commit(&store, commit).await.unwrap();
        }
        rusqlite::Connection::open(&path).unwrap().execute(sql, []).unwrap();
        let findings = verification_findings(&store).await;
        assert!(findings.iter().any(|finding| finding.contains(expected)), "{sql}: {findings:?}");
    }
}
