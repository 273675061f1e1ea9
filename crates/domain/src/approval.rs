//! Which answers to an approval are a yes and which are a no: one grammar for all surfaces (I43).
//!
//! A text that is neither is refused, so that a person learns that it was not understood. Policy never approves (D7).

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    interaction::{Choice, Interaction, Question},
    refused::Refused,
    reply::{Answerer, Reply},
};

/// What an answer means to a request for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Permission is given.
    Approved,
    /// It is not. The text, if it says more than no, is an instruction that the engine should hear.
    Declined,
}

/// What a text says to an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reading {
    Yes,
    /// A yes to the content with these digits.
    YesTo(String),
    No,
    Unclear,
}

const YES: [&str; 14] = [
    "y", "yes", "ok", "okay", "approve", "approved", "accept", "allow", "confirm", "sure", "go ahead", "是",
    "同意", "批准",
];

const NO: [&str; 12] =
    ["n", "no", "deny", "decline", "declined", "reject", "refuse", "否", "不", "拒绝", "不同意", "不批准"];

/// What may stand at the end of an answer without changing it.
const FINAL: [char; 4] = ['.', '!', '。', '\u{ff01}'];
/// What parts a no from the instruction behind it.
const PARTING: [char; 8] = [',', ':', ';', '.', '\u{ff0c}', '\u{ff1a}', '\u{ff1b}', '。'];

/// How many digits of a content's SHA-256 a yes to it names.
const DIGITS: usize = 8;

/// What a reply to an approval means. A person's text that is neither yes nor no is refused, and so is a yes to content
/// that the question does not show and whose digits the answer does not name.
pub fn judge(interaction: &Interaction, reply: &Reply) -> Result<Verdict, Refused> {
    let interaction_id = interaction.interaction_id;
    let question = &interaction.question;
    match &reply.by {
        Answerer::Policy { .. } => return Ok(Verdict::Declined),
        Answerer::Person(_) => {}
    }
    match (read(question, &reply.text), &question.hidden) {
        (Reading::Yes, None) => Ok(Verdict::Approved),
        (Reading::YesTo(digits), Some(hidden)) if digits.eq_ignore_ascii_case(hidden.digits()) => {
            Ok(Verdict::Approved)
        }
        (Reading::Yes | Reading::YesTo(_), Some(_)) => Err(Refused::ApprovalNotShown { interaction_id }),
        (Reading::No, _) => Ok(Verdict::Declined),
        (Reading::YesTo(_), None) | (Reading::Unclear, _) => Err(Refused::ApprovalUnclear { interaction_id }),
    }
}

/// What choosing an option means, if that is plain.
pub fn verdict_of(question: &Question, choice: &Choice) -> Option<Verdict> {
    let label = choice.label.trim().to_lowercase();
    let first = label.split([' ', ',']).next().unwrap_or_default();
    let others_are_safe = question.options.iter().any(|other| other.safe && other != choice);
    if YES.contains(&label.as_str()) || YES.contains(&first) {
        Some(Verdict::Approved)
    } else if choice.safe || NO.contains(&label.as_str()) || NO.contains(&first) {
        Some(Verdict::Declined)
    } else if others_are_safe {
        Some(Verdict::Approved)
    } else {
        None
    }
}

fn read(question: &Question, text: &str) -> Reading {
    let text = text.trim();
    let said = plain(text);
    if YES.contains(&said.as_str()) {
        return Reading::Yes;
    }
    if NO.contains(&said.as_str()) {
        return Reading::No;
    }
    let chosen = question.options.iter().find(|choice| plain(&choice.label) == said && !said.is_empty());
    match chosen.and_then(|choice| verdict_of(question, choice)) {
        Some(Verdict::Approved) => return Reading::Yes,
        Some(Verdict::Declined) => return Reading::No,
        None => {}
    }
    if let Some((word, _instruction)) = text.split_once(PARTING)
        && NO.contains(&word.trim().to_lowercase().as_str())
    {
        return Reading::No;
    }
    if let Some((word, digits)) = said.rsplit_once(char::is_whitespace)
        && digits.len() == DIGITS
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        && YES.contains(&word.trim())
    {
        return Reading::YesTo(String::from(digits));
    }
    Reading::Unclear
}

/// A text without what surrounds it, in lower case.
fn plain(text: &str) -> String {
    text.trim().trim_end_matches(FINAL).trim_end().to_lowercase()
}

