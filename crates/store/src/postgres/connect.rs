//! Connections to a server: the address, the schema of a store, and its migrations.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use abide_ports::store::{StoreError, StoreInputError};
use tokio::sync::watch;
use tokio_postgres::{Client, Config, Row, Statement, types::ToSql};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    error::failed,
    reencode,
    tls::{self, TlsSettings},
};
use crate::migration::{AppliedMigration, SchemaMigration, StoredValues, pending};

/// The migrations of a schema. A released migration is never edited.
const MIGRATIONS: &[SchemaMigration] = &[
    SchemaMigration {
        number: 1,
        name: "ledgers",
        sql: include_str!("migrations/0001_ledgers.sql"),
        values: StoredValues::Unchanged,
    },
    SchemaMigration {
        number: 2,
        name: "chain",
        sql: include_str!("migrations/0002_chain.sql"),
        values: StoredValues::Unchanged,
    },
    SchemaMigration {
        number: 3,
        name: "names",
        sql: include_str!("migrations/0003_names.sql"),
        values: StoredValues::Reencoded,
    },
];

/// The schema if the URL names none.
const DEFAULT_SCHEMA: &str = "abide";
/// The delay after the first failed try to connect; it doubles after each further try.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(50);
/// The number of tries before the server is reported as unavailable, about three seconds in total.
const MAX_CONNECT_TRIES: u32 = 7;
/// The timeout of one try, including the TLS handshake and authentication.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A schema on a server.
#[derive(Clone, Debug)]
pub(super) struct PostgresTarget {
    config: Config,
    schema: String,
    tls: TlsSettings,
}

/// A connection with its prepared statements.
#[derive(Debug)]
pub(super) struct PostgresConnection {
    pub(super) client: Client,
    /// Closed when the connection has ended.
    ended: watch::Receiver<()>,
    statements: Mutex<HashMap<String, Statement>>,
}

pub(super) type SqlParams<'a> = &'a [&'a (dyn ToSql + Sync)];

impl PostgresTarget {
    /// Parses a URL. The parameters `schema`, `sslmode` and `sslrootcert` are handled here, the others by the driver.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let mut own_parameters: HashMap<&str, String> = HashMap::new();
        let mut rest = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !["schema", "sslmode", "sslrootcert"].contains(&name) {
                rest.push(parameter);
                continue;
            }
            let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned();
            if own_parameters.insert(name, value).is_some() {
                return Err(StoreError::Invalid(StoreInputError::Location {
                    detail: format!("the store's URL has two values for {name}; keep one of them"),
                }));
            }
        }
        let schema = own_parameters.remove("schema").unwrap_or_else(|| DEFAULT_SCHEMA.to_owned());
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || schema.len() > 63 || !schema.chars().all(letters) {
            let detail =
                "the name of the schema must consist of 1 to 63 lower-case letters, digits and _".to_owned();
            return Err(StoreError::Invalid(StoreInputError::Location { detail }));
        }
        // The URL is not included in the message, because it may contain a password.
        let mut config: Config = format!("{address}?{}", rest.join("&")).parse().map_err(|error| {
            StoreError::Invalid(StoreInputError::Location {
                detail: format!("the store's URL is invalid: {error}"),
            })
        })?;
        config.application_name("abide").connect_timeout(CONNECT_TIMEOUT);
        // Keepalives detect an interrupted connection within 30 seconds. The default of the system is two hours.
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        let sslmode = own_parameters.get("sslmode").map(String::as_str);
        let tls = TlsSettings::from_parameters(
            &mut config,
            sslmode,
            own_parameters.get("sslrootcert").map(String::as_str),
        )?;
        Ok(Self { config, schema, tls })
    }

    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    /// Connects, with a bounded number of retries.
    pub(super) async fn connect(&self) -> Result<PostgresConnection, StoreError> {
        self.connect_with_retries(MAX_CONNECT_TRIES).await
    }

    pub(super) async fn connect_once(&self) -> Result<PostgresConnection, StoreError> {
        self.connect_with_retries(1).await
    }

    async fn connect_with_retries(&self, max_tries: u32) -> Result<PostgresConnection, StoreError> {
        let connector = self.tls.connector()?;
        let mut pause = FIRST_RETRY_DELAY;
        let mut tries = 1;
        loop {
            let result = tokio::time::timeout(CONNECT_TIMEOUT, self.try_connect(connector.clone())).await;
            let error = match result {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => match tls::handshake_error(&error) {
                    Some(refusal) => return Err(refusal),
                    // A refusal by the server is final. Class 57P (for example, the server is starting) is retried.
                    None if error.code().is_some_and(|code| !code.code().starts_with("57P")) => {
                        return Err(failed(&error));
                    }
                    None => failed(&error),
                },
                Err(_) => {
                    let seconds = CONNECT_TIMEOUT.as_secs();
                    StoreError::Unavailable {
                        reason: format!("the server does not answer within {seconds} s"),
                    }
                }
            };
            if tries >= max_tries {
                return Err(error);
            }
            tries += 1;
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    async fn try_connect(&self, tls: MakeRustlsConnect) -> Result<PostgresConnection, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(tls).await?;
        // The task ends when the client is dropped. Failures are reported to the pending requests.
        let (end, ended) = watch::channel(());
        tokio::spawn(async move {
            drop(connection.await);
            drop(end);
        });
        let schema = &self.schema;
        client.batch_execute(&format!("SET search_path TO \"{schema}\"")).await?;
        // Acknowledged commits are on disk, independent of the server's default.
        let durable = "SELECT set_config('synchronous_commit', 'on', false)
                       WHERE current_setting('synchronous_commit') = 'off'";
        client.batch_execute(durable).await?;
        // The server releases the locks of an interrupted client within 30 seconds.
        let keepalive =
            "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3";
        client.batch_execute(keepalive).await?;
        Ok(PostgresConnection { client, ended, statements: Mutex::default() })
    }
}

