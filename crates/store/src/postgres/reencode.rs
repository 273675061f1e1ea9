//! Re-encodes all stored values of a schema within the transaction of a migration.

use abide_ports::store::StoreError;
use tokio_postgres::{Error, Transaction};

use super::error::failed;
use crate::{
    migration::reencode::{BODY_TABLES, JournalReencoder, PAGE_ROWS, reencode_body},
    record::StoredEntry,
};

/// Re-encodes the journal and the tables.
pub(super) async fn reencode_all(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    reencode_journal(transaction).await?;
    for (table, key) in BODY_TABLES {
        reencode_table(transaction, table, key).await.map_err(|error| failed(&error))?;
    }
    Ok(())
}

async fn reencode_journal(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    let select = "SELECT seq, run_id, revision, at, id_seed, event, checksum, chain FROM journal
                  WHERE seq > $1 ORDER BY seq LIMIT $2";
    let update =
        "UPDATE journal SET event = new.event, checksum = new.checksum, chain_before_names = journal.chain,
                      chain = new.chain
                  FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[])
                      AS new (seq, event, checksum, chain)
                  WHERE journal.seq = new.seq";
    let mut reencoder = JournalReencoder::default();
    let mut last = 0_i64;
    loop {
        let rows = transaction.query(select, &[&last, &PAGE_ROWS]).await.map_err(|error| failed(&error))?;
        let (mut seqs, mut events, mut checksums, mut chains) = (vec![], vec![], vec![], vec![]);
        for row in &rows {
            let entry = StoredEntry {
                seq: row.get(0),
                run_id: row.get(1),
                revision: row.get(2),
                at: row.get(3),
                id_seed: row.get(4),
                event: row.get(5),
                checksum: row.get(6),
            };
            let new = reencoder.next(&entry, row.get(7))?;
            last = entry.seq;
            seqs.push(entry.seq);
            events.push(new.event);
            checksums.push(new.checksum);
            chains.push(new.chain);
        }
        if seqs.is_empty() {
            break;
        }
        let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&seqs, &events, &checksums, &chains];
        transaction.execute(update, values).await.map_err(|error| failed(&error))?;
    }
    // The head repeats the chained checksum of its entry. One that does not is left as it is.
    let (old_chain, new_chain) = reencoder.last_chains();
    let update = "UPDATE head SET chain = $2 WHERE chain = $1";
    transaction.execute(update, &[&old_chain, &new_chain]).await.map(drop).map_err(|error| failed(&error))
}

async fn reencode_table(transaction: &Transaction<'_>, table: &str, key: &str) -> Result<(), Error> {
    let select = format!("SELECT {key}, body FROM {table} WHERE {key} > $1 ORDER BY {key} LIMIT $2");
    let update = format!(
        "UPDATE {table} SET body = new.body FROM unnest($1::text[], $2::text[]) AS new (key, body)
         WHERE {table}.{key} = new.key"
    );
    let mut last = String::new();
    loop {
        let rows = transaction.query(&select, &[&last, &PAGE_ROWS]).await?;
        let Some(end) = rows.last() else { return Ok(()) };
        last = end.get(0);
        let (mut keys, mut bodies): (Vec<String>, Vec<String>) = (vec![], vec![]);
        for row in &rows {
            if let Some(body) = reencode_body(table, row.get(1)) {
                keys.push(row.get(0));
                bodies.push(body);
            }
        }
        transaction.execute(&update, &[&keys, &bodies]).await?;
    }
}
