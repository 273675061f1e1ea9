//! TLS to a server (SECURITY 16): the verification in each mode. No password is sent to a server that fails it.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use abide_ports::store::{Store, StoreError};
use abide_store::registry;
use abide_testkit::history::HistoryGenerator;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// The name in the server's certificate. The server is reached by `hostaddr`, so the name is not resolved.
const NAME: &str = "db.abide.test";

/// The path of an authority's certificate. `ca.pem` has signed the server's certificate, `other.pem` has not.
#[expect(clippy::disallowed_methods, reason = "the test command says where the certificates are")]
fn certificate(file: &str) -> String {
    let folder = std::env::var("ABIDE_TEST_POSTGRES_CERTIFICATES")
        .expect("ABIDE_TEST_POSTGRES_CERTIFICATES is not set: run `cargo xtask test`, which makes them");
    format!("{folder}/{file}")
}

/// The URL of the server under this name, with a new schema.
fn url(name: &str, parameters: &str) -> String {
    let server = server::postgres_url();
    let (credentials, rest) = server.rsplit_once('@').unwrap();
    let (address, database) = rest.split_once('/').unwrap();
    let (ip, port) = address.rsplit_once(':').unwrap();
    server::new_schema(&format!("{credentials}@{name}:{port}/{database}?hostaddr={ip}{parameters}"))
}

async fn opens(url: &str) -> Arc<dyn Store> {
    let store = registry::open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    store.commit(HistoryGenerator::new(16, 1).commit()).await.unwrap();
    store
}

async fn refused(url: &str) -> String {
    let error = registry::open(url).await.err().unwrap_or_else(|| panic!("{url} was accepted"));
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    error.to_string()
}

#[tokio::test]
async fn the_right_authority_and_name_are_accepted_and_the_connection_is_encrypted() {
    let ca = certificate("ca.pem");
    // The name is not local, so the default is full verification.
    for parameters in [
        format!("&sslrootcert={ca}"),
        format!("&sslmode=verify-full&sslrootcert={ca}"),
        format!("&sslmode=verify-full&sslrootcert={}", ca.replace('/', "%2F")),
    ] {
        let url = url(NAME, &parameters);
        let _store = opens(&url).await;
        let schema = url.rsplit_once("schema=").unwrap().1;
        let (client, connection) =
            tokio_postgres::connect(&server::postgres_url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql = format!(
            "SELECT ssl FROM pg_stat_ssl
             WHERE pid = (SELECT (value::json ->> 'backend')::int FROM {schema}.meta WHERE key = 'holder')"
        );
        assert!(client.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0), "it is not encrypted");
    }
}

#[tokio::test]
async fn a_wrong_authority_or_name_is_refused_and_the_error_says_what_to_do() {
    let (ca, other) = (certificate("ca.pem"), certificate("other.pem"));
    for mode in ["", "&sslmode=verify-full", "&sslmode=verify-ca", "&sslmode=require"] {
        let error = refused(&url(NAME, &format!("{mode}&sslrootcert={other}"))).await;
        assert!(error.contains("UnknownIssuer") && error.contains("sslrootcert=FILE"), "{error}");
    }
    // The system's authorities have not signed it either.
    let error = refused(&url(NAME, "")).await;
    assert!(error.contains("sslrootcert=FILE"), "{error}");
    for mode in ["", "&sslmode=verify-full"] {
        let error = refused(&url("db.elsewhere.test", &format!("{mode}&sslrootcert={ca}"))).await;
        assert!(error.contains("not valid for name") && error.contains("sslmode=verify-ca"), "{error}");
    }
    opens(&url("db.elsewhere.test", &format!("&sslmode=verify-ca&sslrootcert={ca}"))).await;
    opens(&url("db.elsewhere.test", &format!("&sslmode=require&sslrootcert={ca}"))).await;
    opens(&url("db.elsewhere.test", "&sslmode=require")).await;
}

#[tokio::test]
async fn clear_text_leaves_the_machine_only_if_it_is_written() {
    opens(&url(NAME, "&sslmode=disable")).await;
    opens(&server::new_schema(&server::postgres_url())).await;
}

/// A server that refuses all requests for TLS, and the bytes that it received.
async fn serve_without_tls() -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let received = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = client.read(&mut bytes).await {
                    writer.lock().unwrap().extend_from_slice(&bytes[..count]);
                    // Refuses a request for TLS. Asks for the password in plain text at sign-in.
                    let is_request = bytes[..count] == [0, 0, 0, 8, 4, 210, 22, 47];
                    let answer: &[u8] = if is_request { b"N" } else { b"R\x00\x00\x00\x08\x00\x00\x00\x03" };
                    if client.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, received)
}

#[tokio::test]
async fn a_server_in_the_middle_that_denies_tls_gets_no_password() {
    let (port, received) = serve_without_tls().await;
    let secret = "a-password-that-is-secret";
    let address = format!("postgres://abide:{secret}@{NAME}:{port}/postgres?hostaddr=127.0.0.1");
    for mode in ["", "&sslmode=prefer", "&sslmode=require", "&sslmode=verify-ca", "&sslmode=verify-full"] {
        let error = tokio::time::timeout(Duration::from_secs(60), refused(&format!("{address}{mode}"))).await;
        let error = error.expect("a refusal is no matter of trying again");
        assert!(error.contains("does not offer TLS") && error.contains("sslmode=disable"), "{mode}: {error}");
        assert!(!error.contains(secret), "{error}");
    }
    let received = received.lock().unwrap().clone();
    assert_eq!(received, [0, 0, 0, 8, 4, 210, 22, 47].repeat(5), "nothing but requests for TLS was sent");
}

#[tokio::test]
async fn a_file_that_is_no_certificate_is_named() {
    let error = refused(&url(NAME, "&sslrootcert=/nowhere/ca.pem")).await;
    assert!(error.contains("/nowhere/ca.pem"), "{error}");
}
