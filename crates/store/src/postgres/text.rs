//! Escapes texts for Postgres, which does not accept the zero character: it is written as `\0`.

use std::borrow::Cow;

/// The form in which a column stores a text.
pub(super) fn escape_nul(text: &str) -> Cow<'_, str> {
    if text.contains(['\0', '\\']) {
        Cow::Owned(text.replace('\\', "\\\\").replace('\0', "\\0"))
    } else {
        Cow::Borrowed(text)
    }
}

/// The text that a column stores.
pub(super) fn unescape_nul(column: String) -> String {
    if !column.contains('\\') {
        return column;
    }
    let mut text = String::with_capacity(column.len());
    let mut characters = column.chars();
    while let Some(character) = characters.next() {
        match (character, character == '\\') {
            (_, false) => text.push(character),
            (_, true) => text.push(if characters.next() == Some('0') { '\0' } else { '\\' }),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        for text in ["", "plain", "\0", "\\", "\\0", "a\\\0b\\\\0", "你\0好"] {
            let column = escape_nul(text).into_owned();
            assert!(!column.contains('\0'));
            assert_eq!(unescape_nul(column), text);
        }
    }
}
