//! One daemon per schema (SECURITY 15): a second one is refused with the name of the first. A daemon whose connection
//! was cut while another one took the schema writes nothing more.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use std::{path::Path, sync::Arc};

use abide_ports::store::{Store, StoreError};
use abide_store::{
    LossPolicy,
    registry::{self, StoreOptions},
    verification,
};
use abide_testkit::{history::HistoryGenerator, wait::until_async as until};
use tokio_postgres::{Client, NoTls};

async fn open(url: &str, home: &Path) -> Result<Arc<dyn Store>, StoreError> {
    let opening = StoreOptions { home: Some(home.to_owned()), loss: LossPolicy::Refuse, read_only: false };
    Ok(registry::open_with(url, opening).await?.store)
}

/// A connection for the operator.
async fn operator(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(&server::postgres_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = url.rsplit_once("schema=").unwrap().1;
    client.batch_execute(&format!("SET search_path TO {schema}")).await.unwrap();
    client
}

/// The process id of the holder's connection, as recorded by the holder.
async fn backend(operator: &Client) -> i32 {
    let sql = "SELECT (value::json ->> 'backend')::int FROM meta WHERE key = 'holder'";
    operator.query_one(sql, &[]).await.unwrap().get(0)
}

/// Ends the holder's connection and waits until it is gone.
async fn terminate_backend(operator: &Client, backend: i32) {
    operator.execute("SELECT pg_terminate_backend($1)", &[&backend]).await.unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1";
    until("the connection is gone", async || {
        operator.query_one(sql, &[&backend]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
}

#[tokio::test]
async fn a_second_daemon_is_refused_with_the_name_of_the_first_and_may_look() {
    let url = server::new_schema(&server::postgres_url());
    let (first_home, second_home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = open(&url, first_home.path()).await.unwrap();
    let mut author = HistoryGenerator::new(15, 1);
    first.commit(author.commit()).await.unwrap();
    let error = open(&url, second_home.path()).await.err().expect("the schema is held");
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    let text = error.to_string();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for part in [
        host.trim(),
        &format!("pid {}", std::process::id()),
        &first_home.path().display().to_string(),
        "since 20",
        "?schema=",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    first.commit(author.commit()).await.expect("the first one has noticed nothing");
    // Inspection is allowed, a repair is not.
    let looking = registry::open_for_inspection(&url).await.unwrap();
    assert!(verification::verify(&*looking, |_| {}).await.unwrap().is_clean());
    let repaired = verification::rebuild(&*looking, |_| {}).await;
    assert!(matches!(repaired, Err(StoreError::InUse { .. })), "{repaired:?}");
    // Another schema of the same server is free.
    open(&server::new_schema(&server::postgres_url()), second_home.path()).await.unwrap();
    drop(first);
    let next = open(&url, second_home.path()).await.expect("the first one is gone");
    next.commit(author.commit()).await.unwrap();
    drop(next);
    until("the schema is free for a repair", async || verification::rebuild(&*looking, |_| {}).await.is_ok())
        .await;
}

#[tokio::test]
async fn inspection_creates_nothing() {
    let url = server::new_schema(&server::postgres_url());
    let error = registry::open_for_inspection(&url).await.err().expect("there is nothing to look at");
    assert!(error.to_string().contains("there is no store"), "{error}");
    let schema = url.rsplit_once("schema=").unwrap().1.to_owned();
    let sql = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
    assert_eq!(operator(&url).await.query_one(sql, &[&schema]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_connection_that_is_cut_is_made_again_with_its_lock_although_nothing_is_written() {
    let url = server::new_schema(&server::postgres_url());
    let home = tempfile::tempdir().unwrap();
    let store = open(&url, home.path()).await.unwrap();
    let mut author = HistoryGenerator::new(15, 2);
    store.commit(author.commit()).await.unwrap();
    let operator = operator(&url).await;
    for _ in 0..3 {
        let first = backend(&operator).await;
        terminate_backend(&operator, first).await;
        until("the lock is taken again", async || backend(&operator).await != first).await;
        store.health().unwrap();
        let other = tempfile::tempdir().unwrap();
        let error = open(&url, other.path()).await.err().expect("it is held again");
        assert!(matches!(error, StoreError::InUse { .. }), "{error}");
        store.commit(author.commit()).await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_an_own_lost_connection_still_holds_is_taken_from_it() {
    let url = server::new_schema(&server::postgres_url());
    let proxy = PostgresProxy::open(&url).await;
    let home = tempfile::tempdir().unwrap();
    let store = open(&proxy.url, home.path()).await.unwrap();
    let mut author = HistoryGenerator::new(15, 3);
    store.commit(author.commit()).await.unwrap();
    let operator = operator(&url).await;
    let first = backend(&operator).await;
    // The daemon's side is closed without informing the server.
    proxy.drop_client_connections();
    until("the lock is taken again", async || backend(&operator).await != first).await;
    store.commit(author.commit()).await.unwrap();
    store.health().unwrap();
}

#[tokio::test]
async fn a_daemon_that_lost_its_connection_to_another_one_says_whose_it_is_and_writes_nothing_more() {
    let url = server::new_schema(&server::postgres_url());
    let (first_home, second_home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let proxy = PostgresProxy::open(&url).await;
    let first = open(&proxy.url, first_home.path()).await.unwrap();
    let mut author = HistoryGenerator::new(15, 4);
    first.commit(author.commit()).await.unwrap();
    let operator = operator(&url).await;
    // The network is interrupted, and the server ends the connection.
    proxy.close();
    let lost = backend(&operator).await;
    terminate_backend(&operator, lost).await;
    let second = open(&url, second_home.path()).await.expect("no daemon holds it");
    second.commit(HistoryGenerator::new(15, 5).commit()).await.unwrap();
    proxy.reopen();
    until("it finds out without being asked", async || first.health().is_err()).await;
    let text = first.health().unwrap_err().to_string();
    assert!(text.contains(&second_home.path().display().to_string()), "{text}");
    let refused = first.commit(author.commit()).await;
    assert!(matches!(refused, Err(StoreError::InUse { .. })), "{refused:?}");
    // The refusal persists after the other daemon is gone, because this daemon's knowledge of its runs is outdated.
    let head = second.head().await.unwrap();
    drop(second);
    let is_gone = async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1";
        operator.query_one(sql, &[&backend(&operator).await]).await.unwrap().get::<_, i64>(0) == 0
    };
    until("the other one is gone", is_gone).await;
    let refused = first.commit(author.commit()).await;
    assert!(matches!(refused, Err(StoreError::InUse { .. })), "{refused:?}");
    assert_eq!(first.head().await.unwrap(), head, "reading is still possible, and nothing was written");
}

#[tokio::test]
async fn a_daemon_that_came_and_went_while_the_connection_was_lost_is_noticed() {
    let url = server::new_schema(&server::postgres_url());
    let (first_home, second_home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let proxy = PostgresProxy::open(&url).await;
    let first = open(&proxy.url, first_home.path()).await.unwrap();
    let mut author = HistoryGenerator::new(15, 6);
    first.commit(author.commit()).await.unwrap();
    let operator = operator(&url).await;
    proxy.close();
    terminate_backend(&operator, backend(&operator).await).await;
    let second = open(&url, second_home.path()).await.unwrap();
    let its = backend(&operator).await;
    drop(second);
    terminate_backend(&operator, its).await;
    proxy.reopen();
    until("it is noticed", async || first.health().is_err()).await;
    let refused = first.commit(author.commit()).await;
    assert!(matches!(refused, Err(StoreError::InUse { .. })), "{refused:?}");
}

/// A proxy between a store and its server.
struct PostgresProxy {
    url: String,
    state: tokio::sync::watch::Sender<ProxyNetwork>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxyNetwork {
    Up(u32),
    Down,
}

impl PostgresProxy {
    async fn open(url: &str) -> Self {
        let (credentials, rest) = url.rsplit_once('@').unwrap();
        let (address, database) = rest.split_once('/').unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let (state, network) = tokio::sync::watch::channel(ProxyNetwork::Up(0));
        let address = address.to_owned();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (address, mut network) = (address.clone(), network.clone());
                if *network.borrow_and_update() == ProxyNetwork::Down {
                    continue;
                }
                tokio::spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(&address).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = network.changed() => {
                            drop(client);
                            // The connection to the server stays open for the rest of the test.
                            std::future::pending::<()>().await;
                        }
                    }
                });
            }
        });
        Self { url: format!("{credentials}@{here}/{database}"), state }
    }

    /// Closes the client's side of every connection. New connections are accepted.
    fn drop_client_connections(&self) {
        self.state.send_modify(|network| {
            *network = match network {
                ProxyNetwork::Up(times) => ProxyNetwork::Up(*times + 1),
                ProxyNetwork::Down => ProxyNetwork::Up(0),
            }
        });
    }

    fn close(&self) {
        self.state.send_replace(ProxyNetwork::Down);
    }

    fn reopen(&self) {
        self.state.send_replace(ProxyNetwork::Up(0));
    }
}
