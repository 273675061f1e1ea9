//! Finds fenced blocks in an engine's answer, including forms that Markdown does not allow.
//!
//! Any indentation is accepted, and the closing fence may be missing. A block inside a longer fence, or inside one of
//! the other character, is an example and is ignored. There is one pass over the bytes and one over the fences, so the
//! time is linear. The content of a block is not examined here.

use std::ops::Range;

use super::patch::QUESTION_FENCE;

/// A fenced block, as byte ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FencedBlock {
    /// The content that the info string declares.
    pub(super) content: FenceContent,
    /// The bytes between the fences.
    pub(super) body: Range<usize>,
    /// The block with its fences.
    pub(super) range: Range<usize>,
}

/// The content that an info string declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceContent {
    Question,
    /// JSON, or no declaration.
    PerhapsJson,
    Other,
}

/// A line that begins with a fence.
#[derive(Clone, Copy, Debug)]
struct FenceLine {
    /// Offset of the fence itself.
    start: usize,
    /// Offset of the line's end, without the newline.
    end: usize,
    mark: u8,
    length: usize,
    content: FenceContent,
    /// Offset of the body, if it is on the same line.
    inline_body: Option<usize>,
    /// Whether the info string makes this inline code instead of a fence.
    is_inline_code: bool,
    /// Whether the line contains only the fence.
    is_bare: bool,
}

/// All blocks, in order. A block without a closing fence reaches to the end of the text. Of unclosed blocks that are
/// not questions, only the last is returned.
pub(super) fn blocks(text: &str) -> Vec<FencedBlock> {
    let fences = fences(text);
    let closing_fences = longest_closing_fences(&fences);
    let (mut blocks, mut unclosed) = (vec![], None);
    let mut at = 0;
    while let Some(fence) = fences.get(at) {
        at += 1;
        if fence.is_inline_code {
            continue;
        }
        let body = fence.inline_body.unwrap_or_else(|| after_newline(text, fence.end));
        let line = text.get(..fence.end).unwrap_or(text).trim_end();
        let trailing = line.bytes().rev().take_while(|byte| *byte == fence.mark).count();
        if fence.inline_body.is_some_and(|body| trailing >= fence.length && line.len() - trailing > body) {
            let body = body..line.len() - trailing;
            blocks.push(FencedBlock { content: fence.content, body, range: fence.start..fence.end });
            continue;
        }
        let may_end = closing_fences.get(at).is_some_and(|longest| longest.of(fence.mark) >= fence.length);
        let mut later = fences.iter().enumerate().skip(at);
        match if may_end { later.find(|(_, later)| later.closes(fence)) } else { None } {
            Some((index, end)) => {
                // A question that begins inside a block of the same fence length ends that block, whose closing fence
                // is missing.
                let whole = if end.is_bare { fence.start..end.end } else { fence.start..end.start };
                blocks.push(FencedBlock {
                    content: fence.content,
                    body: body..end.start.max(body),
                    range: whole,
                });
                at = if end.is_bare { index + 1 } else { index };
            }
            None => {
                let block = FencedBlock {
                    content: fence.content,
                    body: body..text.len(),
                    range: fence.start..text.len(),
                };
                match fence.content {
                    FenceContent::Question => {
                        blocks.push(block);
                        break;
                    }
                    // The opening fence may be a false match, so the following lines are examined as if it were absent.
                    FenceContent::PerhapsJson => unclosed = Some(block),
                    FenceContent::Other => {}
                }
            }
        }
    }
    let last = blocks.last().map_or(0, |block| block.range.end);
    blocks.extend(unclosed.filter(|block| block.range.start >= last));
    blocks
}

impl FenceLine {
    /// Whether this fence closes that block.
    fn closes(&self, opening: &Self) -> bool {
        self.mark == opening.mark
            && self.length >= opening.length
            && (self.is_bare || (self.content == FenceContent::Question && !self.is_inline_code))
    }
}

/// For each character, the length of the longest closing fence from some fence on.
#[derive(Clone, Copy, Debug, Default)]
struct LongestFences {
    backticks: usize,
    tildes: usize,
}

impl LongestFences {
    fn of(self, mark: u8) -> usize {
        if mark == b'`' { self.backticks } else { self.tildes }
    }
}

