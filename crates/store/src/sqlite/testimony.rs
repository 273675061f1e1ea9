//! A database file and its witness: whether they agree, and what is done if acknowledged input is missing.
//!
//! A database that had a witness which is gone or unreadable is opened, with a note for the operator: the witness is a
//! second opinion, and losing it loses no input. What was lost before that moment can then no longer be noticed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use abide_ports::store::StoreError;
use rusqlite::{Connection, OptionalExtension};

use super::{
    connect::{named, note, noted},
    error::failed,
    lock::beside,
};
use crate::{
    chain::JournalHead,
    witness::{self, WitnessReading, WitnessWriter, unwritable},
};

/// How a database compares with its witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WitnessVerdict {
    /// Everything that was acknowledged is there.
    Agrees,
    /// There never was a witness.
    Unused,
    /// The witness is gone or unreadable, so nobody can tell.
    Unwitnessed { why: String },
    /// Something that was acknowledged is missing.
    Lost { what: String },
}

/// The witness of a database.
pub(super) fn path_of(database: &Path) -> PathBuf {
    beside(database, "witness")
}

/// Compares a database with its witness. Neither is changed.
pub(super) fn judge(connection: &Connection, path: &Path) -> Result<WitnessVerdict, StoreError> {
    // The witness is read first: a daemon that commits meanwhile only makes the database newer.
    let witness = path_of(path);
    let seen = match witness::read(&witness) {
        WitnessReading::Head(seen) => seen,
        WitnessReading::Missing => {
            let had = noted(connection, "witness").map_err(|error| named(path, &error))?.is_some();
            let why = format!("its witness {} is missing", witness.display());
            return Ok(if had { unwitnessed(&why) } else { WitnessVerdict::Unused });
        }
        WitnessReading::Unreadable(why) => return Ok(unwitnessed(&format!("its witness {why}"))),
    };
    let journal = JournalFormat::of(connection).map_err(|error| named(path, &error))?;
    let compared = journal
        .chain_at(connection, seen.seq)
        .and_then(|chain| Ok((journal.head(connection)?, chain)))
        .map_err(|error| named(path, &error));
    let (head, chain) = compared?;
    match witness::compare(&path.display().to_string(), seen, head, chain) {
        Ok(()) => Ok(WitnessVerdict::Agrees),
        Err(StoreError::Lost { what }) => Ok(WitnessVerdict::Lost { what }),
        Err(other) => Err(other),
    }
}

fn unwitnessed(why: &str) -> WitnessVerdict {
    let why = format!("{why}; whether acknowledged input was lost before now cannot be told");
    WitnessVerdict::Unwitnessed { why }
}

/// Starts the witness anew at this head, and notes in the database that there is one.
pub(super) fn start(
    connection: &Connection,
    path: &Path,
    head: JournalHead,
) -> Result<WitnessWriter, StoreError> {
    let witness = WitnessWriter::start(&path_of(path), head)?;
    note(connection, "witness", "yes")?;
    Ok(witness)
}

/// Records that a loss was accepted, for `abide verify` and for whoever wonders later.
pub(super) fn accept_loss(connection: &Connection, what: &str) -> Result<(), StoreError> {
    let now: String = connection
        .query_row("SELECT strftime('%Y-%m-%dT%H:%M:%SZ', 'now')", [], |row| row.get(0))
        .map_err(|error| failed(&error))?;
    note(connection, "accepted_loss", &format!("{now}: {what}"))
}

/// Moves a log out of the way that belongs to no database any more. It is kept under another name.
pub(super) fn set_log_aside(path: &Path) -> Result<(), StoreError> {
    let log = beside(path, "wal");
    if !log.exists() {
        return Ok(());
    }
    let free = (1..).map(|number| beside(path, &format!("wal-lost-{number}"))).find(|name| !name.exists());
    let Some(aside) = free else { return Ok(()) };
    fs::rename(&log, &aside).map_err(|error| unwritable(&aside, &error))
}

/// What the journal of a database of any version can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JournalFormat {
    /// There is none yet.
    None,
    /// It was written before there was a chain.
    Unchained,
    Chained,
}

impl JournalFormat {
    fn of(connection: &Connection) -> rusqlite::Result<Self> {
        let sql = "SELECT count(*), coalesce(sum(name = 'chain'), 0) FROM pragma_table_info('journal')";
        let (columns, chains): (i64, i64) =
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(match (columns, chains) {
            (0, _) => Self::None,
            (_, 0) => Self::Unchained,
            (_, _) => Self::Chained,
        })
    }

    fn head(self, connection: &Connection) -> rusqlite::Result<JournalHead> {
        match self {
            Self::None => Ok(JournalHead::default()),
            Self::Unchained => {
                let newest = "SELECT coalesce(max(seq), 0) FROM journal";
                let seq = connection.query_row(newest, [], |row| row.get(0))?;
                Ok(JournalHead { seq, chain: 0 })
            }
            Self::Chained => super::write::head(connection),
        }
    }

    fn chain_at(self, connection: &Connection, seq: i64) -> rusqlite::Result<Option<i64>> {
        match self {
            Self::None | Self::Unchained => Ok(None),
            Self::Chained => {
                let sql = "SELECT coalesce(chain, 0) FROM journal WHERE seq = ?1";
                connection.query_row(sql, [seq], |row| row.get(0)).optional()
            }
        }
    }
}
