//! `verify` detects damage to every column that is derived from the journal, and to every index, in each database.
//!
//! The columns and indexes are read from the schema, so that new ones are included automatically.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod server;

use std::{fs, path::Path};

use abide_ports::store::{Store, StoreError};
use abide_store::{registry, sqlite::SqliteStore, verification};
use abide_testkit::history::HistoryGenerator;
use rusqlite::Connection;
use tokio_postgres::NoTls;

/// Tables that are not derived from the journal.
const NOT_DERIVED: [&str; 2] = ["meta", "migrations"];
/// Columns without a redundant copy. They are only compared with the witness from before a migration.
const NOT_REDUNDANT: [&str; 2] = ["singleton", "chain_before_names"];

async fn fill(store: &dyn Store) {
    for commit in HistoryGenerator::new(8, 1).with_runs(8).commits(60) {
        store.commit(commit).await.unwrap();
    }
    // Adds all entries to the index by run, which otherwise happens after thousands of entries.
    store.reindex().await.unwrap();
    assert_eq!(verification_findings(store).await, Vec::<String>::new());
}

async fn verification_findings(store: &dyn Store) -> Vec<String> {
    match verification::verify(store, |_| {}).await {
        Ok(verification) => verification.findings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

async fn file_findings(path: &Path) -> Vec<String> {
    match SqliteStore::open_for_inspection(path) {
        Ok(store) => verification_findings(&store).await,
        Err(error) => vec![error.to_string()],
    }
}

struct DatabaseTemplate {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl DatabaseTemplate {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abide.db");
        let store = SqliteStore::open(&path).unwrap();
        fill(&store).await;
        drop(store);
        let bytes = fs::read(&path).unwrap();
        Self { folder, bytes }
    }

    fn fresh(&self) -> std::path::PathBuf {
        let path = self.folder.path().join("abide.db");
        fs::write(&path, &self.bytes).unwrap();
        path
    }
}

#[tokio::test]
async fn damage_to_each_column_of_a_file_is_found() {
    let template = DatabaseTemplate::new().await;
    let columns = columns_of_file(&template.fresh());
    assert!(columns.len() > 30, "{columns:?}");
    for (table, column, kind) in columns {
        if NOT_REDUNDANT.contains(&column.as_str()) {
            continue;
        }
        let key = keys_of_file(&template.fresh(), &table);
        let row = match key.is_empty() {
            true => "1".to_owned(),
            false => format!("({0}) = (SELECT {0} FROM {table} LIMIT 1)", key.join(", ")),
        };
        let values: &[&str] = match kind.as_str() {
            "INTEGER" => &["# + 1", "1 - #", "2 + #", "-1", "0", "7", "NULL"],
            _ => &["# || 'x'", "''", "'run_0000000000000000000000000'", "NULL"],
        };
        let mut tried = 0;
        for value in values {
            let path = template.fresh();
            let value = value.replace('#', &column);
            let sql =
                format!("UPDATE {table} SET {column} = {value} WHERE {row} AND {column} IS NOT {value}");
            let database = Connection::open(&path).unwrap();
            // A value that the schema itself forbids cannot occur.
            let Ok(1..) = database.execute(&sql, []) else { continue };
            drop(database);
            tried += 1;
            assert_ne!(file_findings(&path).await, Vec::<String>::new(), "{sql}");
        }
        assert!(tried > 0, "{table}.{column} could not be changed at all");
    }
}

fn columns_of_file(path: &Path) -> Vec<(String, String, String)> {
    let database = Connection::open(path).unwrap();
    let sql = "SELECT t.name, c.name, c.type FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
               WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'";
    let mut query = database.prepare(sql).unwrap();
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let columns: Vec<(String, String, String)> = rows.map(Result::unwrap).collect();
    columns.into_iter().filter(|(table, _, _)| !NOT_DERIVED.contains(&table.as_str())).collect()
}

fn keys_of_file(path: &Path, table: &str) -> Vec<String> {
    let database = Connection::open(path).unwrap();
    let mut query =
        database.prepare("SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk").unwrap();
    let rows = query.query_map([table], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_row_that_an_index_of_a_file_does_not_find_is_found_and_repaired() {
    let template = DatabaseTemplate::new().await;
    let indexes: Vec<(String, String)> = {
        let database = Connection::open(template.fresh()).unwrap();
        let mut query = database
            .prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")
            .unwrap();
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let mut damaged = 0;
    for (index, sql) in &indexes {
        let path = template.fresh();
        let without = sql.split(" WHERE ").next().unwrap();
        // The index is emptied by a condition that no row meets, and then its original definition is restored.
        edit_schema(&path, index, &format!("{without} WHERE 1 = 0"));
        let database = Connection::open(&path).unwrap();
        database.execute_batch(&format!("REINDEX {index}")).unwrap();
        drop(database);
        edit_schema(&path, index, sql);
        let condition = sql.split(" WHERE ").nth(1).unwrap_or("1");
        let table = without.split(" ON ").nth(1).unwrap().split(' ').next().unwrap();
        let database = Connection::open(&path).unwrap();
        let count = format!("SELECT count(*) FROM {table} NOT INDEXED WHERE {condition}");
        let rows: i64 = database.query_row(&count, [], |row| row.get(0)).unwrap();
        drop(database);
        if rows == 0 {
            continue;
        }
        damaged += 1;
        let findings = file_findings(&path).await;
        assert!(findings.iter().any(|finding| finding.contains(index.as_str())), "{index}: {findings:?}");
        let store = SqliteStore::open_for_inspection(&path).unwrap();
        verification::rebuild(&store, |_| {}).await.unwrap();
        assert_eq!(verification_findings(&store).await, Vec::<String>::new(), "{index}");
    }
    assert!(damaged >= indexes.len() - 2, "{damaged} of {} indexes", indexes.len());
}

fn edit_schema(path: &Path, index: &str, sql: &str) {
    let database = Connection::open(path).unwrap();
    database.execute_batch("PRAGMA writable_schema = ON").unwrap();
    database.execute("UPDATE sqlite_schema SET sql = ?1 WHERE name = ?2", [sql, index]).unwrap();
}

#[tokio::test]
async fn damage_to_each_column_on_a_server_is_found() {
    let url = server::new_schema(&server::postgres_url());
    let store = registry::open(&url).await.unwrap();
    fill(&*store).await;
    let (client, connection) = tokio_postgres::connect(&server::postgres_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = url.split("schema=").last().unwrap();
    client.batch_execute(&format!("SET search_path TO {schema}")).await.unwrap();
    let sql = "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns
               WHERE table_schema = $1";
    let columns = client.query(sql, &[&schema]).await.unwrap();
    assert!(columns.len() > 30);
    for row in columns {
        let (table, column, kind): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        if NOT_DERIVED.contains(&table.as_str()) || NOT_REDUNDANT.contains(&column.as_str()) {
            continue;
        }
        let values: &[&str] = match kind.as_str() {
            "bigint" => &["coalesce(#, 0) + 1", "-1", "NULL"],
            "boolean" => &["NOT #"],
            _ => &["# || 'x'", "''"],
        };
        let mut tried = 0;
        for value in values {
            let value = value.replace('#', &column);
            let find = format!(
                "SELECT ctid::text, {column}::text FROM {table} WHERE {column} IS DISTINCT FROM {value} LIMIT 1"
            );
            let Some(row) = client.query_opt(&find, &[]).await.unwrap() else { continue };
            let (place, old): (String, Option<String>) = (row.get(0), row.get(1));
            let change =
                format!("UPDATE {table} SET {column} = {value} WHERE ctid = '{place}' RETURNING ctid::text");
            let Ok(changed) = client.query_one(&change, &[]).await else { continue };
            tried += 1;
            assert_ne!(verification_findings(&*store).await, Vec::<String>::new(), "{change}");
            let place: String = changed.get(0);
            let back = format!("UPDATE {table} SET {column} = $1::text::{kind} WHERE ctid = '{place}'");
            client.execute(&back, &[&old]).await.unwrap();
        }
        assert!(tried > 0, "{table}.{column} could not be changed at all");
    }
    assert_eq!(verification_findings(&*store).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_row_that_an_index_on_a_server_does_not_find_is_found_and_repaired() {
    let url = server::new_schema(&server::postgres_url());
    let store = registry::open(&url).await.unwrap();
    fill(&*store).await;
    let (client, connection) = tokio_postgres::connect(&server::postgres_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = url.split("schema=").last().unwrap();
    // A row is written while the index is marked as not ready, so the index does not contain it.
    let ready = |value: &str| {
        format!(
            "UPDATE pg_index SET indisready = {value}, indislive = {value}
             WHERE indexrelid = '{schema}.interactions_of_run'::regclass"
        )
    };
    client.batch_execute("SET allow_system_table_mods = on").await.unwrap();
    client.batch_execute(&ready("false")).await.unwrap();
    let copied = format!(
        "SET search_path TO {schema};
         CREATE TABLE kept AS SELECT * FROM interactions;
         DELETE FROM interactions;
         INSERT INTO interactions SELECT * FROM kept;
         DROP TABLE kept"
    );
    client.batch_execute(&copied).await.unwrap();
    client.batch_execute(&ready("true")).await.unwrap();
    let findings = verification_findings(&*store).await;
    assert!(findings.iter().any(|finding| finding.contains("interactions_of_run")), "{findings:?}");
    verification::rebuild(&*store, |_| {}).await.unwrap();
    assert_eq!(verification_findings(&*store).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_server_that_lost_acknowledged_input_is_refused_and_can_be_accepted() {
    let url = server::new_schema(&server::postgres_url());
    let home = tempfile::tempdir().unwrap();
    let opening =
        |loss| registry::StoreOptions { home: Some(home.path().to_owned()), loss, read_only: false };
    let open = async |loss| registry::open_with(&url, opening(loss)).await;
    let opened = open(abide_store::LossPolicy::Refuse).await.unwrap();
    fill(&*opened.store).await;
    let head = opened.store.head().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server::postgres_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = url.split("schema=").last().unwrap();
    // As after a failover to a replica that lacked the last entry.
    let older = format!(
        "SET search_path TO {schema};
         DELETE FROM journal WHERE seq = (SELECT seq FROM head);
         UPDATE head SET (seq, chain) = (SELECT seq, chain FROM journal ORDER BY seq DESC LIMIT 1)"
    );
    client.batch_execute(&older).await.unwrap();
    let error = opened.store.commit(HistoryGenerator::new(9, 7).commit()).await.unwrap_err();
    assert!(matches!(error, StoreError::InputLost { .. }), "{error}");
    assert!(opened.store.health().is_err());
    drop(opened);
    let error = open(abide_store::LossPolicy::Refuse).await.unwrap_err();
    assert!(matches!(error, StoreError::InputLost { .. }), "{error}");
    assert!(error.to_string().contains(&format!("entry {} as acknowledged", head.0)), "{error}");
    let looked = registry::StoreOptions { read_only: true, ..opening(abide_store::LossPolicy::Refuse) };
    let looked = registry::open_with(&url, looked).await.unwrap();
    let findings = verification_findings(&*looked.store).await;
    assert!(findings[0].contains("acknowledged input is missing"), "{findings:?}");
    let accepted = open(abide_store::LossPolicy::Accept).await.unwrap();
    assert!(accepted.notes[0].contains("--accept-loss"), "{:?}", accepted.notes);
    accepted.store.commit(HistoryGenerator::new(9, 7).commit()).await.expect("it continues");
    drop(accepted);
    let again = open(abide_store::LossPolicy::Refuse).await.expect("once accepted, it is as good as any");
    assert_eq!(again.notes, Vec::<String>::new());
}