/// What a reply meant before approvals had a grammar: everything that is no plain yes was a no. For journals of then.
pub(crate) fn lenient_verdict(question: &Question, reply: &Reply) -> Verdict {
    match &reply.by {
        Answerer::Policy { .. } => Verdict::Declined,
        Answerer::Person(_) => {
            let said = reply.text.trim().trim_end_matches(FINAL).to_lowercase();
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
    use alloc::{boxed::Box, string::ToString, vec};

    use super::*;
    use crate::{
        context::Hidden,
        id::{Fresh, InteractionId, RunId, TurnId},
        interaction::{Asker, InteractionState, Kind, Policy, Purpose},
        policy::AutoReason,
        time::Timestamp,
    };

    const SHA256: &str = "1a2b3c4d000000000000000000000000000000000000000000000000000000ff";

    fn interaction(hidden: Option<Hidden>) -> Interaction {
        Interaction {
            interaction_id: InteractionId(Fresh(1)),
            run_id: RunId(Fresh(1)),
            turn_id: TurnId(Fresh(1)),
            asker: Asker::Gate { gate: "g".to_string(), purpose: Purpose::Approval },
            question: Question {
                kind: Kind::Confirm,
                prompt: "delete the branch?".to_string(),
                options: vec![
                    Choice { label: "Yes, delete it".to_string(), safe: false },
                    Choice { label: "Keep it".to_string(), safe: true },
                ],
                ui_hints: None,
                default_decision_policy: Policy::EngineJudgement,
                context: None,
                hidden: hidden.map(Box::new),
            },
            opened_at: Timestamp(0),
            deadline_at: None,
            state: InteractionState::Open,
        }
    }

    fn answer(hidden: Option<Hidden>, by: Answerer, text: &str) -> Result<Verdict, Refused> {
        let interaction = interaction(hidden);
        let interaction_id = interaction.interaction_id;
        judge(&interaction, &Reply { interaction_id, text: text.to_string(), by, idempotency_key: None })
    }

    fn person(text: &str) -> Result<Verdict, Refused> {
        answer(None, Answerer::Person("ada".to_string()), text)
    }

    const UNCLEAR: Result<Verdict, Refused> =
        Err(Refused::ApprovalUnclear { interaction_id: InteractionId(Fresh(1)) });
    const NOT_SHOWN: Result<Verdict, Refused> =
        Err(Refused::ApprovalNotShown { interaction_id: InteractionId(Fresh(1)) });

    /// I43
    #[test]
    fn a_yes_counts_only_alone() {
        for yes in YES {
            assert_eq!(person(yes), Ok(Verdict::Approved), "{yes}");
        }
        for yes in [" Y ", "OK!", "Yes.", "Go Ahead", "yes, delete it", "是。", "同意！", "yes \n"] {
            assert_eq!(person(yes), Ok(Verdict::Approved), "{yes:?}");
        }
        for text in [
            "",
            " ",
            "yes but only the first",
            "yes, but",
            "not ok",
            "y/n",
            "why?",
            "yes no",
            "yesyes",
            "1",
            "yes 1a2b3c4d",
            "no way",
            "nope",
            "maybe",
            "不好",
            "approve it",
            "yes\nrm",
            "是的",
        ] {
            assert_eq!(person(text), UNCLEAR, "{text:?}");
        }
    }

    /// I43
    #[test]
    fn a_no_counts_alone_or_before_an_instruction() {
        for no in NO {
            assert_eq!(person(no), Ok(Verdict::Declined), "{no}");
        }
        for no in [
            "No.",
            "no, use the other file",
            "No: why?",
            "deny; later",
            "no. Use x",
            "keep it",
            "KEEP IT!",
            "不同意，用另一个",
            "否。",
            "拒绝：不行",
            "no, yes",
            "refuse , thanks",
        ] {
            assert_eq!(person(no), Ok(Verdict::Declined), "{no:?}");
        }
    }

    /// SECURITY finding 8
    #[test]
    fn content_that_is_not_shown_is_approved_only_by_its_digits() {
        let hidden = || Some(Hidden { bytes: 9, content_bytes: 99, sha256: SHA256.to_string() });
        let person = |text| answer(hidden(), Answerer::Person("ada".to_string()), text);
        for yes in ["yes 1a2b3c4d", "YES 1A2B3C4D.", " ok  1a2b3c4d "] {
            assert_eq!(person(yes), Ok(Verdict::Approved), "{yes:?}");
        }
        for yes in ["yes", "Yes, delete it", "同意", "yes 00000000", "yes 1a2b3c4e"] {
            assert_eq!(person(yes), NOT_SHOWN, "{yes:?}");
        }
        for text in ["yes 1a2b3c", "1a2b3c4d", "yes 1a2b3c4d and more", "yes 1a2b3c4d0"] {
            assert_eq!(person(text), UNCLEAR, "{text:?}");
        }
        for no in ["no", "no, it is too long", "keep it"] {
            assert_eq!(person(no), Ok(Verdict::Declined), "{no:?}");
        }
    }

    /// D7
    #[test]
    fn policy_never_approves() {
        let policy = || Answerer::Policy { reason: AutoReason::UserNoReply, policy: Policy::SafeDefault };
        let hidden = || Some(Hidden { bytes: 9, content_bytes: 99, sha256: SHA256.to_string() });
        for text in ["yes", "yes 1a2b3c4d", "anything"] {
            assert_eq!(answer(None, policy(), text), Ok(Verdict::Declined), "{text}");
            assert_eq!(answer(hidden(), policy(), text), Ok(Verdict::Declined), "{text}");
        }
    }

    #[test]
    fn an_option_says_what_choosing_it_means() {
        let asked = interaction(None).question;
        let meaning =
            |label: &str, safe: bool| verdict_of(&asked, &Choice { label: label.to_string(), safe });
        assert_eq!(meaning("Yes, delete it", false), Some(Verdict::Approved));
        assert_eq!(meaning("Keep it", true), Some(Verdict::Declined));
        assert_eq!(meaning("Reject", false), Some(Verdict::Declined));
        assert_eq!(
            meaning("I take the risk", false),
            Some(Verdict::Approved),
            "another option is the safe one"
        );
    }
}
