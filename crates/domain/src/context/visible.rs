//! Escapes texts of an engine so that every character is visible.
//!
//! Escapes begin with a backslash, and a backslash in the text is doubled, so a text cannot imitate an escape.
//! `\{40×space}` stands for a run of blanks that would push the following text out of sight.

use core::fmt::{Display, Formatter, Result, Write};

/// The longest run of one blank character that is shown unchanged.
const MAX_BLANK_RUN_CHARS: usize = 16;
/// The longest run of empty lines that is shown unchanged.
const MAX_EMPTY_LINES: usize = 4;

/// A text in quotes on one line.
#[derive(Clone, Copy, Debug)]
pub struct QuotedText<'a>(pub &'a str);

/// A text on separate lines that each begin with a bar. Its output begins with a line break.
#[derive(Clone, Copy, Debug)]
pub struct QuotedBlock<'a>(pub &'a str);

/// A name: unchanged if it is plain, otherwise in quotes.
#[derive(Clone, Copy, Debug)]
pub struct QuotedName<'a>(pub &'a str);

/// JSON on one line, without blanks between tokens.
#[derive(Clone, Copy, Debug)]
pub struct CompactJson<'a>(pub &'a str);

/// A text on one line without quotes, for labels.
#[derive(Clone, Copy, Debug)]
pub struct EscapedLabel<'a>(pub &'a str);

impl Display for QuotedText<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.write_char('"')?;
        for_each_run(self.0, |char, count| match char {
            '"' => write_repeated(out, "\\\"", count),
            char => write_escaped_run(out, char, count),
        })?;
        out.write_char('"')
    }
}

impl Display for EscapedLabel<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        for_each_run(self.0, |char, count| write_escaped_run(out, char, count))
    }
}

impl Display for QuotedBlock<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let mut gap = 0_usize;
        let mut lines = self.0.split('\n').peekable();
        while let Some(line) = lines.next() {
            if line.is_empty() {
                gap += 1;
                if lines.peek().is_some_and(|next| next.is_empty()) {
                    continue;
                }
            }
            if gap > MAX_EMPTY_LINES {
                write!(out, "\n  | \\{{{gap}×empty line}}")?;
            } else {
                (0..gap).try_for_each(|_| out.write_str("\n  |"))?;
            }
            gap = 0;
            if line.is_empty() {
                continue;
            }
            out.write_str("\n  | ")?;
            let text = line.trim_end_matches(' ');
            for_each_run(text, |char, count| write_escaped_run(out, char, count))?;
            // Trailing blanks are invisible, so they are escaped.
            match line.len() - text.len() {
                0 => {}
                blanks => write_run_length(out, ' ', blanks)?,
            }
        }
        Ok(())
    }
}

impl Display for QuotedName<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.');
        match self.0 {
            name if !name.is_empty() && name.len() <= 64 && name.chars().all(plain) => out.write_str(name),
            name => QuotedText(name).fmt(out),
        }
    }
}

impl Display for CompactJson<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let (mut quoted, mut escaped) = (false, false);
        for_each_run(self.0, |char, count| {
            if !quoted {
                quoted = char == '"' && count % 2 == 1;
                return match char {
                    ' ' | '\t' | '\r' | '\n' => Ok(()),
                    ':' | ',' => (0..count).try_for_each(|_| write!(out, "{char} ")),
                    char if is_invisible(char) => (0..count).try_for_each(|_| write_json_escapes(out, char)),
                    char => (0..count).try_for_each(|_| out.write_char(char)),
                };
            }
            match char {
                // In a run of backslashes, every second one is escaped by the one before it.
                '\\' => {
                    escaped ^= count % 2 == 1;
                    (0..count).try_for_each(|_| out.write_char('\\'))
                }
                char => {
                    let ends = if escaped { count - 1 } else { count };
                    escaped = false;
                    if char == '"' && ends % 2 == 1 {
                        quoted = false;
                    }
                    match char {
                        ' ' if count > MAX_BLANK_RUN_CHARS => write_run_length(out, char, count),
                        char if is_invisible(char) && count > MAX_BLANK_RUN_CHARS => {
                            write_run_length(out, char, count)
                        }
                        char if is_invisible(char) => {
                            (0..count).try_for_each(|_| write_json_escapes(out, char))
                        }
                        char => (0..count).try_for_each(|_| out.write_char(char)),
                    }
                }
            }
        })
    }
}

/// Calls a function with each run of one character.
fn for_each_run(text: &str, mut each: impl FnMut(char, usize) -> Result) -> Result {
    let mut run: Option<(char, usize)> = None;
    for char in text.chars() {
        run = match run {
            Some((same, count)) if same == char => Some((char, count + 1)),
            Some((other, count)) => {
                each(other, count)?;
                Some((char, 1))
            }
            None => Some((char, 1)),
        };
    }
    run.map_or(Ok(()), |(char, count)| each(char, count))
}

fn write_repeated(out: &mut Formatter<'_>, text: &str, count: usize) -> Result {
    (0..count).try_for_each(|_| out.write_str(text))
}

/// Writes a run of one character, escaped where needed.
fn write_escaped_run(out: &mut Formatter<'_>, char: char, count: usize) -> Result {
    match char {
        '\\' => write_repeated(out, "\\\\", count),
        ' ' if count > MAX_BLANK_RUN_CHARS => write_run_length(out, char, count),
        char if is_invisible(char) && count > MAX_BLANK_RUN_CHARS => write_run_length(out, char, count),
        '\n' => write_repeated(out, "\\n", count),
        '\r' => write_repeated(out, "\\r", count),
        '\t' => write_repeated(out, "\\t", count),
        char if is_invisible(char) => {
            (0..count).try_for_each(|_| write!(out, "\\u{{{:x}}}", u32::from(char)))
        }
        char => (0..count).try_for_each(|_| out.write_char(char)),
    }
}

/// Writes the length of a run instead of its characters.
fn write_run_length(out: &mut Formatter<'_>, char: char, count: usize) -> Result {
    match char {
        ' ' => write!(out, "\\{{{count}×space}}"),
        '\t' => write!(out, "\\{{{count}×tab}}"),
        '\n' => write!(out, "\\{{{count}×newline}}"),
        char => write!(out, "\\{{{count}×u+{:04x}}}", u32::from(char)),
    }
}

/// Writes the escapes of JSON: `\u` and four digits per UTF-16 unit.
fn write_json_escapes(out: &mut Formatter<'_>, char: char) -> Result {
    let mut units = [0; 2];
    char.encode_utf16(&mut units).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
}

/// Whether a character is invisible: control characters, blanks other than the space, directional marks, joiners,
/// fillers, variation selectors and private-use characters.
pub fn is_invisible(char: char) -> bool {
    char.is_control()
        || (char.is_whitespace() && char != ' ')
        || matches!(char,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{e000}'..='\u{f8ff}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{10ffff}')
}
