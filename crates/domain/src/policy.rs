//! The automatic decision of unanswered questions (D6) (D7). It never chooses for a person and never approves a risk.

use alloc::{format, string::String};

use serde::{Deserialize, Serialize};

use crate::{
    id::InteractionId,
    interaction::{DecisionPolicy, Interaction},
    reply::{InteractionReply, ReplyAuthor},
    texts::DerivedTexts,
};

/// The reason for an answer by policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoDecideReason {
    /// The deadline passed.
    UserNoReply,
    /// The run never waits for a person.
    AutoMode,
}

impl AutoDecideReason {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::UserNoReply => "user_no_reply",
            Self::AutoMode => "auto_mode",
        }
    }
}

/// The source that every automatic reply states (D6).
pub const AUTO_REPLY_SOURCE: &str = "auto_decide_timeout";

/// The automatic reply (D6). Its journal entry is a `ReplyArrived` by [`ReplyAuthor::Policy`] with the same content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoReply {
    pub interaction_id: InteractionId,
    pub reason: AutoDecideReason,
    pub policy: DecisionPolicy,
    /// The text that the engine receives.
    pub instruction: String,
}

/// The decision on an unanswered question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyDecision {
    /// The engine receives this reply.
    Answer(AutoReply),
    /// The run ends.
    Abort,
}

/// The maximum number of consecutive decisions without a person. Then the run ends.
pub const MAX_CONSECUTIVE_AUTO_DECISIONS: u32 = 100;

/// Decides an unanswered interaction.
pub(crate) fn decide(
    interaction: &Interaction,
    reason: AutoDecideReason,
    texts: &DerivedTexts,
) -> PolicyDecision {
    let question = &interaction.question;
    let policy = question.default_decision_policy;
    let asks_permission = interaction.is_approval();
    let instruction = match policy {
        DecisionPolicy::Abort => return PolicyDecision::Abort,
        // A timeout does not give permission, whatever the policy.
        DecisionPolicy::SafeDefault | DecisionPolicy::EngineJudgement if asks_permission => {
            String::from(texts.auto_refusal)
        }
        DecisionPolicy::SafeDefault => match question.options.iter().find(|option| option.safe) {
            Some(option) => option.label.clone(),
            None => String::from(texts.auto_least_change),
        },
        DecisionPolicy::EngineJudgement => String::from(texts.auto_judgement),
    };
    PolicyDecision::Answer(AutoReply {
        interaction_id: interaction.interaction_id,
        reason,
        policy,
        instruction,
    })
}

impl AutoReply {
    /// The reply in the form of a person's reply, with a key of its own, so that it is also accepted only once.
    pub fn into_reply(self) -> InteractionReply {
        InteractionReply {
            interaction_id: self.interaction_id,
            text: self.instruction,
            by: ReplyAuthor::Policy { reason: self.reason, policy: self.policy },
            idempotency_key: Some(format!("auto-timeout:{}", self.interaction_id)),
        }
    }
}
