//! Measures the nesting of JSON text without a parser, because parsers fail at their own limit.
//!
//! Invalid JSON gets a result too; the parser reports the error.

use std::borrow::Cow;

use serde_json::Value;

/// The maximum nesting of lists and objects in the text.
pub(super) fn depth(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    for (_, bracket) in brackets(text) {
        match bracket {
            JsonBracket::Open => depth += 1,
            JsonBracket::Close => depth = depth.saturating_sub(1),
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Replaces each list or object below `max_depth` levels by a string with its JSON text.
pub(super) fn flatten(text: &str, max_depth: usize) -> Cow<'_, str> {
    if depth(text) <= max_depth {
        return Cow::Borrowed(text);
    }
    let mut flat = String::with_capacity(text.len());
    let mut depth = 0_usize;
    // Start of the text that has not been copied yet.
    let mut rest = 0;
    for (at, bracket) in brackets(text) {
        match bracket {
            JsonBracket::Open => {
                if depth == max_depth {
                    flat.push_str(&text[rest..at]);
                    rest = at;
                }
                depth += 1;
            }
            JsonBracket::Close => {
                depth = depth.saturating_sub(1);
                if depth == max_depth {
                    flat.push_str(&Value::from(&text[rest..=at]).to_string());
                    rest = at + 1;
                }
            }
        }
    }
    flat.push_str(&text[rest..]);
    Cow::Owned(flat)
}

#[derive(Clone, Copy)]
enum JsonBracket {
    Open,
    Close,
}

/// The brackets of a JSON text outside of strings, with their offsets.
fn brackets(text: &str) -> impl Iterator<Item = (usize, JsonBracket)> {
    let (mut in_string, mut is_escaped) = (false, false);
    text.bytes().enumerate().filter_map(move |(at, byte)| {
        if in_string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            return None;
        }
        match byte {
            b'"' => {
                in_string = true;
                None
            }
            b'{' | b'[' => Some((at, JsonBracket::Open)),
            b'}' | b']' => Some((at, JsonBracket::Close)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_count() {
        for (text, expected) in [
            ("1", 0),
            ("{}", 1),
            (r#"{"a": [1, {"b": 2}], "c": []}"#, 3),
            (r#"{"a": "[[[[\"[[["}"#, 1),
            (r#"{"a\\": [1]}"#, 2),
            ("]]][", 1),
        ] {
            assert_eq!(depth(text), expected, "{text}");
        }
    }

    #[test]
    fn values_below_the_maximum_depth_become_strings() {
        assert_eq!(flatten(r#"{"a": [1, {"b": "x"}, [2]]}"#, 2), r#"{"a": [1, "{\"b\": \"x\"}", "[2]"]}"#);
        assert_eq!(flatten(r#"{"a": [1]}"#, 2), r#"{"a": [1]}"#);
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let value: Value = serde_json::from_str(&flatten(&deep, 100)).unwrap();
        assert_eq!(value.to_string().matches('[').count(), 100_000);
    }
}
