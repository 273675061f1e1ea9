//! What is decided when nobody answers (D6) (D7): never a person's choice, never a yes to a risk.

use alloc::{format, string::String};

use serde::{Deserialize, Serialize};

use crate::{
    id::InteractionId,
    interaction::{DecisionPolicy, Interaction},
    reply::{InteractionReply, ReplyAuthor},
};

/// Why policy answered instead of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoDecideReason {
    /// The deadline passed.
    UserNoReply,
    /// The run never waits for a person.
    AutoMode,
}

impl AutoDecideReason {
    /// The word itself.
    pub fn name(self) -> &'static str {
        match self {
            Self::UserNoReply => "user_no_reply",
            Self::AutoMode => "auto_mode",
        }
    }
}

/// The source that every automatic reply names (D6).
pub const AUTO_REPLY_SOURCE: &str = "auto_decide_timeout";

/// The automatic reply (D6). Its journal entry is a `ReplyArrived` by [`ReplyAuthor::Policy`], which says all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoReply {
    /// The interaction that it answers.
    pub interaction_id: InteractionId,
    /// Why.
    pub reason: AutoDecideReason,
    /// By which policy.
    pub policy: DecisionPolicy,
    /// What the engine is told.
    pub instruction: String,
}

/// What the policy of an unanswered question comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyDecision {
    /// The engine is told this.
    Answer(AutoReply),
    /// The run ends instead.
    Abort,
}

/// How many questions in a row may be decided without a person before the run is ended instead.
pub const MOST_AUTO_DECISIONS_IN_A_ROW: u32 = 100;

/// Decides an interaction that nobody answered.
pub fn decide(interaction: &Interaction, reason: AutoDecideReason) -> PolicyDecision {
    let question = &interaction.question;
    let policy = question.default_decision_policy;
    let asks_permission = interaction.is_approval();
    let instruction = match policy {
        DecisionPolicy::Abort => return PolicyDecision::Abort,
        // A timeout is not a yes: whatever the policy, permission is not given.
        DecisionPolicy::SafeDefault | DecisionPolicy::EngineJudgement if asks_permission => String::from(
            "No. Nobody answered, so this is not approved. Go on without it, or end here if that is not possible.",
        ),
        DecisionPolicy::SafeDefault => match question.options.iter().find(|option| option.safe) {
            Some(option) => option.label.clone(),
            None => String::from("No. Nobody answered, so choose what changes the least and can be undone."),
        },
        DecisionPolicy::EngineJudgement => {
            String::from("Nobody answered in time. Decide this yourself with your best judgement and go on.")
        }
    };
    PolicyDecision::Answer(AutoReply {
        interaction_id: interaction.interaction_id,
        reason,
        policy,
        instruction,
    })
}

impl AutoReply {
    /// The same door as a person's reply, under a key of its own, so that it too is taken once.
    pub fn into_reply(self) -> InteractionReply {
        InteractionReply {
            interaction_id: self.interaction_id,
            text: self.instruction,
            by: ReplyAuthor::Policy { reason: self.reason, policy: self.policy },
            idempotency_key: Some(format!("auto-timeout:{}", self.interaction_id)),
        }
    }
}
