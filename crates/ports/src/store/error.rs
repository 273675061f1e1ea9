//! Errors of a store, grouped by the reaction of the caller.

use abide_domain::id::RunId;

use super::ClaimHolder;

/// A refusal or failure of a store. Unless stated otherwise, nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The run was changed by another commit. Load it again and reapply the event.
    #[error("run {run_id} is at revision {found}, not at {expected} as this change assumes")]
    Conflict {
        run_id: RunId,
        /// The revision on which the change is based.
        expected: u64,
        /// The revision in the store.
        found: u64,
    },
    /// The key is already claimed. The request is a repetition, or the sender reused a key.
    #[error("key {key} of {scope} was used before, for run {}", holder.run_id)]
    KeyTaken {
        /// The namespace of the key.
        scope: String,
        key: String,
        /// The run and request that claimed it.
        holder: ClaimHolder,
    },
    /// The store cannot be reached or is busy. Retry.
    #[error("the store is not available: {reason}")]
    Unavailable { reason: String },
    /// Contact was lost during the commit, so it may have been written. Read before retrying.
    #[error("it is unknown whether the commit was written: {reason}")]
    OutcomeUnknown { reason: String },
    /// There is no space left. Acknowledged input is not lost.
    #[error("the store is full: {reason}; free some space, nothing acknowledged is lost")]
    Full { reason: String },
    /// The stored data is invalid.
    #[error(
        "the store is damaged: {detail}; restore a backup with `abide restore FILE`, or run `abide verify` to see how far \
         it reaches"
    )]
    Damaged { detail: String },
    /// Acknowledged input is missing: the store is older than its witness, or is another store.
    #[error(
        "acknowledged input is missing: {detail}. Either put a backup in place with `abide restore FILE`, or continue \
         without the missing input with `abide up --accept-loss`"
    )]
    InputLost {
        /// The finding and its probable cause.
        detail: String,
    },
    /// The store's files were deleted or replaced while it was open. All further commits are refused.
    #[error(
        "the store is gone: {detail}; no input is accepted until the daemon is restarted on an intact store"
    )]
    FilesGone { detail: String },
    /// Another daemon uses the store. This process will not accept commits again.
    #[error("another daemon uses this store: {detail}")]
    InUse {
        /// The other daemon and the remedy.
        detail: String,
    },
    /// The store was written by a newer program, or its migrations were edited.
    #[error("incompatible store version: {reason}")]
    IncompatibleVersion { reason: String },
    /// This kind of store does not support the operation.
    #[error("the store does not support this operation: {hint}")]
    Unsupported { hint: String },
    /// An input of the caller cannot be used.
    #[error(transparent)]
    Invalid(StoreInputError),
}

/// An input that a store cannot use.
#[derive(Debug, thiserror::Error)]
pub enum StoreInputError {
    /// The cursor of a list is malformed. Start again without one.
    #[error("the cursor is invalid")]
    Cursor,
    /// The idempotency key exceeds the limit of the database. Send a shorter one.
    #[error("the key is too long: {reason}")]
    KeyTooLong { reason: String },
    /// The URL of the store, or the path of a backup, cannot be used. The operator changes it.
    #[error("{detail}")]
    Location {
        /// The cause and the remedy.
        detail: String,
    },
    /// The commit is empty, or a value cannot be encoded. A retry fails as well; the program has a bug.
    #[error("{detail}; this is a bug, please report it")]
    Unencodable { detail: String },
}
