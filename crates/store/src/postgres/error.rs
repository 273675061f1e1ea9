//! Translates errors of the server to store errors.

use abide_ports::store::{StoreError, StoreInputError};
use tokio_postgres::{Error, error::SqlState};

/// An error before the COMMIT. Nothing was written.
pub(super) fn failed(error: &Error) -> StoreError {
    let reason = server_message(error);
    let Some(code) = error.code() else { return StoreError::Unavailable { reason } };
    match code {
        full if *full == SqlState::DISK_FULL => StoreError::Full { reason },
        rotten if *rotten == SqlState::DATA_CORRUPTED || *rotten == SqlState::INDEX_CORRUPTED => {
            StoreError::Damaged { detail: reason }
        }
        long if *long == SqlState::PROGRAM_LIMIT_EXCEEDED => {
            StoreError::Invalid(StoreInputError::KeyTooLong { reason })
        }
        // All other errors depend on the server's state or configuration, so a retry may succeed.
        _ => StoreError::Unavailable { reason },
    }
}

/// An error of the COMMIT. If the server reports it, nothing was written. If the connection was lost, the outcome is
/// unknown.
pub(super) fn commit_failed(error: &Error) -> StoreError {
    let reported_by_server =
        error.code().is_some_and(|code| !code.code().starts_with("57P") && !code.code().starts_with("08"));
    if reported_by_server {
        failed(error)
    } else {
        StoreError::OutcomeUnknown { reason: server_message(error) }
    }
}

/// The driver's message is only "db error". The server's message is in the source.
fn server_message(error: &Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} ({})", server.message(), server.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
