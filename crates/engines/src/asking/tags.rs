//! Finds elements such as `<ASK_USER>…</ASK_USER>`, which some skills tell engines to use for questions.
//!
//! Elements in code and mentions of the name do not count. The content is not examined here.

use std::ops::Range;

use super::fences::FencedBlock;

/// Compared without case, and with `-` as `_`.
const TAG_NAMES: [&str; 2] = ["ask_user", "abide_question"];

/// A question element, as byte ranges.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QuestionElement {
    /// The bytes between the tags.
    pub(super) body: Range<usize>,
    /// The element with its tags.
    pub(super) range: Range<usize>,
}

struct QuestionTag {
    name: &'static str,
    closing: bool,
    range: Range<usize>,
}

/// The last element with a question. Elements inside the fenced `blocks` are ignored.
pub(super) fn last_element(text: &str, blocks: &[FencedBlock]) -> Option<QuestionElement> {
    let tags = tags(text, blocks);
    let mut closing: Option<&QuestionTag> = None;
    for tag in tags.iter().rev() {
        if tag.closing {
            closing = Some(tag);
            continue;
        }
        let closing = closing.take().filter(|closing| closing.name == tag.name);
        let until = closing.map_or(text.len(), |closing| closing.range.start);
        let body = text.get(tag.range.end..until)?;
        let before = text.get(..tag.range.start)?.trim_end_matches([' ', '\t']);
        let begins_line = before.is_empty() || before.ends_with('\n');
        let is_object = body.trim_start().starts_with('{');
        if is_object || (begins_line && closing.is_some()) {
            return Some(QuestionElement {
                body: tag.range.end..until,
                range: tag.range.start..closing.map_or(text.len(), |closing| closing.range.end),
            });
        }
    }
    None
}

fn tags(text: &str, blocks: &[FencedBlock]) -> Vec<QuestionTag> {
    let mut blocks = blocks.iter().peekable();
    let mut tags = vec![];
    for start in memchr::memchr_iter(b'<', text.as_bytes()) {
        while blocks.next_if(|block| block.range.end <= start).is_some() {}
        let in_block = blocks.peek().is_some_and(|block| block.range.contains(&start));
        let in_code = text.get(..start).is_some_and(|before| before.ends_with('`'));
        let tag = text.get(start + 1..).and_then(|rest| tag(rest, start));
        tags.extend(tag.filter(|_| !in_block && !in_code));
    }
    tags
}

/// Parses a tag. `rest` is the text after its `<`, which is at byte `start`.
fn tag(rest: &str, start: usize) -> Option<QuestionTag> {
    let (closing, rest) = rest.strip_prefix('/').map_or((false, rest), |rest| (true, rest));
    TAG_NAMES.into_iter().find_map(|name| {
        let name_text = rest.get(..name.len())?;
        let after = rest.get(name.len()..)?.strip_prefix('>')?;
        let same = name_text.bytes().zip(name.bytes()).all(|(byte, expected)| {
            byte.to_ascii_lowercase() == expected || (expected == b'_' && byte == b'-')
        });
        let end = start + 1 + usize::from(closing) + (rest.len() - after.len());
        same.then_some(QuestionTag { name, closing, range: start..end })
    })
}