impl PostgresConnection {
    /// Waits for the end of the connection.
    pub(super) async fn wait_for_end(&self) {
        // No value is ever sent. The wait ends when the sender is dropped.
        self.ended.clone().changed().await.ok();
    }

    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let cached = self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = cached {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(super) async fn query(
        &self,
        sql: &str,
        values: SqlParams<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statement = self.prepare(sql).await?;
        self.client.query(&statement, values).await
    }

    pub(super) async fn execute(
        &self,
        sql: &str,
        values: SqlParams<'_>,
    ) -> Result<u64, tokio_postgres::Error> {
        let statement = self.prepare(sql).await?;
        self.client.execute(&statement, values).await
    }

    /// Applies missing migrations. If several daemons start at once, one of them migrates and the others wait.
    pub(super) async fn migrate(&mut self, target: &PostgresTarget) -> Result<(), StoreError> {
        let schema = target.schema();
        let transaction = self.client.transaction().await.map_err(|error| failed(&error))?;
        let run = async |sql: &str| transaction.batch_execute(sql).await.map_err(|error| failed(&error));
        run("SELECT pg_advisory_xact_lock(4702394921427289928)").await?;
        run(&format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"")).await?;
        run("CREATE TABLE IF NOT EXISTS migrations (
                 number BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum BIGINT NOT NULL
             )")
        .await?;
        let applied_rows = "SELECT number, name, checksum FROM migrations ORDER BY number";
        let applied_rows = transaction.query(applied_rows, &[]).await.map_err(|error| failed(&error))?;
        for step in pending(MIGRATIONS, &applied_migrations(&applied_rows))? {
            run(step.sql).await?;
            match step.values {
                StoredValues::Unchanged => {}
                StoredValues::Reencoded => reencode::reencode_all(&transaction).await?,
            }
            let insert_sql = "INSERT INTO migrations (number, name, checksum) VALUES ($1, $2, $3)";
            let values: SqlParams<'_> = &[&step.number, &step.name, &step.checksum()];
            transaction.execute(insert_sql, values).await.map_err(|error| failed(&error))?;
        }
        transaction.commit().await.map_err(|error| failed(&error))
    }

    /// Refuses a missing or outdated schema. Changes nothing.
    pub(super) async fn check_migrations(&self, target: &PostgresTarget) -> Result<(), StoreError> {
        let schema = target.schema();
        let exists = "SELECT to_regclass($1) IS NOT NULL";
        let rows = self.query(exists, &[&format!("\"{schema}\".migrations")]).await;
        if !rows.map_err(|error| failed(&error))?.first().is_some_and(|row| row.get(0)) {
            return Err(StoreError::Unavailable {
                reason: format!("there is no store in the schema {schema} yet"),
            });
        }
        let sql = "SELECT number, name, checksum FROM migrations ORDER BY number";
        let applied_rows = self.query(sql, &[]).await.map_err(|error| failed(&error))?;
        if !pending(MIGRATIONS, &applied_migrations(&applied_rows))?.is_empty() {
            let reason =
                "it was written by an older Abide; start a daemon of this version once, which migrates it";
            return Err(StoreError::IncompatibleVersion { reason: reason.to_owned() });
        }
        Ok(())
    }

    /// Checks that the journal has no gap. `verify` checks the rest.
    pub(super) async fn check_journal(&self) -> Result<(), StoreError> {
        let sql = "SELECT count(*), coalesce(min(journal.seq), 1), coalesce(max(journal.seq), 0),
                       (SELECT seq FROM head) FROM journal";
        let rows = self.query(sql, &[]).await.map_err(|error| failed(&error))?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (count, first, last): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let head: Option<i64> = row.get(3);
        if first != 1 || count != last || head != Some(last) {
            let detail =
                format!("the journal has {count} entries from {first} to {last}, and its head is {head:?}");
            return Err(StoreError::Damaged { detail });
        }
        Ok(())
    }
}

fn applied_migrations(rows: &[Row]) -> Vec<AppliedMigration> {
    let step = |row: &Row| AppliedMigration { number: row.get(0), name: row.get(1), checksum: row.get(2) };
    rows.iter().map(step).collect()
}
