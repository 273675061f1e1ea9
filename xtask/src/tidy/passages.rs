//! Finds the passages of a file that are written for readers: prose of documents, comments, strings and names. A
//! passage is a list of words with their lines, so that a phrase is found across a line break.
//!
//! Text between backticks and in fences is code and is left out.

use super::markdown::{LinePlace, lines};
use super::source::{RustSource, is_name};

/// A paragraph, a table cell, a string, or one name of several words.
pub(super) struct TextPassage {
    pub(super) words: Vec<PassageWord>,
}

pub(super) struct PassageWord {
    /// Counted from 1.
    pub(super) line: usize,
    /// In lower case.
    pub(super) text: String,
    /// The position of the word's sentence in the passage, counted from 0.
    pub(super) sentence: usize,
    /// Whether the sentence ends with a question mark.
    pub(super) in_question: bool,
}

/// Returns the passages of a file, by its extension. Other files have none.
pub(super) fn passages(path: &str, text: &str) -> Vec<TextPassage> {
    let extension = path.rsplit('.').next().unwrap_or_default();
    match extension {
        "rs" => rust_passages(text),
        "md" => markdown_passages(text),
        "toml" | "yml" | "yaml" => comment_passages(text, "#"),
        "sql" => comment_passages(text, "--"),
        _ => Vec::new(),
    }
}

fn rust_passages(text: &str) -> Vec<TextPassage> {
    let source = RustSource::split(text);
    let mut passages = ParagraphCollector::default();
    for (index, line) in source.comments.lines().enumerate() {
        let text = line.trim().trim_start_matches(['/', '!', '*']);
        passages.line(index + 1, text);
    }
    let mut passages = passages.finish();
    passages.extend(string_passages(&source.strings));
    for (index, line) in source.code.lines().enumerate() {
        let names = line.split(|c: char| !is_name(c)).filter(|name| !name.is_empty());
        passages
            .extend(names.map(|name| name_passage(index + 1, name)).filter(|name| !name.words.is_empty()));
    }
    passages
}

/// Returns each text between quotation marks. A mark inside a raw string divides it, which changes no word.
fn string_passages(strings: &str) -> Vec<TextPassage> {
    let mut passages = Vec::new();
    let mut line = 1;
    for (index, piece) in strings.split('"').enumerate() {
        if index % 2 == 1 {
            let mut paragraph = ParagraphCollector::default();
            for (offset, text) in piece.lines().enumerate() {
                paragraph.text(line + offset, &without_placeholders(text));
            }
            passages.extend(paragraph.finish());
        }
        line += piece.matches('\n').count();
    }
    passages
}

/// Replaces `{name}` of a format string, which is code.
fn without_placeholders(text: &str) -> String {
    let mut pieces = text.split('{');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |prose, piece| prose + " x " + piece.split_once('}').map_or(piece, |(_, rest)| rest))
}

fn markdown_passages(text: &str) -> Vec<TextPassage> {
    let mut passages = ParagraphCollector::default();
    for line in lines(text).filter(|line| line.place == LinePlace::Prose) {
        let text = line.text.trim_start();
        if text.starts_with('|') {
            for cell in text.split('|') {
                passages.end();
                passages.text(line.number, cell);
            }
            passages.end();
        } else {
            let is_item =
                text.starts_with(['-', '*', '#', '>']) || text.starts_with(|c: char| c.is_ascii_digit());
            if is_item {
                passages.end();
            }
            passages.line(line.number, text);
        }
    }
    passages.finish()
}

fn comment_passages(text: &str, mark: &str) -> Vec<TextPassage> {
    let mut passages = ParagraphCollector::default();
    for (index, line) in text.lines().enumerate() {
        let comment = line.find(mark).map_or("", |at| &line[at + mark.len()..]);
        passages.line(index + 1, comment);
    }
    passages.finish()
}

