//! What the server's failures mean to a caller.

use abide_ports::store::StoreError;
use tokio_postgres::{Error, error::SqlState};

/// A failure outside of a commit's last moment: nothing was written.
pub(super) fn failed(error: &Error) -> StoreError {
    let reason = told(error);
    let Some(code) = error.code() else { return StoreError::Unavailable { reason } };
    match code {
        full if *full == SqlState::DISK_FULL => StoreError::Full { reason },
        rotten if *rotten == SqlState::DATA_CORRUPTED || *rotten == SqlState::INDEX_CORRUPTED => {
            StoreError::Damaged { what: reason }
        }
        long if *long == SqlState::PROGRAM_LIMIT_EXCEEDED => {
            StoreError::Invalid { what: format!("a key as long as this ({reason})") }
        }
        // Everything else is the server's state or configuration, and may be otherwise the next time.
        _ => StoreError::Unavailable { reason },
    }
}

/// A failure of the COMMIT itself. A server that answers has not written; one that is gone may have.
pub(super) fn commit_failed(error: &Error) -> StoreError {
    let answered =
        error.code().is_some_and(|code| !code.code().starts_with("57P") && !code.code().starts_with("08"));
    if answered { failed(error) } else { StoreError::OutcomeUnknown { reason: told(error) } }
}

/// The driver's own words are only "db error"; the server's are in the source.
fn told(error: &Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} ({})", server.message(), server.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
