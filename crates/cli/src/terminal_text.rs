//! Prints untrusted text safely on a terminal.
//!
//! Agent output is untrusted: a control sequence can hide a command or rewrite the screen or the clipboard. Control
//! characters are therefore made visible. Files and pipes get the text unchanged.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Makes control characters visible; line ends and tabs stay.
pub(crate) fn escape_control_chars(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    text.chars().map(|char| if char == '\n' || char == '\t' { char } else { visible_char(char) }).collect()
}

/// Joins the text into one line with control characters escaped and white space collapsed.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().map(escape_control_chars).collect::<Vec<_>>().join(" ")
}

/// Returns the display width in columns.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Truncates the text to `columns`, with an ellipsis if it is too long.
pub(crate) fn truncate(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used_columns = 1;
    for char in text.chars() {
        used_columns += char.width().unwrap_or(0);
        if used_columns > columns {
            break;
        }
        kept.push(char);
    }
    kept.push('…');
    kept
}

fn visible_char(char: char) -> char {
    match char {
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + u32::from(char)).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        // C1 control characters, among them a one-byte escape.
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        // Bidirectional control characters, which can make text read differently from its content.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}' => '\u{fffd}',
        // Unicode line and paragraph separators.
        '\u{2028}' | '\u{2029}' => '\u{fffd}',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let nasty = "a\x1b[2J\x1b]0;title\x07b\x08\x7f\u{9b}31m\u{202e}c\r\nd\te\rf";
        assert_eq!(escape_control_chars(nasty), "a␛[2J␛]0;title␇b␈␡\u{fffd}31m\u{fffd}c\nd\te␍f");
        assert_eq!(one_line("a \r\n\tb\x1b[1m\nc"), "a b␛[1m c");
    }

    #[test]
    fn text_is_truncated_by_display_width() {
        assert_eq!(truncate("hello", 5), "hello");
        assert_eq!(truncate("hello!", 5), "hell…");
        assert_eq!(truncate("数据库数据库", 7), "数据库…");
        assert_eq!(truncate("数据库", 1), "…");
    }
}
