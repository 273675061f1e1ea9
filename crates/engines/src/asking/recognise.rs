//! Decides whether an engine's answer is a question.
//!
//! A block that is marked as a question always counts, even if it is invalid. An invalid block becomes an open question
//! with the block's text, and never a success. Other objects must declare themselves, or be at the end of the answer
//! and have the form of a question. Prose about questions does not count. The time is linear in the length of the
//! answer.

use std::ops::Range;

use abide_domain::{
    event::TurnOutcome,
    interaction::{DecisionPolicy, InteractionKind, Question},
};

use super::{
    envelope::{self, LONGEST_PROMPT, QuestionLikelihood},
    fences::{self, FenceContent, FencedBlock},
    lenient, patch, tags,
};

/// The interpretation of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecognizedAnswer {
    pub ending: TurnOutcome,
    /// Deviations from the contract.
    pub warning: Option<String>,
}

/// Interprets the text with which an engine ended its turn.
pub fn recognise(text: &str) -> RecognizedAnswer {
    let mut blocks = fences::blocks(text);
    // A quotation of the instructions is not a question.
    let repeated = patch::repeated(text);
    blocks.retain(|block| !repeated.iter().any(|told| told.contains(&block.whole.start)));
    match named(text, &blocks).or_else(|| unnamed(text, &blocks)).or_else(|| bare(text, &blocks)) {
        Some(found) => asked(text, &found),
        None => RecognizedAnswer { ending: TurnOutcome::Completed { text: text.to_owned() }, warning: None },
    }
}

/// The location of a question in an answer.
#[derive(Debug, PartialEq, Eq)]
struct QuestionSpan {
    body: Range<usize>,
    whole: Range<usize>,
    /// Number of other questions in the answer.
    others: usize,
}

/// The last block or element that is marked as a question. An empty one counts only if there is no other.
fn named(text: &str, blocks: &[FencedBlock]) -> Option<QuestionSpan> {
    let questions = || blocks.iter().filter(|block| block.holds == FenceContent::Question);
    let has_words = |body: &Range<usize>| !text.get(body.clone()).unwrap_or_default().trim().is_empty();
    let fenced = questions().rfind(|block| has_words(&block.body)).or_else(|| questions().next_back());
    let element = tags::last(text, blocks);
    let others = (questions().count() + usize::from(element.is_some())).saturating_sub(1);
    match (fenced, element) {
        (Some(block), Some(element)) if element.whole.start > block.whole.start => {
            Some(QuestionSpan { body: element.body, whole: element.whole, others })
        }
        (Some(block), _) => {
            Some(QuestionSpan { body: block.body.clone(), whole: block.whole.clone(), others })
        }
        (None, Some(element)) => Some(QuestionSpan { body: element.body, whole: element.whole, others }),
        (None, None) => None,
    }
}

/// The last JSON block that declares itself a question, or that has the form of one and is at the end.
fn unnamed(text: &str, blocks: &[FencedBlock]) -> Option<QuestionSpan> {
    blocks.iter().rev().filter(|block| block.holds == FenceContent::PerhapsJson).find_map(|block| {
        let read = lenient::object(text.get(block.body.clone())?)?;
        let is_last = text.get(block.whole.end..)?.trim().is_empty();
        let counts = match envelope::likeness(&read.object) {
            QuestionLikelihood::Says => true,
            QuestionLikelihood::Looks => is_last,
            QuestionLikelihood::None => false,
        };
        counts.then(|| QuestionSpan { body: block.body.clone(), whole: block.whole.clone(), others: 0 })
    })
}

/// An object without a fence: the complete answer, or its end from the beginning of a line on.
fn bare(text: &str, blocks: &[FencedBlock]) -> Option<QuestionSpan> {
    let end = text.trim_end().len();
    let alone = text.trim_start_matches('\u{feff}').trim_start().starts_with('{');
    let start = if alone { text.find('{')? } else { text.get(..end)?.rfind("\n{")? + 1 };
    let ends = alone || text.get(..end)?.ends_with('}');
    if !ends || blocks.iter().any(|block| block.whole.contains(&start)) {
        return None;
    }
    let object = text.get(start..end)?;
    let counts = match lenient::object(object) {
        Some(read) => {
            read.taken == object.len() && envelope::likeness(&read.object) != QuestionLikelihood::None
        }
        // The object is invalid, but its beginning shows that it is a question.
        None => says_it_waits(object),
    };
    counts.then_some(QuestionSpan { body: start..end, whole: start..end, others: 0 })
}

/// Whether an invalid object begins with `{"outcome": "ask_user"` or a similar declaration.
fn says_it_waits(object: &str) -> bool {
    let is_noise = |character: char| character.is_whitespace() || "{\"'“”:".contains(character);
    let word =
        |text: &'static str, from: &str| from.trim_start_matches(is_noise).strip_prefix(text).is_some();
    let Some(after) = object.trim_start_matches(is_noise).strip_prefix("outcome") else { return false };
    ["pending_user", "ask_user", "waiting_user"].into_iter().any(|value| word(value, after))
}

fn asked(text: &str, found: &QuestionSpan) -> RecognizedAnswer {
    let part = |range: Range<usize>| text.get(range).unwrap_or_default();
    let (body, before) = (part(found.body.clone()), part(0..found.whole.start).trim());
    let mut odd = vec![];
    if found.others > 0 {
        odd.push(
            "the answer has several questions: the last counts, the others are left in its text".to_owned(),
        );
    }
    let read = lenient::object(body);
    let asks = read.as_ref().and_then(|read| envelope::question(&read.object, before, &mut odd));
    let (question, rest) = match (asks, &read) {
        (Some(question), Some(read)) => {
            if read.repaired {
                odd.push("the question is no proper JSON and was repaired".to_owned());
            }
            // Text after the object is there because the block was not closed, and belongs to the answer.
            (question, body.get(read.taken..).unwrap_or_default().trim().trim_matches(['`', '~']).trim())
        }
        (None, _) | (_, None) => (malformed(body.trim(), before, &mut odd), ""),
    };
    let after = part(found.whole.end..text.len()).trim();
    let prose: Vec<&str> = [before, rest, after].into_iter().filter(|part| !part.is_empty()).collect();
    RecognizedAnswer {
        ending: TurnOutcome::Asked { text: prose.join("\n\n"), question },
        warning: (!odd.is_empty()).then(|| odd.join("; ")),
    }
}

/// An open question with the engine's text, for a question that cannot be parsed.
fn malformed(raw: &str, before: &str, odd: &mut Vec<String>) -> Question {
    odd.push("the engine's question cannot be read and is shown as it wrote it".to_owned());
    let prompt = match (raw, before) {
        ("" | "{}", "") => "The engine wants an answer but does not say to what.".to_owned(),
        ("" | "{}", before) => envelope::last_part(before),
        (raw, _) => envelope::bounded(raw.to_owned(), LONGEST_PROMPT, "the question", odd),
    };
    // A missing answer must never accept a risk, even if the question is invalid.
    let risky = raw.contains("risk_ack");
    Question {
        kind: InteractionKind::OpenText,
        prompt,
        options: vec![],
        ui_hints: None,
        default_decision_policy: if risky { DecisionPolicy::Abort } else { DecisionPolicy::EngineJudgement },
        context: None,
        hidden: None,
    }
}
