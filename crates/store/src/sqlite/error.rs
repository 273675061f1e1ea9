//! Translates errors of SQLite to store errors.

use std::path::Path;

use abide_ports::store::{StoreError, StoreInputError};
use rusqlite::ErrorCode;

/// An error before the COMMIT. Nothing was written.
pub(super) fn failed(error: &rusqlite::Error) -> StoreError {
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full { reason },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged { detail: reason },
        _ if is_unreadable(error) => StoreError::Damaged { detail: reason },
        _ => StoreError::Unavailable { reason },
    }
}

/// An error of the COMMIT. If the disk failed, the pages may have been written anyway, and the next start would find
/// them.
pub(super) fn commit_failed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => StoreError::OutcomeUnknown { reason: error.to_string() },
        _ => failed(error),
    }
}

/// The error for a path that SQLite cannot use, because it is not UTF-8.
pub(super) fn path_error(path: &Path) -> StoreError {
    StoreError::Invalid(StoreInputError::Location {
        detail: format!("the path {} is not UTF-8", path.display()),
    })
}

/// Whether a column has an invalid value.
fn is_unreadable(error: &rusqlite::Error) -> bool {
    matches!(
        error,
        rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
    )
}
