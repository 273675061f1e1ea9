//! Re-encodes all stored values of a database within the transaction of a migration.

use abide_ports::store::StoreError;
use rusqlite::Connection;

use super::error::failed;
use crate::{
    migration::reencode::{BODY_TABLES, JournalReencoder, PAGE_ROWS, ReencodedEntry, reencode_body},
    record::StoredEntry,
};

/// Re-encodes the journal and the tables.
pub(super) fn reencode_all(connection: &Connection) -> Result<(), StoreError> {
    reencode_journal(connection)?;
    for (table, _) in BODY_TABLES {
        reencode_table(connection, table).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn reencode_journal(connection: &Connection) -> Result<(), StoreError> {
    let mut reencoder = JournalReencoder::default();
    let mut last = 0;
    loop {
        let page = reencode_page(connection, &mut reencoder, last)?;
        let Some((end, _)) = page.last() else { return Ok(()) };
        last = *end;
        write_page(connection, &page).map_err(|error| failed(&error))?;
    }
}

fn reencode_page(
    connection: &Connection,
    reencoder: &mut JournalReencoder,
    after: i64,
) -> Result<Vec<(i64, ReencodedEntry)>, StoreError> {
    let sql = "SELECT seq, run_id, revision, at, id_seed, event, checksum, chain FROM journal
               WHERE seq > ?1 ORDER BY seq LIMIT ?2";
    let mut query = connection.prepare_cached(sql).map_err(|error| failed(&error))?;
    let mut rows = query.query((after, PAGE_ROWS)).map_err(|error| failed(&error))?;
    let mut page = Vec::new();
    while let Some(row) = rows.next().map_err(|error| failed(&error))? {
        let text = |column| row.get_ref(column).and_then(|value| Ok(value.as_str()?));
        let read = || -> rusqlite::Result<_> {
            let entry = StoredEntry {
                seq: row.get(0)?,
                run_id: text(1)?,
                revision: row.get(2)?,
                at: row.get(3)?,
                id_seed: text(4)?,
                event: text(5)?,
                checksum: row.get(6)?,
            };
            Ok((entry, row.get(7)?))
        };
        let (entry, chain) = read().map_err(|error| failed(&error))?;
        page.push((entry.seq, reencoder.next(&entry, chain)?));
    }
    Ok(page)
}

fn write_page(connection: &Connection, page: &[(i64, ReencodedEntry)]) -> rusqlite::Result<()> {
    let sql =
        "UPDATE journal SET event = ?2, checksum = ?3, chain_before_names = chain, chain = ?4 WHERE seq = ?1";
    let mut update = connection.prepare_cached(sql)?;
    for (seq, entry) in page {
        update.execute((seq, &entry.event, entry.checksum, entry.chain))?;
    }
    Ok(())
}

fn reencode_table(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    let mut query = connection.prepare(&format!(
        "SELECT rowid, body FROM {table} WHERE rowid > ?1 ORDER BY rowid LIMIT {PAGE_ROWS}"
    ))?;
    let mut update = connection.prepare(&format!("UPDATE {table} SET body = ?2 WHERE rowid = ?1"))?;
    let mut last = 0_i64;
    loop {
        let rows = query.query_map([last], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let page = rows.collect::<rusqlite::Result<Vec<(i64, String)>>>()?;
        let Some((end, _)) = page.last() else { return Ok(()) };
        last = *end;
        for (rowid, old) in &page {
            if let Some(body) = reencode_body(table, old) {
                update.execute((rowid, body))?;
            }
        }
    }
}