/// For each fence, the longest closing fence after it. It prevents searches that cannot succeed.
fn longest_closing_fences(fences: &[FenceLine]) -> Vec<LongestFences> {
    let mut longest = LongestFences::default();
    let mut closing_fences: Vec<_> = fences
        .iter()
        .rev()
        .map(|fence| {
            if fence.is_bare || (fence.content == FenceContent::Question && !fence.is_inline_code) {
                let of_its_mark =
                    if fence.mark == b'`' { &mut longest.backticks } else { &mut longest.tildes };
                *of_its_mark = fence.length.max(*of_its_mark);
            }
            longest
        })
        .collect();
    closing_fences.reverse();
    closing_fences
}

fn fences(text: &str) -> Vec<FenceLine> {
    let mut fences = vec![];
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\n', '\r']);
        let indent = content.len() - content.trim_start().len();
        let fence = fence(content, start, indent).or_else(|| {
            // After a list marker or other words, a fence counts only if it opens a question.
            let at = content.rfind("```").filter(|at| *at > indent)?;
            let at = content.get(..at)?.trim_end_matches('`').len();
            let follows = text.get(start + line.len()..)?.trim_start().starts_with('{');
            fence(content, start, at)
                .filter(|fence| fence.content == FenceContent::Question && follows && !is_quoted(content))
        });
        fences.extend(fence);
        start += line.len();
    }
    fences
}

fn is_quoted(line: &str) -> bool {
    line.trim_start().starts_with('>')
}

/// The fence at byte `at` of the line that begins at byte `offset`.
fn fence(line: &str, offset: usize, at: usize) -> Option<FenceLine> {
    let rest = line.get(at..)?;
    let mark = rest.bytes().next().filter(|byte| matches!(byte, b'`' | b'~'))?;
    let run = rest.bytes().take_while(|byte| *byte == mark).count();
    if run < 3 {
        return None;
    }
    let info = rest.get(run..)?;
    let (holds, words) = parse_info_string(info);
    let inline_body = info.get(words..).and_then(|after| {
        let body = after.trim_start();
        body.starts_with('{').then(|| offset + at + run + words + after.len() - body.len())
    });
    let inert = mark == b'`' && info.contains('`') && inline_body.is_none();
    Some(FenceLine {
        start: offset + at,
        end: offset + line.len(),
        mark,
        length: run,
        content: holds,
        inline_body,
        is_inline_code: inert,
        is_bare: info.trim().is_empty(),
    })
}

/// The content that an info string declares, and the number of bytes that were evaluated.
fn parse_info_string(info: &str) -> (FenceContent, usize) {
    let Some(first) = word(info, 0) else { return (FenceContent::PerhapsJson, 0) };
    let is_one_of = |word: &Range<usize>, names: &[&str]| {
        let text = info.get(word.clone()).unwrap_or_default();
        names.iter().any(|name| text.eq_ignore_ascii_case(name))
    };
    if is_one_of(&first, &QUESTION_INFO_WORDS) {
        return (FenceContent::Question, first.end);
    }
    if !is_one_of(&first, &["json", "jsonc", "json5"]) {
        return (FenceContent::Other, first.end);
    }
    match word(info, first.end).filter(|second| is_one_of(second, &QUESTION_INFO_WORDS)) {
        Some(second) => (FenceContent::Question, second.end),
        None => (FenceContent::PerhapsJson, first.end),
    }
}

const QUESTION_INFO_WORDS: [&str; 3] = [QUESTION_FENCE, "abide_question", "abidequestion"];

/// The first word of an info string from byte `from` on. An object that begins there is the body and not a word.
fn word(info: &str, from: usize) -> Option<Range<usize>> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
    let rest = info.get(from..)?;
    let start = from + rest.find(is_part).filter(|at| !rest.get(..*at).unwrap_or_default().contains('"'))?;
    let length = info.get(start..)?.find(|character| !is_part(character)).unwrap_or(info.len() - start);
    Some(start..start + length)
}

fn after_newline(text: &str, end: usize) -> usize {
    text.get(end..).and_then(|rest| rest.find('\n')).map_or(text.len(), |at| end + at + 1)
}
