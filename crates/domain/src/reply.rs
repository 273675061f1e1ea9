//! Which reply to an interaction counts: the first one, and only that (D6).
//!
//! One door for people and for policy alike. What the accepted answer then does to the run is in `run/answer.rs`.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    id::InteractionId,
    interaction::{DecisionPolicy, Interaction, InteractionResolution, InteractionState, ResolutionMode},
    policy::AutoDecideReason,
    refused::RequestRefused,
    time::Timestamp,
};

/// An answer on its way in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InteractionReply {
    /// The interaction that it names; a reply never goes to "whatever is open".
    pub interaction_id: InteractionId,
    /// Free text, whatever the kind of question (D2).
    pub text: String,
    /// Who answers.
    pub by: ReplyAuthor,
    /// The sender's key: the same key and text again is no second answer.
    pub idempotency_key: Option<String>,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyAuthor {
    /// A person, as their channel names them.
    Person(String),
    /// The question's own policy, in nobody's name.
    Policy {
        /// Why no person answered.
        reason: AutoDecideReason,
        /// The policy that was applied.
        policy: DecisionPolicy,
    },
}

/// What a reply is to an interaction that takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyAcceptance {
    /// The answer.
    First(InteractionResolution),
    /// The answer that we have already, sent again under its own key.
    Again,
}

/// Judges a reply against the interaction that it names. The first writer wins; everyone else is told so.
pub fn take(
    interaction: &Interaction,
    reply: &InteractionReply,
    at: Timestamp,
) -> Result<ReplyAcceptance, RequestRefused> {
    match &interaction.state {
        InteractionState::Open => Ok(ReplyAcceptance::First(resolution(reply, at))),
        InteractionState::Answered(first) => {
            let same_key = reply.idempotency_key.is_some() && reply.idempotency_key == first.idempotency_key;
            match (same_key, reply.text == first.text) {
                (true, true) => Ok(ReplyAcceptance::Again),
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
