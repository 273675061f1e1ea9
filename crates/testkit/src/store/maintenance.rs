//! Maintenance operations: tables can be checked, rebuilt and backed up.

use std::sync::Arc;

use abide_ports::store::{JournalSeq, RunTables, Store, StoreError, StoreInputError};

use super::{TestStorePlace, TestStoreProvider, assert_equal, read_view, store_with_history};
use crate::history::HistoryGenerator;

pub(super) async fn check(places: &dyn TestStoreProvider) {
    tables_are_what_the_journal_adds_up_to(places).await;
    replaced_tables_are_what_is_asked_of(places).await;
    a_backup_holds_what_was_there_and_is_never_written_over(places).await;
    a_backup_can_be_made_while_others_write(places).await;
}

async fn tables_are_what_the_journal_adds_up_to(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let (store, generator) = store_with_history(&*place, 41, 80).await;
    let run_ids = store.known_runs(None, usize::MAX).await.unwrap();
    assert_eq!(run_ids, generator.runs().keys().copied().collect::<Vec<_>>());
    for run in run_ids {
        let entries = store.entries_of(run, JournalSeq(0), usize::MAX).await.unwrap();
        let derived = RunTables::derive(&entries).expect("the journal adds up");
        assert_eq!(store.tables_of(run).await.unwrap(), derived);
    }
}

async fn replaced_tables_are_what_is_asked_of(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let (store, generator) = store_with_history(&*place, 42, 60).await;
    let before = read_view(&*store).await;
    for &run in generator.runs().keys() {
        let whole = store.tables_of(run).await.unwrap();
        store.replace_tables(run, RunTables::default()).await.unwrap();
        assert_eq!(store.tables_of(run).await.unwrap(), RunTables::default());
        assert_eq!(store.run(run).await.unwrap(), None);
        let claim = whole.claims.first().expect("every run claims its first message");
        assert_eq!(store.claim_holder(&claim.scope, &claim.key).await.unwrap(), None);
        assert!(store.known_runs(None, 99).await.unwrap().contains(&run), "the journal still knows it");
        store.replace_tables(run, whole.clone()).await.unwrap();
        store.replace_tables(run, whole).await.unwrap();
    }
    assert_eq!(read_view(&*store).await, before);
}

async fn a_backup_holds_what_was_there_and_is_never_written_over(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let (store, mut generator) = store_with_history(&*place, 43, 60).await;
    let file = place.new_file();
    match store.backup(&file).await {
        Ok(()) => {
            let before = read_view(&*store).await;
            let copy = place.open_backup(&file).await.expect("a backup opens");
            assert_equal(&*copy, &*store).await;
            // The backup is an independent store.
            let commit = generator.commit();
            copy.commit(commit.clone()).await.expect("a backup can be written to");
            assert_eq!(read_view(&*store).await, before);
            store.commit(commit).await.expect("so can its original");
            let again = store.backup(&file).await.unwrap_err();
            assert!(matches!(again, StoreError::Invalid(StoreInputError::Location { .. })), "{again}");
            assert_equal(&*copy, &*store).await;
        }
        Err(StoreError::Unsupported { hint }) => assert!(!hint.is_empty(), "it says what to do instead"),
        Err(other) => panic!("no backup: {other}"),
    }
}

async fn a_backup_can_be_made_while_others_write(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let (store, _) = store_with_history(&*place, 44, 40).await;
    let writers: Vec<_> = (2..6).map(|name| tokio::spawn(write(Arc::clone(&store), name))).collect();
    let before = store.head().await.unwrap();
    let file = place.new_file();
    let backup = store.backup(&file).await;
    for writer in writers {
        writer.await.expect("the writer is done");
    }
    if backup.is_ok() {
        check_backup(&*place, &file, before, &*store).await;
    }
}

async fn write(store: Arc<dyn Store>, name: u16) {
    for commit in HistoryGenerator::new(44, name).commits(20) {
        store.commit(commit).await.expect("a legal commit is taken");
    }
}

/// Checks that a backup is a prefix of the whole journal and consistent in itself.
async fn check_backup(
    place: &dyn TestStorePlace,
    file: &std::path::Path,
    at_least: JournalSeq,
    store: &dyn Store,
) {
    let copy = place.open_backup(file).await.expect("a backup opens");
    let head = copy.head().await.unwrap();
    assert!(head >= at_least);
    let entries = copy.entries(JournalSeq(0), usize::MAX).await.unwrap();
    assert_eq!(entries, store.entries(JournalSeq(0), head.0 as usize).await.unwrap());
    for run in copy.known_runs(None, usize::MAX).await.unwrap() {
        let entries = copy.entries_of(run, JournalSeq(0), usize::MAX).await.unwrap();
        assert_eq!(copy.tables_of(run).await.unwrap(), RunTables::derive(&entries).expect("it adds up"));
    }
}
