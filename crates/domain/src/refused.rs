//! Requests that cannot be met. Facts are never refused: what an engine did is absorbed, however strange.

use crate::{id::InteractionId, run::RunStatus};

/// Why a request changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefused {
    /// There is no such run.
    #[error("there is no such run")]
    NoSuchRun,
    /// The run exists already.
    #[error("the run exists already")]
    RunExists,
    /// The run is over; a finished state is never left.
    #[error("the run is over ({status})")]
    RunFinished {
        /// How it ended.
        status: RunStatus,
    },
    /// Somebody else answered first, or the question no longer matters.
    #[error("interaction {interaction_id} is no longer open")]
    StaleInteraction {
        /// The interaction that was named.
        interaction_id: InteractionId,
    },
    /// The same key came with another text.
    #[error("interaction {interaction_id} was answered under the same key with another text")]
    IdempotencyConflict {
        /// The interaction that was named.
        interaction_id: InteractionId,
    },
    /// A text that is neither a yes nor a no was sent to an approval.
    #[error("the answer to the approval {interaction_id} is neither a yes nor a no")]
    ApprovalUnclear {
        /// The interaction that was named.
        interaction_id: InteractionId,
    },
    /// A yes was sent to an approval whose content is too long for the question, without the digits that stand at the
    /// end of the content.
    #[error("the approval {interaction_id} covers more than its question shows")]
    ApprovalNotShown {
        /// The interaction that was named.
        interaction_id: InteractionId,
    },
    /// A slot was granted to a run that does not wait for one.
    #[error("the run does not wait for a slot ({status})")]
    NotQueued {
        /// What it does instead.
        status: RunStatus,
    },
    /// No turn is at work.
    #[error("no turn is at work ({status})")]
    NothingToInterrupt {
        /// What it does instead.
        status: RunStatus,
    },
    /// Too many messages wait already.
    #[error("{limit} messages wait for this run already")]
    InboxFull {
        /// How many may wait.
        limit: usize,
    },
}
