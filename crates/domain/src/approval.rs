//! The grammar of answers to approvals, the same for all surfaces (I43).
//!
//! A text that is neither a yes nor a no is refused, so that the person learns that it was not understood. A policy
//! never approves (D7).

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    interaction::{Interaction, InteractionOption, Question},
    refused::RequestRefused,
    reply::{InteractionReply, ReplyAuthor},
};

/// The decision on a request for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalVerdict {
    Approved,
    /// Permission is denied. A text that says more than no is an instruction for the engine.
    Declined,
}

/// A parsed answer to an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ParsedApproval {
    Yes,
    /// A yes to the content whose SHA-256 begins with these digits.
    YesToContent(String),
    No,
    Unclear,
}

const YES_WORDS: [&str; 14] = [
    "y", "yes", "ok", "okay", "approve", "approved", "accept", "allow", "confirm", "sure", "go ahead", "是",
    "同意", "批准",
];

const NO_WORDS: [&str; 12] =
    ["n", "no", "deny", "decline", "declined", "reject", "refuse", "否", "不", "拒绝", "不同意", "不批准"];

/// Punctuation at the end of an answer that does not change its meaning.
const TRAILING_PUNCTUATION: [char; 4] = ['.', '!', '。', '\u{ff01}'];
/// Characters that separate a no from the instruction after it.
const INSTRUCTION_SEPARATORS: [char; 8] = [',', ':', ';', '.', '\u{ff0c}', '\u{ff1a}', '\u{ff1b}', '。'];

/// The number of SHA-256 digits that a yes to hidden content must include.
const CONTENT_DIGEST_DIGITS: usize = 8;

/// Interprets a reply to an approval. A person's text that is neither a yes nor a no is refused. If the question does
/// not show all of its content, a yes without the content's digits is refused too.
pub fn parse_reply(
    interaction: &Interaction,
    reply: &InteractionReply,
) -> Result<ApprovalVerdict, RequestRefused> {
    let interaction_id = interaction.interaction_id;
    let question = &interaction.question;
    match &reply.by {
        ReplyAuthor::Policy { .. } => return Ok(ApprovalVerdict::Declined),
        ReplyAuthor::Person(_) => {}
    }
    match (parse_answer(question, &reply.text), &question.hidden) {
        (ParsedApproval::Yes, None) => Ok(ApprovalVerdict::Approved),
        (ParsedApproval::YesToContent(digits), Some(hidden))
            if digits.eq_ignore_ascii_case(hidden.approval_digits()) =>
        {
            Ok(ApprovalVerdict::Approved)
        }
        (ParsedApproval::Yes | ParsedApproval::YesToContent(_), Some(_)) => {
            Err(RequestRefused::ApprovalNotShown { interaction_id })
        }
        (ParsedApproval::No, _) => Ok(ApprovalVerdict::Declined),
        (ParsedApproval::YesToContent(_), None) | (ParsedApproval::Unclear, _) => {
            Err(RequestRefused::ApprovalUnclear { interaction_id })
        }
    }
}

/// The decision that an option stands for, if it is unambiguous.
pub fn option_verdict(question: &Question, choice: &InteractionOption) -> Option<ApprovalVerdict> {
    let label = choice.label.trim().to_lowercase();
    let first = label.split([' ', ',']).next().unwrap_or_default();
    let others_are_safe = question.options.iter().any(|other| other.safe && other != choice);
    if YES_WORDS.contains(&label.as_str()) || YES_WORDS.contains(&first) {
        Some(ApprovalVerdict::Approved)
    } else if choice.safe || NO_WORDS.contains(&label.as_str()) || NO_WORDS.contains(&first) {
        Some(ApprovalVerdict::Declined)
    } else if others_are_safe {
        Some(ApprovalVerdict::Approved)
    } else {
        None
    }
}

