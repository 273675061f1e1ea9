//! Writes a batch: one statement per table, sent together, followed by the COMMIT.

use abide_domain::event::KeyClaim;
use abide_ports::store::{ClaimHolder, StoreError};
use futures_util::future::try_join_all;
use tokio_postgres::{Error, types::ToSql};

use super::{
    batch::{BatchBaseline, MergedRows, PlacedEntry},
    connect::PostgresConnection,
    error::failed,
    text::{escape_nul, unescape_nul},
};
use crate::{
    chain::JournalHead,
    record::{CommitRow, EntryRow, TableRows, parse_id},
    row_buffer::TextRange,
    run_rows::TABLES,
};

/// Locks the head row, and reads the current rows of these runs and keys. One round trip.
pub(super) async fn begin(
    session: &PostgresConnection,
    records: &[&CommitRow],
) -> Result<BatchBaseline, StoreError> {
    let runs: Vec<_> = records.iter().map(|record| record.rows.run()).collect();
    let claims: Vec<&KeyClaim> = records.iter().flat_map(|record| &record.rows.claims).collect();
    let scopes: Vec<_> = claims.iter().map(|claim| escape_nul(&claim.scope)).collect();
    let keys: Vec<_> = claims.iter().map(|claim| escape_nul(&claim.key)).collect();
    let head = "SELECT seq, chain FROM head FOR UPDATE";
    let found_runs = "SELECT run_id, ''::text, ''::text, revision, ''::text FROM runs WHERE run_id = ANY($1)";
    let found_claims = "SELECT run_id, scope, key, 0::bigint, fingerprint FROM claims
                        WHERE (scope, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))";
    let queries: [(&str, Vec<&(dyn ToSql + Sync)>); 3] =
        [(head, vec![]), (found_runs, vec![&runs]), (found_claims, vec![&scopes, &keys])];
    for (sql, _) in &queries {
        session.prepare(sql).await.map_err(|error| failed(&error))?;
    }
    session.client.batch_execute("BEGIN").await.map_err(|error| failed(&error))?;
    let pending = queries.iter().map(|(sql, values)| session.query(sql, values));
    let results = try_join_all(pending).await.map_err(|error| failed(&error))?;
    let mut baseline = BatchBaseline::default();
    for row in &results[0] {
        baseline.head = JournalHead { seq: row.get(0), chain: row.get(1) };
    }
    for row in &results[1] {
        baseline.revisions.insert(parse_id("runs", row.get(0))?, row.get::<_, i64>(3) as u64);
    }
    for row in &results[2] {
        let holder =
            ClaimHolder { run_id: parse_id("claims", row.get(0))?, fingerprint: unescape_nul(row.get(4)) };
        baseline.claims.insert((unescape_nul(row.get(1)), unescape_nul(row.get(2))), holder);
    }
    Ok(baseline)
}

/// Sends the rows of a batch. One round trip after the statements are prepared.
pub(super) async fn write_rows(
    session: &PostgresConnection,
    head: JournalHead,
    batch: &MergedRows<'_>,
) -> Result<(), Error> {
    let mut statements = StatementBatch::default();
    statements.add("UPDATE head SET seq = $1, chain = $2", vec![Box::new(head.seq), Box::new(head.chain)]);
    if !batch.entries.is_empty() {
        let column = |read: fn(&PlacedEntry<'_>) -> i64| -> SqlColumn<'_> {
            Box::new(batch.entries.iter().map(read).collect::<Vec<_>>())
        };
        let text = |part: fn(&TableRows, &EntryRow) -> TextRange| -> SqlColumn<'_> {
            let texts = batch.entries.iter().map(|it| &it.rows.text[part(it.rows, it.entry)]);
            Box::new(texts.collect::<Vec<_>>())
        };
        statements.add(
            "INSERT INTO journal (seq, run_id, revision, at, id_seed, event, checksum, chain)
             SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[],
                                  $7::bigint[], $8::bigint[])",
            vec![
                column(|it| it.head.seq),
                text(|rows, _| rows.run),
                column(|it| it.entry.revision),
                column(|it| it.entry.at),
                text(|_, entry| entry.id_seed),
                text(|_, entry| entry.event),
                column(|it| it.checksum),
                column(|it| it.head.chain),
            ],
        );
    }
    add_ledger_statements(&mut statements, batch);
    statements.send(session).await
}

