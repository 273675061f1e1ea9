//! Errors of requests.

use abide_domain::{id::RunId, refused::RequestRefused};
use abide_ports::{store::StoreError, workspace::WorkspaceError};

use crate::pressure::DiskShortage;

/// Why an event changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The domain refused it.
    #[error(transparent)]
    Refused(#[from] RequestRefused),
    /// The key was used before for another request.
    #[error("key {key} was used before for another request, which made run {run_id}")]
    KeyReused {
        key: String,
        /// The run of the earlier request.
        run_id: RunId,
    },
    /// There is too little disk space for new input.
    #[error("{0}")]
    Shortage(DiskShortage),
    /// No run may work in the workspace.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The store failed. The error states whether the commit may have been written.
    #[error(transparent)]
    Store(#[from] StoreError),
}
