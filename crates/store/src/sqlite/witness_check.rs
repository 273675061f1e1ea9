//! The witness of a database file: the comparison, and the reaction to missing acknowledged input.
//!
//! A database whose witness is missing or unreadable is opened, with a note for the operator. The witness is redundant,
//! so its loss does not lose input. Earlier losses of input can then no longer be detected.

use std::{
    fs,
    path::{Path, PathBuf},
};

use abide_ports::store::StoreError;
use rusqlite::{Connection, OptionalExtension};

use super::{
    connect::{error_with_path, property, set_property},
    error::failed,
    lock::sibling_path,
};
use crate::{
    chain::JournalHead,
    record::CHAIN_AT_WITNESS_SQL,
    witness::{self, WitnessReading, WitnessWriter, write_error},
};

/// The result of comparing a database with its witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WitnessVerdict {
    /// All acknowledged input is present.
    Agrees,
    /// There never was a witness.
    NeverWitnessed,
    /// The witness is missing or unreadable, so a comparison is not possible.
    Unavailable { reason: String },
    /// Acknowledged input is missing.
    InputLost { detail: String },
}

/// The path of a database's witness.
pub(super) fn witness_path(database: &Path) -> PathBuf {
    sibling_path(database, "witness")
}

/// Compares a database with its witness. Changes neither.
pub(super) fn compare_with_witness(
    connection: &Connection,
    path: &Path,
) -> Result<WitnessVerdict, StoreError> {
    // The witness is read first, because concurrent commits can only make the database newer.
    let witness = witness_path(path);
    let witnessed = match witness::read(&witness) {
        WitnessReading::Head(witnessed) => witnessed,
        WitnessReading::Missing => {
            let was_present =
                property(connection, "witness").map_err(|error| error_with_path(path, &error))?.is_some();
            let reason = format!("its witness {} is missing", witness.display());
            return Ok(if was_present { unavailable(&reason) } else { WitnessVerdict::NeverWitnessed });
        }
        WitnessReading::Unreadable(reason) => return Ok(unavailable(&format!("its witness {reason}"))),
    };
    let journal = JournalFormat::of(connection).map_err(|error| error_with_path(path, &error))?;
    let compared = journal
        .chain_at(connection, witnessed)
        .and_then(|chain| Ok((journal.head(connection)?, chain)))
        .map_err(|error| error_with_path(path, &error));
    let (head, chain) = compared?;
    match witness::compare(&path.display().to_string(), witnessed, head, chain) {
        Ok(()) => Ok(WitnessVerdict::Agrees),
        Err(StoreError::InputLost { detail }) => Ok(WitnessVerdict::InputLost { detail }),
        Err(other) => Err(other),
    }
}

fn unavailable(reason: &str) -> WitnessVerdict {
    let reason = format!("{reason}; it is unknown whether acknowledged input was lost before now");
    WitnessVerdict::Unavailable { reason }
}

/// Restarts the witness at this head, and records in the database that it has one.
pub(super) fn restart_witness(
    connection: &Connection,
    path: &Path,
    head: JournalHead,
) -> Result<WitnessWriter, StoreError> {
    let witness = WitnessWriter::start(&witness_path(path), head)?;
    set_property(connection, "witness", "yes")?;
    Ok(witness)
}

/// Records an accepted loss of input, for `abide verify` and later investigation.
pub(super) fn record_accepted_loss(connection: &Connection, detail: &str) -> Result<(), StoreError> {
    let now: String = connection
        .query_row("SELECT strftime('%Y-%m-%dT%H:%M:%SZ', 'now')", [], |row| row.get(0))
        .map_err(|error| failed(&error))?;
    set_property(connection, "accepted_loss", &format!("{now}: {detail}"))
}

/// Renames a log that belongs to no database any more.
pub(super) fn rename_orphan_log(path: &Path) -> Result<(), StoreError> {
    let log = sibling_path(path, "wal");
    if !log.exists() {
        return Ok(());
    }
    let free =
        (1..).map(|number| sibling_path(path, &format!("wal-lost-{number}"))).find(|name| !name.exists());
    let Some(aside) = free else { return Ok(()) };
    fs::rename(&log, &aside).map_err(|error| write_error(&aside, &error))
}

/// The format of a database's journal, which depends on its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JournalFormat {
    /// There is no journal yet.
    None,
    /// The journal was written before the chain existed.
    Unchained,
    /// The journal has its first names and chained checksums.
    Chained,
    /// The journal has its current names, and the chained checksums of migrated entries from before the migration.
    Renamed,
}

impl JournalFormat {
    fn of(connection: &Connection) -> rusqlite::Result<Self> {
        let sql = "SELECT count(*), coalesce(sum(name IN ('chain', 'chain_before_names')), 0)
                   FROM pragma_table_info('journal')";
        let (columns, chains): (i64, i64) =
            connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(match (columns, chains) {
            (0, _) => Self::None,
            (_, 0) => Self::Unchained,
            (_, 1) => Self::Chained,
            (_, _) => Self::Renamed,
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
            Self::Chained | Self::Renamed => super::write::head(connection),
        }
    }

    /// The chained checksum at the witness's position. A migration recomputes the chain, and its transaction cannot
    /// include the witness, so a witness from before the migration is compared with the checksum from before.
    fn chain_at(self, connection: &Connection, witness: JournalHead) -> rusqlite::Result<Option<i64>> {
        match self {
            Self::None | Self::Unchained => Ok(None),
            Self::Chained => {
                let sql = "SELECT coalesce(chain, 0) FROM journal WHERE seq = ?1";
                connection.query_row(sql, [witness.seq], |row| row.get(0)).optional()
            }
            Self::Renamed => {
                let values = [witness.chain, witness.seq];
                connection.query_row(CHAIN_AT_WITNESS_SQL, values, |row| row.get(0)).optional()
            }
        }
    }
}