fn add_ledger_statements<'a>(statements: &mut StatementBatch<'a>, batch: &'a MergedRows<'a>) {
    if !batch.runs.is_empty() {
        let keys = || batch.runs.values().map(|(keys, _)| keys);
        statements.add(
            "INSERT INTO runs (run_id, revision, status, deadline_at, activity, body)
             SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::text[])
             ON CONFLICT (run_id) DO UPDATE SET revision = excluded.revision, status = excluded.status,
                 deadline_at = excluded.deadline_at, activity = excluded.activity, body = excluded.body",
            vec![
                column(batch.runs.keys().copied()),
                column(keys().map(|keys| keys.revision)),
                column(keys().map(|keys| keys.status)),
                column(keys().map(|keys| keys.deadline_at)),
                column(keys().map(|keys| keys.activity)),
                column(batch.runs.values().map(|(_, body)| *body)),
            ],
        );
    }
    if !batch.inbound.is_empty() {
        statements.add(
            "INSERT INTO inbound (channel, message_id, run_id, body)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
             ON CONFLICT (channel, message_id) DO UPDATE SET body = excluded.body",
            vec![
                column(batch.inbound.keys().map(|(channel, _)| escape_nul(channel))),
                column(batch.inbound.keys().map(|(_, message)| escape_nul(message))),
                column(batch.inbound.values().map(|(run, _)| *run)),
                column(batch.inbound.values().map(|(_, body)| *body)),
            ],
        );
    }
    if !batch.turns.is_empty() {
        statements.add(
            "INSERT INTO turns (turn_id, run_id, body) SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
             ON CONFLICT (turn_id) DO UPDATE SET body = excluded.body",
            vec![
                column(batch.turns.keys().copied()),
                column(batch.turns.values().map(|(run, _)| *run)),
                column(batch.turns.values().map(|(_, body)| *body)),
            ],
        );
    }
    if !batch.interactions.is_empty() {
        statements.add(
            "INSERT INTO interactions (interaction_id, run_id, open, body)
             SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::text[])
             ON CONFLICT (interaction_id) DO UPDATE SET open = excluded.open, body = excluded.body",
            vec![
                column(batch.interactions.keys().copied()),
                column(batch.interactions.values().map(|(run, _, _)| *run)),
                column(batch.interactions.values().map(|(_, keys, _)| keys.open)),
                column(batch.interactions.values().map(|(_, _, body)| *body)),
            ],
        );
    }
    if !batch.deliveries.is_empty() {
        statements.add(
            "INSERT INTO deliveries (delivery_id, run_id, conversation_ref, retry_pending, body)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[], $5::text[])
             ON CONFLICT (delivery_id) DO UPDATE SET retry_pending = excluded.retry_pending, body = excluded.body",
            vec![
                column(batch.deliveries.keys().copied()),
                column(batch.deliveries.values().map(|(run, _, _)| *run)),
                column(batch.deliveries.values().map(|(_, keys, _)| escape_nul(&keys.conversation_ref))),
                column(batch.deliveries.values().map(|(_, keys, _)| keys.retry_pending)),
                column(batch.deliveries.values().map(|(_, _, body)| *body)),
            ],
        );
    }
    add_claim_statements(statements, batch);
}

fn add_claim_statements<'a>(statements: &mut StatementBatch<'a>, batch: &'a MergedRows<'a>) {
    if !batch.claims.is_empty() {
        statements.add(
            "INSERT INTO claims (scope, key, fingerprint, run_id)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
             ON CONFLICT (scope, key) DO UPDATE SET fingerprint = excluded.fingerprint, run_id = excluded.run_id",
            vec![
                column(batch.claims.iter().map(|(claim, _)| escape_nul(&claim.scope))),
                column(batch.claims.iter().map(|(claim, _)| escape_nul(&claim.key))),
                column(batch.claims.iter().map(|(claim, _)| escape_nul(&claim.fingerprint))),
                column(batch.claims.iter().map(|(_, run)| *run)),
            ],
        );
    }
}

/// Deletes all rows of a run, and rows with the same keys that are stored under another run.
pub(super) async fn delete_run_rows(session: &PostgresConnection, rows: &TableRows) -> Result<(), Error> {
    for table in TABLES {
        session.execute(&format!("DELETE FROM {table} WHERE run_id = $1"), &[&rows.run()]).await?;
    }
    let text = &rows.text;
    for (channel, message, _) in &rows.inbound {
        let sql = "DELETE FROM inbound WHERE channel = $1 AND message_id = $2";
        session.execute(sql, &[&escape_nul(&text[*channel]), &escape_nul(&text[*message])]).await?;
    }
    for (turn, _) in &rows.turns {
        session.execute("DELETE FROM turns WHERE turn_id = $1", &[&&text[*turn]]).await?;
    }
    for (interaction, _, _) in &rows.interactions {
        let sql = "DELETE FROM interactions WHERE interaction_id = $1";
        session.execute(sql, &[&&text[*interaction]]).await?;
    }
    for (delivery, _, _) in &rows.deliveries {
        session.execute("DELETE FROM deliveries WHERE delivery_id = $1", &[&&text[*delivery]]).await?;
    }
    Ok(())
}

type SqlColumn<'a> = Box<dyn ToSql + Sync + Send + 'a>;

fn column<'a, T: ToSql + Sync + Send + 'a>(values: impl Iterator<Item = T>) -> SqlColumn<'a> {
    Box::new(values.collect::<Vec<_>>())
}

/// Statements that are sent together.
#[derive(Default)]
struct StatementBatch<'a> {
    statements: Vec<(&'static str, Vec<SqlColumn<'a>>)>,
}

impl<'a> StatementBatch<'a> {
    fn add(&mut self, sql: &'static str, columns: Vec<SqlColumn<'a>>) {
        self.statements.push((sql, columns));
    }

    async fn send(&self, session: &PostgresConnection) -> Result<(), Error> {
        // A statement is sent when its future is first polled, so all statements must be prepared before.
        for (sql, _) in &self.statements {
            session.prepare(sql).await?;
        }
        let sent = self.statements.iter().map(async |(sql, columns)| {
            let values: Vec<&(dyn ToSql + Sync)> =
                columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect();
            session.execute(sql, &values).await
        });
        try_join_all(sent).await.map(drop)
    }
}
