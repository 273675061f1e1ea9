//! Whether a free text gives permission. In doubt it does not.

use serde::{Deserialize, Serialize};

use crate::{
    interaction::Question,
    reply::{Answerer, Reply},
};

/// What an answer means to a request for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Permission is given.
    Approved,
    /// It is not. The text, if it says more than no, is a reason that the engine should hear.
    Declined,
}

/// What people type when they mean yes. A choice's own label counts through [`verdict`] as well.
const YES: [&str; 14] = [
    "y", "yes", "ok", "okay", "approve", "approved", "accept", "allow", "confirm", "sure", "go ahead", "是",
    "同意", "批准",
];

/// Reads a reply to a request for permission. Policy never approves (D7).
pub fn verdict(question: &Question, reply: &Reply) -> Verdict {
    match &reply.by {
        Answerer::Policy { .. } => Verdict::Declined,
        Answerer::Person(_) => {
            let said = reply.text.trim().trim_end_matches(['.', '!', '。', '\u{ff01}']).to_lowercase();
            let affirmative = |text: &str| YES.contains(&text);
            let chose_a_yes = question.options.iter().any(|option| {
                let label = option.label.trim().to_lowercase();
                label == said && label.split([' ', ',']).next().is_some_and(affirmative)
            });
            if affirmative(&said) || chose_a_yes { Verdict::Approved } else { Verdict::Declined }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use super::*;
    use crate::{
        id::{Fresh, InteractionId},
        interaction::{Choice, Kind, Policy},
        policy::AutoReason,
    };

    fn check(by: Answerer, text: &str, expected: Verdict) {
        let question = Question {
            kind: Kind::Confirm,
            prompt: "delete the branch?".to_string(),
            options: vec![
                Choice { label: "Yes, delete it".to_string(), safe: false },
                Choice { label: "Keep it".to_string(), safe: true },
            ],
            ui_hints: None,
            default_decision_policy: Policy::EngineJudgement,
        };
        let interaction_id = InteractionId(Fresh(1));
        let reply = Reply { interaction_id, text: text.to_string(), by, idempotency_key: None };
        assert_eq!(verdict(&question, &reply), expected, "{text:?}");
    }

    #[test]
    fn only_a_plain_yes_approves() {
        for yes in ["yes", " Y ", "OK!", "go ahead", "yes, delete it", "同意", "是。"] {
            check(Answerer::Person("ada".to_string()), yes, Verdict::Approved);
        }
        for no in ["", "no", "yes but only the first", "not ok", "keep it", "y/n", "why?"] {
            check(Answerer::Person("ada".to_string()), no, Verdict::Declined);
        }
    }

    #[test]
    fn policy_never_approves() {
        check(
            Answerer::Policy { reason: AutoReason::UserNoReply, policy: Policy::SafeDefault },
            "yes",
            Verdict::Declined,
        );
    }
}
