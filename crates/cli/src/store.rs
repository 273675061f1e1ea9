//! Converts store errors for the command line.

use abide_ports::store::StoreError;

use crate::error::CliError;

/// Converts the error of a store that could not be opened. Lost acknowledged input has a code of its own.
pub(crate) fn open_error(error: StoreError) -> anyhow::Error {
    let code = match &error {
        StoreError::InputLost { .. } => "INPUT_LOST",
        StoreError::Damaged { .. } => "STORE_DAMAGED",
        StoreError::IncompatibleVersion { .. } => "STORE_MISMATCHED",
        StoreError::Full { .. } => "STORE_FULL",
        StoreError::InUse { .. } => "STORE_IN_USE",
        StoreError::Conflict { .. }
        | StoreError::KeyTaken { .. }
        | StoreError::Unavailable { .. }
        | StoreError::OutcomeUnknown { .. }
        | StoreError::FilesGone { .. }
        | StoreError::Unsupported { .. }
        | StoreError::Invalid(_) => {
            return anyhow::Error::new(error).context("cannot open the store");
        }
    };
    CliError::failure(code, format!("cannot open the store: {error}")).into()
}
