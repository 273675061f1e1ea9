//! Refusals of requests. Facts are never refused: events of an engine are accepted even if they are unexpected.

use crate::{id::InteractionId, run::RunStatus};

/// The reason why a request has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefused {
    /// The run does not exist.
    #[error("the run does not exist")]
    NoSuchRun,
    #[error("the run already exists")]
    RunExists,
    /// The run has finished. A final state is never left.
    #[error("the run has already ended ({status})")]
    RunFinished { status: RunStatus },
    /// The interaction was already answered or closed.
    #[error("interaction {interaction_id} is no longer open")]
    StaleInteraction { interaction_id: InteractionId },
    /// The same idempotency key was used with another text.
    #[error("interaction {interaction_id} was answered with another text under the same idempotency key")]
    IdempotencyConflict { interaction_id: InteractionId },
    /// The answer to an approval is neither a yes nor a no.
    #[error("the answer to the approval {interaction_id} is neither a yes nor a no")]
    ApprovalUnclear { interaction_id: InteractionId },
    /// The content of an approval is too long for the question, and a yes lacks the digits at the end of the content.
    #[error("the approval {interaction_id} covers more than its question shows")]
    ApprovalNotShown { interaction_id: InteractionId },
    /// A slot was granted to a run that does not wait for one.
    #[error("the run does not wait for a slot ({status})")]
    NotQueued { status: RunStatus },
    /// No turn is running.
    #[error("no turn is running ({status})")]
    NothingToInterrupt { status: RunStatus },
    /// The inbox has reached its limit.
    #[error("{limit} messages are already waiting for this run")]
    InboxFull {
        /// The maximum number of waiting messages.
        limit: usize,
    },
}
