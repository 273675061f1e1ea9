//! Assembles the tables of a run from database rows. One statement reads all of them, so they are consistent.

use abide_domain::{
    delivery::Delivery,
    event::KeyClaim,
    inbound::{Inbound, MessageKey},
    interaction::Interaction,
    run::Run,
    turn::Turn,
};
use abide_ports::store::{RunTables, StoreError};

use crate::record::{DeliveryKeys, InteractionKeys, RunKeys, check_columns, decode_body};

/// All rows of a run, in the form of [`TableRow`]. Valid in both SQL dialects.
pub(crate) const ROWS_OF_RUN: &str = "
    SELECT 'runs', run_id, status, CAST(revision AS BIGINT), deadline_at, activity, body
        FROM runs WHERE run_id = $1
    UNION ALL SELECT 'inbound', message_id, channel, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), body
        FROM inbound WHERE run_id = $1
    UNION ALL SELECT 'turns', turn_id, '', NULL, NULL, NULL, body
        FROM turns WHERE run_id = $1
    UNION ALL SELECT 'interactions', interaction_id, '', NULL, NULL, CAST(CAST(open AS INTEGER) AS BIGINT), body
        FROM interactions WHERE run_id = $1
    UNION ALL SELECT 'deliveries', delivery_id, conversation_ref, NULL, NULL, CAST(CAST(retry_pending AS INTEGER) AS BIGINT), body
        FROM deliveries WHERE run_id = $1
    UNION ALL SELECT 'claims', key, scope, NULL, NULL, NULL, fingerprint
        FROM claims WHERE run_id = $1";

/// The tables with rows of runs.
pub(crate) const TABLES: [&str; 6] = ["runs", "inbound", "turns", "interactions", "deliveries", "claims"];

/// A row of any table.
pub(crate) struct TableRow {
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) text_key: String,
    pub(crate) number: Option<i64>,
    pub(crate) time: Option<i64>,
    pub(crate) flag: Option<i64>,
    pub(crate) body: String,
}

/// Assembles tables from rows. A row whose columns do not match its body is reported as damaged.
pub(crate) fn assemble_tables(rows: impl IntoIterator<Item = TableRow>) -> Result<RunTables, StoreError> {
    let mut tables = RunTables::default();
    for row in rows {
        insert_row(&mut tables, row)?;
    }
    tables.claims.sort();
    Ok(tables)
}

fn insert_row(tables: &mut RunTables, row: TableRow) -> Result<(), StoreError> {
    let (table, name) = (row.table.as_str(), row.name.as_str());
    match table {
        "runs" => {
            let run: Run = decode_body(table, name, &row.body)?;
            let expected = RunKeys::of(&run);
            check_columns(table, name, &row.text_key.as_str(), &expected.status)?;
            let columns = RunKeys {
                revision: row.number.unwrap_or(0),
                status: expected.status,
                deadline_at: row.time,
                activity: row.flag,
            };
            check_columns(table, name, &(&columns, name), &(&expected, run.run_id.to_string().as_str()))?;
            tables.run = Some(run);
        }
        "inbound" => {
            let inbound: Inbound = decode_body(table, name, &row.body)?;
            let key = MessageKey { channel: row.text_key, message_id: row.name.clone() };
            check_columns(table, name, &key, &inbound.message.key)?;
            tables.inbound.insert(key, inbound);
        }
        "turns" => {
            let turn: Turn = decode_body(table, name, &row.body)?;
            check_columns(table, name, &name, &turn.turn_id.to_string().as_str())?;
            tables.turns.insert(turn.turn_id, turn);
        }
        "interactions" => {
            let interaction: Interaction = decode_body(table, name, &row.body)?;
            let id = interaction.interaction_id.to_string();
            // Compared as a number, because an index on the value 1 does not contain the value 2.
            let expected = (id.as_str(), Some(i64::from(InteractionKeys::of(&interaction).open)));
            check_columns(table, name, &(name, row.flag), &expected)?;
            tables.interactions.insert(interaction.interaction_id, interaction);
        }
        "deliveries" => {
            let delivery: Delivery = decode_body(table, name, &row.body)?;
            let (id, keys) = (delivery.delivery_id.to_string(), DeliveryKeys::of(&delivery));
            let expected = (id.as_str(), keys.conversation_ref.as_str(), Some(i64::from(keys.retry_pending)));
            check_columns(table, name, &(name, row.text_key.as_str(), row.flag), &expected)?;
            tables.deliveries.insert(delivery.delivery_id, delivery);
        }
        _ => tables.claims.push(KeyClaim { scope: row.text_key, key: row.name, fingerprint: row.body }),
    }
    Ok(())
}

/// The runs after the first parameter that appear in any table. It seeks from one run to the next, so the cost does not
/// depend on the length of the journal.
pub(crate) fn known_runs_sql() -> String {
    // In the journal, every run begins with revision 1.
    let sources = [
        "journal WHERE revision = 1 AND",
        "runs WHERE",
        "inbound WHERE",
        "turns WHERE",
        "interactions WHERE",
        "deliveries WHERE",
        "claims WHERE",
    ];
    let next = |after: &str| {
        let seeks =
            sources.map(|place| format!("SELECT min(run_id) AS run_id FROM {place} run_id > {after}"));
        format!("(SELECT min(run_id) FROM ({}) AS seeks)", seeks.join(" UNION ALL "))
    };
    format!(
        "WITH RECURSIVE known (run_id) AS (
             SELECT {} UNION ALL SELECT {} FROM known WHERE known.run_id IS NOT NULL
         ) SELECT run_id FROM known WHERE run_id IS NOT NULL LIMIT $2",
        next("$1"),
        next("known.run_id")
    )
}
