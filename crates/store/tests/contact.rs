//! Loss of the connection to a server: before a commit it is restored, during a commit the outcome is unknown.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use abide_ports::store::{Journal, JournalCommit, JournalSeq, Store, StoreError, StoreErrorKind};
use abide_store::{
    postgres::{PostgresOptions, PostgresStore, WriterPolicy},
    registry, upkeep,
};
use abide_testkit::history::HistoryGenerator;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The treatment of the next COMMIT.
const PASSED_ON: u8 = 0;
const LOST_ON_ITS_WAY: u8 = 1;
const ANSWER_LOST: u8 = 2;

/// A proxy between a store and its server that can cut connections.
struct CuttableProxy {
    fate: Arc<AtomicU8>,
    cut: watch::Sender<u32>,
    url: String,
}

impl CuttableProxy {
    async fn open() -> Self {
        let server = server::postgres_url();
        let (credentials, rest) = server.rsplit_once('@').unwrap();
        let (address, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let url = server::new_schema(&format!("{credentials}@{here}/{database}"));
        let (fate, (cut, _)) = (Arc::new(AtomicU8::new(PASSED_ON)), watch::channel(0));
        let line = Self { fate: Arc::clone(&fate), cut: cut.clone(), url };
        let address = address.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.unwrap();
                let (fate, mut cut) = (Arc::clone(&fate), cut.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        () = relay(client, server, &fate) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        line
    }

    fn cut(&self) {
        self.cut.send_modify(|times| *times += 1);
    }
}

/// Relays all data until the connection is cut.
async fn relay(mut client: TcpStream, mut server: TcpStream, fate: &AtomicU8) {
    let (mut asked, mut answered) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            count = client.read(&mut asked) => {
                let Ok(count @ 1..) = count else { return };
                let commits = asked[..count].windows(7).any(|window| window == b"COMMIT\0");
                let fate = if commits { fate.swap(PASSED_ON, Ordering::SeqCst) } else { PASSED_ON };
                if fate == LOST_ON_ITS_WAY || server.write_all(&asked[..count]).await.is_err() {
                    return;
                }
                if fate == ANSWER_LOST {
                    // The server has committed when it answers.
                    let _ = server.read(&mut answered).await;
                    return;
                }
            }
            count = server.read(&mut answered) => {
                let Ok(count @ 1..) = count else { return };
                if client.write_all(&answered[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn opened(line: &CuttableProxy) -> (Arc<dyn Store>, HistoryGenerator) {
    let store = registry::open(&line.url).await.unwrap();
    let mut author = HistoryGenerator::new(12, 1);
    for commit in author.commits(5) {
        store.commit(commit).await.unwrap();
    }
    (store, author)
}

async fn goes_on(store: &dyn Store, commit: JournalCommit) {
    store.commit(commit).await.unwrap();
    let verification = upkeep::verify(store, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{:?}", verification.findings);
}

#[tokio::test]
async fn a_line_cut_between_commits_is_made_again() {
    let line = CuttableProxy::open().await;
    let (store, mut author) = opened(&line).await;
    for commit in author.commits(5) {
        line.cut();
        store.commit(commit).await.expect("nobody notices");
        line.cut();
        store.head().await.expect("nor do readers");
    }
    goes_on(&*store, author.commit()).await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_has_an_unknown_outcome_and_may_be_there() {
    let line = CuttableProxy::open().await;
    let (store, mut author) = opened(&line).await;
    for (fate, written) in [(ANSWER_LOST, true), (LOST_ON_ITS_WAY, false)] {
        let before = store.head().await.unwrap();
        line.fate.store(fate, Ordering::SeqCst);
        let commit = author.commit();
        let changes = commit.changes.len() as u64;
        let error = store.commit(commit.clone()).await.unwrap_err();
        assert!(matches!(error, StoreError::OutcomeUnknown { .. }), "{error}");
        assert_eq!(error.kind(), StoreErrorKind::Retry);
        // The outcome can be determined by reading.
        let expected = if written { JournalSeq(before.0 + changes) } else { before };
        assert_eq!(store.head().await.unwrap(), expected);
        let again = store.commit(commit).await;
        match written {
            true => assert!(matches!(again, Err(StoreError::Conflict { .. })), "{again:?}"),
            false => assert_eq!(again.unwrap().last, JournalSeq(before.0 + changes)),
        }
    }
    goes_on(&*store, author.commit()).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_unavailable() {
    // The listener is dropped immediately, so the port is closed.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = format!("postgres://abide@{gone}/postgres");
    let error = registry::open(&url).await.err().unwrap();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn several_writers_of_one_schema_commit_in_one_order() {
    let url = server::new_schema(&server::postgres_url());
    let mut writers = Vec::new();
    for name in 1..=4 {
        let url = url.clone();
        writers.push(tokio::spawn(async move {
            let mut options = PostgresOptions::default();
            options.writers = WriterPolicy::Many;
            let store = PostgresStore::open_with(&url, &options).await.unwrap();
            for commit in HistoryGenerator::new(13, name).commits(25) {
                store.commit(commit).await.unwrap();
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let store = registry::open(&url).await.expect("the journal has no gap");
    goes_on(&*store, HistoryGenerator::new(13, 9).commit()).await;
}