/// Splits `JournalEntry`, `journal_entry` and `JOURNAL_ENTRY` into their words.
fn name_passage(line: usize, name: &str) -> TextPassage {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for c in name.chars() {
        let begins_word = before == '_' || (c.is_uppercase() && !before.is_uppercase());
        if c != '_' {
            match words.last_mut().filter(|_| !begins_word) {
                Some(word) => word.extend(c.to_lowercase()),
                None => words.push(c.to_lowercase().collect()),
            }
        }
        before = c;
    }
    let word = |text| PassageWord { line, text, sentence: 0, in_question: false };
    TextPassage { words: words.into_iter().map(word).collect() }
}

/// Collects lines into passages. An empty line ends a passage.
#[derive(Default)]
struct ParagraphCollector {
    finished: Vec<TextPassage>,
    words: Vec<PassageWord>,
    sentence: usize,
}

impl ParagraphCollector {
    fn line(&mut self, number: usize, text: &str) {
        if text.trim().is_empty() {
            self.end();
        } else {
            self.text(number, text);
        }
    }

    fn text(&mut self, number: usize, text: &str) {
        let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" x ");
        for token in prose.split_whitespace() {
            for part in token.split(|c: char| !c.is_alphabetic()).filter(|part| !part.is_empty()) {
                let text = part.to_lowercase();
                self.words.push(PassageWord {
                    line: number,
                    text,
                    sentence: self.sentence,
                    in_question: false,
                });
            }
            let ended = token.trim_end_matches([')', '"', '\'', '*', '_']);
            if ended.ends_with('?') {
                let sentence = self.sentence;
                self.words.iter_mut().rev().take_while(|word| word.sentence == sentence).for_each(|word| {
                    word.in_question = true;
                });
            }
            if ended.ends_with(['.', '?', '!', ';', ':']) {
                self.sentence += 1;
            }
        }
    }

    fn end(&mut self) {
        if !self.words.is_empty() {
            self.finished.push(TextPassage { words: std::mem::take(&mut self.words) });
        }
        self.sentence = 0;
    }

    fn finish(mut self) -> Vec<TextPassage> {
        self.end();
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::passages;

    /// Returns each passage as its words, with a bar between sentences.
    fn texts(path: &str, text: &str) -> Vec<String> {
        let passage = |passage: &super::TextPassage| {
            let mut marked_text = String::new();
            let mut sentence = 0;
            for word in &passage.words {
                let space = if marked_text.is_empty() { "" } else { " " };
                let bar = if word.sentence == sentence { "" } else { "| " };
                sentence = word.sentence;
                marked_text = format!("{marked_text}{space}{bar}{}", word.text);
            }
            marked_text
        };
        passages(path, text).iter().map(passage).collect()
    }

    #[test]
    fn comments_strings_and_names_of_rust_are_passages() {
        let text = "//! One\n//! two. Three `Four`.\n\nfn do_it() { say(\"{who} five; six\") } // Seven\n";
        let expected = ["one two | three x", "seven", "x five | six", "fn", "do it", "say"];
        assert_eq!(texts("a.rs", text), expected);
    }

    #[test]
    fn paragraphs_items_and_cells_of_a_document_are_passages() {
        let text = "# Head\nOne\ntwo.\n\n- three\n  four\n- five\n\n| six | seven |\n```\neight\n```\n";
        assert_eq!(texts("a.md", text), ["head one two", "three four", "five", "six", "seven"]);
    }

    #[test]
    fn only_comments_of_settings_and_statements_are_passages() {
        assert_eq!(texts("a.toml", "name = 1 # one\n\n# two\n"), ["one", "two"]);
        assert_eq!(texts("a.sql", "-- one\nSELECT two;\n"), ["one"]);
        assert_eq!(texts("a.jsonl", "one\n"), [""; 0]);
    }

    #[test]
    fn a_question_is_marked_to_its_beginning() {
        let all = passages("a.md", "One. Who is\nit? Two.\n");
        let marked: Vec<&str> =
            all[0].words.iter().filter(|word| word.in_question).map(|word| word.text.as_str()).collect();
        assert_eq!(marked, ["who", "is", "it"]);
    }
}
