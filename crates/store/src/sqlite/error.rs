//! What SQLite's failures mean to a caller.

use abide_ports::store::StoreError;
use rusqlite::ErrorCode;

/// A failure outside of a commit's last moment: nothing was written.
pub(super) fn failed(error: &rusqlite::Error) -> StoreError {
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full { reason },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged { what: reason },
        _ if is_unreadable(error) => StoreError::Damaged { what: reason },
        _ => StoreError::Unavailable { reason },
    }
}

/// A failure of the COMMIT itself. If the disk failed, the pages may have reached it all the same, and the next
/// start would find them.
pub(super) fn commit_failed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => StoreError::OutcomeUnknown { reason: error.to_string() },
        _ => failed(error),
    }
}

/// A column that does not hold what it must hold.
fn is_unreadable(error: &rusqlite::Error) -> bool {
    matches!(
        error,
        rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
    )
}