fn parse_answer(question: &Question, text: &str) -> ParsedApproval {
    let text = text.trim();
    let answer = normalize_answer(text);
    if YES_WORDS.contains(&answer.as_str()) {
        return ParsedApproval::Yes;
    }
    if NO_WORDS.contains(&answer.as_str()) {
        return ParsedApproval::No;
    }
    let chosen = question
        .options
        .iter()
        .find(|choice| normalize_answer(&choice.label) == answer && !answer.is_empty());
    match chosen.and_then(|choice| option_verdict(question, choice)) {
        Some(ApprovalVerdict::Approved) => return ParsedApproval::Yes,
        Some(ApprovalVerdict::Declined) => return ParsedApproval::No,
        None => {}
    }
    if let Some((word, _instruction)) = text.split_once(INSTRUCTION_SEPARATORS)
        && NO_WORDS.contains(&word.trim().to_lowercase().as_str())
    {
        return ParsedApproval::No;
    }
    if let Some((word, digits)) = answer.rsplit_once(char::is_whitespace)
        && digits.len() == CONTENT_DIGEST_DIGITS
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        && YES_WORDS.contains(&word.trim())
    {
        return ParsedApproval::YesToContent(String::from(digits));
    }
    ParsedApproval::Unclear
}

/// The text in lower case, without surrounding white space and final punctuation.
fn normalize_answer(text: &str) -> String {
    text.trim().trim_end_matches(TRAILING_PUNCTUATION).trim_end().to_lowercase()
}

