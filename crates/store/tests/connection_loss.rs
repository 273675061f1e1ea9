//! Loss of the connection to a server: before a commit it is restored, during a commit the outcome is unknown.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use abide_ports::store::{Journal, JournalCommit, JournalSeq, Store, StoreError};
use abide_store::{
    postgres::{PostgresOptions, PostgresStore, WriterPolicy},
    registry, verification,
};
use abide_testkit::history::HistoryGenerator;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The treatment of the next COMMIT.
const COMMIT_FORWARDED: u8 = 0;
const COMMIT_DROPPED: u8 = 1;
const REPLY_DROPPED: u8 = 2;

/// A proxy between a store and its server that can cut connections.
struct CuttableProxy {
    next_commit_mode: Arc<AtomicU8>,
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
        let (next_commit_mode, (cut, _)) = (Arc::new(AtomicU8::new(COMMIT_FORWARDED)), watch::channel(0));
        let proxy = Self { next_commit_mode: Arc::clone(&next_commit_mode), cut: cut.clone(), url };
        let address = address.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.unwrap();
                let (next_commit_mode, mut cut) = (Arc::clone(&next_commit_mode), cut.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        () = relay(client, server, &next_commit_mode) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        proxy
    }

    fn cut(&self) {
        self.cut.send_modify(|times| *times += 1);
    }
}

/// Relays all data until the connection is cut.
async fn relay(mut client: TcpStream, mut server: TcpStream, next_commit_mode: &AtomicU8) {
    let (mut request_bytes, mut response_bytes) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            count = client.read(&mut request_bytes) => {
                let Ok(count @ 1..) = count else { return };
                let commits = request_bytes[..count].windows(7).any(|window| window == b"COMMIT\0");
                let next_commit_mode = if commits { next_commit_mode.swap(COMMIT_FORWARDED, Ordering::SeqCst) } else { COMMIT_FORWARDED };
                if next_commit_mode == COMMIT_DROPPED || server.write_all(&request_bytes[..count]).await.is_err() {
                    return;
                }
                if next_commit_mode == REPLY_DROPPED {
                    // The server has committed when it answers.
                    let _ = server.read(&mut response_bytes).await;
                    return;
                }
            }
            count = server.read(&mut response_bytes) => {
                let Ok(count @ 1..) = count else { return };
                if client.write_all(&response_bytes[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn open_filled(proxy: &CuttableProxy) -> (Arc<dyn Store>, HistoryGenerator) {
    let store = registry::open(&proxy.url).await.unwrap();
    let mut author = HistoryGenerator::new(12, 1);
    for commit in author.commits(5) {
        store.commit(commit).await.unwrap();
    }
    (store, author)
}

async fn check_commit_and_verify(store: &dyn Store, commit: JournalCommit) {
    store.commit(commit).await.unwrap();
    let verification = verification::verify(store, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{:?}", verification.findings);
}

#[tokio::test]
async fn a_line_cut_between_commits_is_made_again() {
    let proxy = CuttableProxy::open().await;
    let (store, mut author) = open_filled(&proxy).await;
    for commit in author.commits(5) {
        proxy.cut();
        store.commit(commit).await.expect("the loss of contact is not visible");
        proxy.cut();
        store.head().await.expect("nor do readers");
    }
    check_commit_and_verify(&*store, author.commit()).await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_has_an_unknown_outcome_and_may_be_there() {
    let proxy = CuttableProxy::open().await;
    let (store, mut author) = open_filled(&proxy).await;
    for (next_commit_mode, written) in [(REPLY_DROPPED, true), (COMMIT_DROPPED, false)] {
        let before = store.head().await.unwrap();
        proxy.next_commit_mode.store(next_commit_mode, Ordering::SeqCst);
        let commit = author.commit();
        let changes = commit.changes.len() as u64;
        let error = store.commit(commit.clone()).await.unwrap_err();
        assert!(matches!(error, StoreError::OutcomeUnknown { .. }), "{error}");
        // The outcome can be determined by reading.
        let expected = if written { JournalSeq(before.0 + changes) } else { before };
        assert_eq!(store.head().await.unwrap(), expected);
        let again = store.commit(commit).await;
        match written {
            true => assert!(matches!(again, Err(StoreError::Conflict { .. })), "{again:?}"),
            false => assert_eq!(again.unwrap().last, JournalSeq(before.0 + changes)),
        }
    }
    check_commit_and_verify(&*store, author.commit()).await;
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable() {
    // The listener is dropped immediately, so the port is closed.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = format!("postgres://abide@{address}/postgres");
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
            options.writers = WriterPolicy::Multiple;
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
    check_commit_and_verify(&*store, HistoryGenerator::new(13, 9).commit()).await;
}
