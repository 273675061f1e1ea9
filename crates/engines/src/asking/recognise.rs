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
    envelope::{self, MAX_PROMPT_CHARS, QuestionLikelihood},
    fences::{self, FenceContent, FencedBlock},
    lenient_json, patch, tags,
};

/// The interpretation of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecognizedAnswer {
    pub outcome: TurnOutcome,
    /// Deviations from the contract.
    pub warning: Option<String>,
}

/// Interprets the text with which an engine ended its turn.
pub fn recognise(text: &str) -> RecognizedAnswer {
    let mut blocks = fences::blocks(text);
    // A quotation of the instructions is not a question.
    let repeated = patch::repeated_instructions(text);
    blocks.retain(|block| !repeated.iter().any(|range| range.contains(&block.range.start)));
    match marked_question(text, &blocks)
        .or_else(|| unmarked_json_question(text, &blocks))
        .or_else(|| unfenced_question(text, &blocks))
    {
        Some(span) => question_answer(text, &span),
        None => RecognizedAnswer { outcome: TurnOutcome::Completed { text: text.to_owned() }, warning: None },
    }
}

/// The location of a question in an answer.
#[derive(Debug, PartialEq, Eq)]
struct QuestionSpan {
    body: Range<usize>,
    range: Range<usize>,
    /// Number of other questions in the answer.
    other_questions: usize,
}

/// The last block or element that is marked as a question. An empty one counts only if there is no other.
fn marked_question(text: &str, blocks: &[FencedBlock]) -> Option<QuestionSpan> {
    let questions = || blocks.iter().filter(|block| block.content == FenceContent::Question);
    let has_words = |body: &Range<usize>| !text.get(body.clone()).unwrap_or_default().trim().is_empty();
    let fenced = questions().rfind(|block| has_words(&block.body)).or_else(|| questions().next_back());
    let element = tags::last_element(text, blocks);
    let others = (questions().count() + usize::from(element.is_some())).saturating_sub(1);
    match (fenced, element) {
        (Some(block), Some(element)) if element.range.start > block.range.start => {
            Some(QuestionSpan { body: element.body, range: element.range, other_questions: others })
        }
        (Some(block), _) => Some(QuestionSpan {
            body: block.body.clone(),
            range: block.range.clone(),
            other_questions: others,
        }),
        (None, Some(element)) => {
            Some(QuestionSpan { body: element.body, range: element.range, other_questions: others })
        }
        (None, None) => None,
    }
}

/// The last JSON block that declares itself a question, or that has the form of one and is at the end.
fn unmarked_json_question(text: &str, blocks: &[FencedBlock]) -> Option<QuestionSpan> {
    blocks.iter().rev().filter(|block| block.content == FenceContent::PerhapsJson).find_map(|block| {
        let read = lenient_json::parse_object(text.get(block.body.clone())?)?;
        let is_last = text.get(block.range.end..)?.trim().is_empty();
        let counts = match envelope::question_likelihood(&read.object) {
            QuestionLikelihood::Declared => true,
            QuestionLikelihood::Probable => is_last,
            QuestionLikelihood::None => false,
        };
        counts.then(|| QuestionSpan {
            body: block.body.clone(),
            range: block.range.clone(),
            other_questions: 0,
        })
    })
}

/// An object without a fence: the complete answer, or its end from the beginning of a line on.
fn unfenced_question(text: &str, blocks: &[FencedBlock]) -> Option<QuestionSpan> {
    let end = text.trim_end().len();
    let alone = text.trim_start_matches('\u{feff}').trim_start().starts_with('{');
    let start = if alone { text.find('{')? } else { text.get(..end)?.rfind("\n{")? + 1 };
    let ends = alone || text.get(..end)?.ends_with('}');
    if !ends || blocks.iter().any(|block| block.range.contains(&start)) {
        return None;
    }
    let object = text.get(start..end)?;
    let counts = match lenient_json::parse_object(object) {
        Some(read) => {
            read.consumed_bytes == object.len()
                && envelope::question_likelihood(&read.object) != QuestionLikelihood::None
        }
        // The object is invalid, but its beginning shows that it is a question.
        None => begins_with_wait_marker(object),
    };
    counts.then_some(QuestionSpan { body: start..end, range: start..end, other_questions: 0 })
}

/// Whether an invalid object begins with `{"outcome": "ask_user"` or a similar declaration.
fn begins_with_wait_marker(object: &str) -> bool {
    let is_noise = |character: char| character.is_whitespace() || "{\"'“”:".contains(character);
    let word =
        |text: &'static str, from: &str| from.trim_start_matches(is_noise).strip_prefix(text).is_some();
    let Some(after) = object.trim_start_matches(is_noise).strip_prefix("outcome") else { return false };
    ["pending_user", "ask_user", "waiting_user"].into_iter().any(|value| word(value, after))
}

fn question_answer(text: &str, span: &QuestionSpan) -> RecognizedAnswer {
    let part = |range: Range<usize>| text.get(range).unwrap_or_default();
    let (body, before) = (part(span.body.clone()), part(0..span.range.start).trim());
    let mut warnings = vec![];
    if span.other_questions > 0 {
        warnings.push(
            "the answer has several questions; only the last one is asked, the others stay in the text"
                .to_owned(),
        );
    }
    let read = lenient_json::parse_object(body);
    let asks = read.as_ref().and_then(|read| envelope::question(&read.object, before, &mut warnings));
    let (question, rest) = match (asks, &read) {
        (Some(question), Some(read)) => {
            if read.repaired {
                warnings.push("the question is not valid JSON and was repaired".to_owned());
            }
            // Text after the object is there because the block was not closed, and belongs to the answer.
            (
                question,
                body.get(read.consumed_bytes..).unwrap_or_default().trim().trim_matches(['`', '~']).trim(),
            )
        }
        (None, _) | (_, None) => (malformed_question(body.trim(), before, &mut warnings), ""),
    };
    let after = part(span.range.end..text.len()).trim();
    let prose: Vec<&str> = [before, rest, after].into_iter().filter(|part| !part.is_empty()).collect();
    RecognizedAnswer {
        outcome: TurnOutcome::Asked { text: prose.join("\n\n"), question },
        warning: (!warnings.is_empty()).then(|| warnings.join("; ")),
    }
}

/// An open question with the engine's text, for a question that cannot be parsed.
fn malformed_question(raw: &str, before: &str, warnings: &mut Vec<String>) -> Question {
    warnings.push("the engine's question cannot be parsed and is shown unchanged".to_owned());
    let prompt = match (raw, before) {
        ("" | "{}", "") => "The engine asks for an answer without a question.".to_owned(),
        ("" | "{}", before) => envelope::prompt_from_tail(before),
        (raw, _) => envelope::truncate(raw.to_owned(), MAX_PROMPT_CHARS, "the question", warnings),
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