/// Interprets a reply by the rules before the grammar existed: any text that was not a plain yes was a no. Used for old
/// journals.
pub(crate) fn lenient_verdict(question: &Question, reply: &InteractionReply) -> ApprovalVerdict {
    match &reply.by {
        ReplyAuthor::Policy { .. } => ApprovalVerdict::Declined,
        ReplyAuthor::Person(_) => {
            let answer = reply.text.trim().trim_end_matches(TRAILING_PUNCTUATION).to_lowercase();
            let affirmative = |text: &str| YES_WORDS.contains(&text);
            let chose_a_yes = question.options.iter().any(|option| {
                let label = option.label.trim().to_lowercase();
                label == answer && label.split([' ', ',']).next().is_some_and(affirmative)
            });
            if affirmative(&answer) || chose_a_yes {
                ApprovalVerdict::Approved
            } else {
                ApprovalVerdict::Declined
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, string::ToString, vec};

    use super::*;
    use crate::{
        context::HiddenContent,
        id::{IdSeed, InteractionId, RunId, TurnId},
        interaction::{DecisionPolicy, GatePurpose, InteractionKind, InteractionOrigin, InteractionState},
        policy::AutoDecideReason,
        time::Timestamp,
    };

    const SHA256: &str = "1a2b3c4d000000000000000000000000000000000000000000000000000000ff";

    fn interaction(hidden: Option<HiddenContent>) -> Interaction {
        Interaction {
            interaction_id: InteractionId(IdSeed(1)),
            run_id: RunId(IdSeed(1)),
            turn_id: TurnId(IdSeed(1)),
            origin: InteractionOrigin::Gate { gate: "g".to_string(), purpose: GatePurpose::Approval },
            question: Question {
                kind: InteractionKind::Confirm,
                prompt: "delete the branch?".to_string(),
                options: vec![
                    InteractionOption { label: "Yes, delete it".to_string(), safe: false },
                    InteractionOption { label: "Keep it".to_string(), safe: true },
                ],
                ui_hints: None,
                default_decision_policy: DecisionPolicy::EngineJudgement,
                context: None,
                hidden: hidden.map(Box::new),
            },
            opened_at: Timestamp(0),
            deadline_at: None,
            state: InteractionState::Open,
        }
    }

    fn answer(
        hidden: Option<HiddenContent>,
        by: ReplyAuthor,
        text: &str,
    ) -> Result<ApprovalVerdict, RequestRefused> {
        let interaction = interaction(hidden);
        let interaction_id = interaction.interaction_id;
        parse_reply(
            &interaction,
            &InteractionReply { interaction_id, text: text.to_string(), by, idempotency_key: None },
        )
    }

    fn person(text: &str) -> Result<ApprovalVerdict, RequestRefused> {
        answer(None, ReplyAuthor::Person("ada".to_string()), text)
    }

    const UNCLEAR: Result<ApprovalVerdict, RequestRefused> =
        Err(RequestRefused::ApprovalUnclear { interaction_id: InteractionId(IdSeed(1)) });
    const NOT_SHOWN: Result<ApprovalVerdict, RequestRefused> =
        Err(RequestRefused::ApprovalNotShown { interaction_id: InteractionId(IdSeed(1)) });

    /// I43
    #[test]
    fn a_yes_counts_only_alone() {
        for yes in YES_WORDS {
            assert_eq!(person(yes), Ok(ApprovalVerdict::Approved), "{yes}");
        }
        for yes in [" Y ", "OK!", "Yes.", "Go Ahead", "yes, delete it", "是。", "同意！", "yes \n"] {
            assert_eq!(person(yes), Ok(ApprovalVerdict::Approved), "{yes:?}");
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
        for no in NO_WORDS {
            assert_eq!(person(no), Ok(ApprovalVerdict::Declined), "{no}");
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
            assert_eq!(person(no), Ok(ApprovalVerdict::Declined), "{no:?}");
        }
    }

    /// SECURITY finding 8
    #[test]
    fn content_that_is_not_shown_is_approved_only_by_its_digits() {
        let hidden = || Some(HiddenContent { bytes: 9, content_bytes: 99, sha256: SHA256.to_string() });
        let person = |text| answer(hidden(), ReplyAuthor::Person("ada".to_string()), text);
        for yes in ["yes 1a2b3c4d", "YES 1A2B3C4D.", " ok  1a2b3c4d "] {
            assert_eq!(person(yes), Ok(ApprovalVerdict::Approved), "{yes:?}");
        }
        for yes in ["yes", "Yes, delete it", "同意", "yes 00000000", "yes 1a2b3c4e"] {
            assert_eq!(person(yes), NOT_SHOWN, "{yes:?}");
        }
        for text in ["yes 1a2b3c", "1a2b3c4d", "yes 1a2b3c4d and more", "yes 1a2b3c4d0"] {
            assert_eq!(person(text), UNCLEAR, "{text:?}");
        }
        for no in ["no", "no, it is too long", "keep it"] {
            assert_eq!(person(no), Ok(ApprovalVerdict::Declined), "{no:?}");
        }
    }

    /// D7
    #[test]
    fn policy_never_approves() {
        let policy = || ReplyAuthor::Policy {
            reason: AutoDecideReason::UserNoReply,
            policy: DecisionPolicy::SafeDefault,
        };
        let hidden = || Some(HiddenContent { bytes: 9, content_bytes: 99, sha256: SHA256.to_string() });
        for text in ["yes", "yes 1a2b3c4d", "anything"] {
            assert_eq!(answer(None, policy(), text), Ok(ApprovalVerdict::Declined), "{text}");
            assert_eq!(answer(hidden(), policy(), text), Ok(ApprovalVerdict::Declined), "{text}");
        }
    }

    #[test]
    fn an_option_has_a_verdict() {
        let asked = interaction(None).question;
        let meaning = |label: &str, safe: bool| {
            option_verdict(&asked, &InteractionOption { label: label.to_string(), safe })
        };
        assert_eq!(meaning("Yes, delete it", false), Some(ApprovalVerdict::Approved));
        assert_eq!(meaning("Keep it", true), Some(ApprovalVerdict::Declined));
        assert_eq!(meaning("Reject", false), Some(ApprovalVerdict::Declined));
        assert_eq!(
            meaning("I take the risk", false),
            Some(ApprovalVerdict::Approved),
            "another option is the safe one"
        );
    }
}
