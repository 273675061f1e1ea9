//! Why an event was not taken.

use abide_domain::{id::RunId, refused::RequestRefused};
use abide_ports::store::StoreError;

use crate::pressure::DiskShortage;

/// An event that changed nothing, and why.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The domain refuses it.
    #[error(transparent)]
    Refused(#[from] RequestRefused),
    /// The sender used a key again for something else.
    #[error("key {key} was used before for another request, which made run {run_id}")]
    KeyReused {
        /// The key.
        key: String,
        /// The run that it led to.
        run_id: RunId,
    },
    /// There is too little disk space for anything new.
    #[error("{0}")]
    Shortage(DiskShortage),
    /// The store could not take it. Whether it was written depends on the error.
    #[error(transparent)]
    Store(#[from] StoreError),
}
