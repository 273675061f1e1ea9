//! What can go wrong with a store, by what the caller can do next.

use abide_domain::id::RunId;

use super::ClaimHolder;

/// A store's refusal or failure. Unless it says otherwise, nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else changed the run meanwhile: load it again and apply the event anew.
    #[error("run {run_id} is at revision {found}, not at {expected} as this change assumes")]
    Conflict {
        /// The run.
        run_id: RunId,
        /// The revision that the change was made from.
        expected: u64,
        /// The revision that the store has.
        found: u64,
    },
    /// The key was used before: this is a repetition, or a mistake of the sender.
    #[error("key {key} of {scope} was used before, for run {}", holder.run_id)]
    Taken {
        /// Among which keys.
        scope: String,
        /// The key.
        key: String,
        /// Who has it.
        holder: ClaimHolder,
    },
    /// The store cannot be reached or is busy. Try again.
    #[error("the store is not available: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// Contact was lost while committing: it may have been written. Read before trying again.
    #[error("whether the commit was written is not known: {reason}")]
    OutcomeUnknown {
        /// Why.
        reason: String,
    },
    /// There is no room. Nothing that was acknowledged is lost.
    #[error("the store is full: {reason}; free some space, nothing acknowledged is lost")]
    Full {
        /// What is full.
        reason: String,
    },
    /// What is stored cannot be right.
    #[error(
        "the store is damaged: {what}; restore a backup with `abide restore FILE`, or run `abide verify` to see how far \
         it reaches"
    )]
    Damaged {
        /// What was found.
        what: String,
    },
    /// Acknowledged input is missing: the store is older than its witness, or another one.
    #[error(
        "acknowledged input is missing: {what}. Either put a backup in place with `abide restore FILE`, or continue \
         without what is missing with `abide up --accept-loss`"
    )]
    Lost {
        /// What was found, and what probably happened.
        what: String,
    },
    /// The store's files were deleted or replaced while it was open. Nothing is accepted any more.
    #[error(
        "the store is gone: {what}; nothing is accepted until the daemon is restarted on an intact store"
    )]
    Gone {
        /// What was found.
        what: String,
    },
    /// Another daemon has the store. Nothing is accepted for as long as this process lives.
    #[error("another daemon uses this store: {what}")]
    InUse {
        /// Which one, and what to do.
        what: String,
    },
    /// The store was written by a newer program, or its history was edited.
    #[error("the store does not fit this program: {reason}")]
    Mismatched {
        /// How not.
        reason: String,
    },
    /// This kind of store cannot do that.
    #[error("this store cannot do that: {hint}")]
    Unsupported {
        /// What to do instead.
        hint: String,
    },
    /// A bad cursor or the like.
    #[error("{what} is not valid")]
    Invalid {
        /// What.
        what: String,
    },
}

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// Try again.
    Retry,
    /// Ask for something else.
    FixRequest,
    /// Tell the operator.
    CallOperator,
}

impl StoreError {
    /// What the caller can do about it.
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Conflict { .. } | Self::Unavailable { .. } | Self::OutcomeUnknown { .. } => {
                StoreErrorKind::Retry
            }
            Self::Taken { .. } | Self::Unsupported { .. } | Self::Invalid { .. } => {
                StoreErrorKind::FixRequest
            }
            Self::Full { .. }
            | Self::Damaged { .. }
            | Self::Lost { .. }
            | Self::Gone { .. }
            | Self::InUse { .. }
            | Self::Mismatched { .. } => StoreErrorKind::CallOperator,
        }
    }
}
