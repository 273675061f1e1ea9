//! Decides which reply to an interaction is accepted: only the first one (D6).
//!
//! People and policies use the same function. The effect of the accepted answer on the run is in `run/answer.rs`.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    id::InteractionId,
    interaction::{DecisionPolicy, Interaction, InteractionResolution, InteractionState, ResolutionMode},
    policy::AutoDecideReason,
    refused::RequestRefused,
    time::Timestamp,
};

/// An answer before it is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractionReply {
    /// Required. A reply is never assigned to the question that happens to be open.
    pub interaction_id: InteractionId,
    /// Free text for all kinds of questions (D2).
    pub text: String,
    pub by: ReplyAuthor,
    /// The sender's idempotency key. The same key and text again is not a second answer.
    pub idempotency_key: Option<String>,
}

/// The author of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyAuthor {
    /// A person, by the name that the channel reports.
    Person(String),
    /// The question's own policy.
    Policy {
        /// The reason why no person answered.
        reason: AutoDecideReason,
        /// The policy that was applied.
        policy: DecisionPolicy,
    },
}

/// The result of an accepted reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyAcceptance {
    /// It is the answer.
    First(InteractionResolution),
    /// It repeats the accepted answer with the same key.
    Duplicate,
}

/// Checks a reply against its interaction. The first reply is accepted; later ones are refused.
pub fn accept(
    interaction: &Interaction,
    reply: &InteractionReply,
    at: Timestamp,
) -> Result<ReplyAcceptance, RequestRefused> {
    match &interaction.state {
        InteractionState::Open => Ok(ReplyAcceptance::First(resolution(reply, at))),
        InteractionState::Answered(first) => {
            let same_key = reply.idempotency_key.is_some() && reply.idempotency_key == first.idempotency_key;
            match (same_key, reply.text == first.text) {
                (true, true) => Ok(ReplyAcceptance::Duplicate),
                (true, false) => {
                    Err(RequestRefused::IdempotencyConflict { interaction_id: reply.interaction_id })
                }
                (false, _) => Err(RequestRefused::StaleInteraction { interaction_id: reply.interaction_id }),
            }
        }
        InteractionState::Closed { .. } => {
            Err(RequestRefused::StaleInteraction { interaction_id: reply.interaction_id })
        }
    }
}

fn resolution(reply: &InteractionReply, at: Timestamp) -> InteractionResolution {
    let (resolution_mode, resolved_by, auto_decide_reason) = match &reply.by {
        ReplyAuthor::Person(name) => (ResolutionMode::UserReply, name.clone(), None),
        ReplyAuthor::Policy { reason, .. } => {
            (ResolutionMode::AutoDecideTimeout, String::from("policy"), Some(*reason))
        }
    };
    InteractionResolution {
        resolution_mode,
        resolved_at: at,
        resolved_by,
        auto_decide_reason,
        text: reply.text.clone(),
        idempotency_key: reply.idempotency_key.clone(),
        verdict: None,
    }
}
