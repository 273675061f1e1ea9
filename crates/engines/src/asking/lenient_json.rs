//! Parses JSON as models write it: typographic quotes, trailing commas, comments, raw newlines, unquoted names, and
//! missing closing brackets.
//!
//! Valid JSON is parsed unchanged. Only invalid JSON is repaired, in one pass. The meaning of the object is not known
//! here.

use serde_json::{Map, Value};

#[derive(Debug, PartialEq)]
pub(super) struct LenientObject {
    pub(super) object: Map<String, Value>,
    /// Number of bytes that it took, from the beginning of the text.
    pub(super) consumed_bytes: usize,
    /// Whether the text was invalid JSON.
    pub(super) repaired: bool,
}

/// The object at the beginning of a text.
pub(super) fn parse_object(text: &str) -> Option<LenientObject> {
    let start = text.len() - text.trim_start().len();
    let text = text.get(start..).filter(|text| text.starts_with('{'))?;
    let first = |json: &str| {
        let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
        match values.next() {
            Some(Ok(Value::Object(object))) => Some((object, values.byte_offset())),
            Some(Ok(_) | Err(_)) | None => None,
        }
    };
    if let Some((object, consumed)) = first(text) {
        return Some(LenientObject { object, consumed_bytes: start + consumed, repaired: false });
    }
    let (repaired, consumed) = repair(text);
    let (object, _) = first(&repaired)?;
    Some(LenientObject { object, consumed_bytes: start + consumed, repaired: true })
}

/// Repairs the first object of the text. Returns JSON, and the number of bytes read.
fn repair(text: &str) -> (String, usize) {
    let mut json = String::with_capacity(text.len() + 16);
    let mut open: Vec<char> = vec![];
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let after = rest.get(character.len_utf8()..).unwrap_or_default();
        rest = match character {
            '{' | '[' => {
                open.push(if character == '{' { '}' } else { ']' });
                json.push(character);
                after
            }
            '}' | ']' => {
                drop_comma(&mut json);
                if open.pop() != Some(character) {
                    break;
                }
                json.push(character);
                if open.is_empty() {
                    return (json, text.len() - after.len());
                }
                after
            }
            '"' | '\'' | '\u{201c}' | '\u{201d}' | '\u{201e}' | '\u{2018}' | '\u{2019}' => {
                copy_string(character, after, &mut json)
            }
            '/' if after.starts_with('/') => {
                after.find('\n').and_then(|at| after.get(at..)).unwrap_or_default()
            }
            '/' if after.starts_with('*') => {
                after.find("*/").and_then(|at| after.get(at + 2..)).unwrap_or_default()
            }
            // A fence inside an object means that the object is incomplete.
            '`' => break,
            _ if character.is_alphabetic() || character == '_' => copy_word(rest, &mut json),
            _ => {
                json.push(character);
                after
            }
        };
    }
    drop_comma(&mut json);
    json.extend(open.iter().rev());
    (json, text.len() - rest.len())
}

fn drop_comma(json: &mut String) {
    let kept = json.trim_end().len();
    if json.get(..kept).is_some_and(|kept| kept.ends_with(',')) {
        json.truncate(kept - 1);
    }
}

/// Copies a string after its opening quote. Returns the rest of the text.
fn copy_string<'a>(quote: char, text: &'a str, json: &mut String) -> &'a str {
    let typographic = !matches!(quote, '"' | '\'');
    let closes = |character: char| match character {
        '"' => quote == '"' || typographic,
        '\'' => quote == '\'',
        '\u{201c}' | '\u{201d}' | '\u{2018}' | '\u{2019}' => typographic,
        _ => false,
    };
    json.push('"');
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        let after = text.get(at + character.len_utf8()..).unwrap_or_default();
        match character {
            '\\' => match characters.next() {
                Some((_, escaped @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u'))) => {
                    json.push('\\');
                    json.push(escaped);
                }
                Some((_, other)) => push_escaped(json, other),
                None => {}
            },
            _ if closes(character) && ends_string(after) => {
                json.push('"');
                return after;
            }
            _ => push_escaped(json, character),
        }
    }
    json.push('"');
    ""
}

/// Whether the text after a quotation mark shows that the mark closes the string.
fn ends_string(after: &str) -> bool {
    let next = after.trim_start().chars().next();
    next.is_none_or(|next| matches!(next, ',' | ':' | '}' | ']' | '/' | '`'))
}

/// Appends a character with JSON escapes.
fn push_escaped(json: &mut String, character: char) {
    match character {
        '"' => json.push_str("\\\""),
        '\n' => json.push_str("\\n"),
        '\r' => {}
        '\t' => json.push_str("\\t"),
        control if control.is_control() => json.push(' '),
        other => json.push(other),
    }
}

/// Copies an unquoted word: a literal in the spelling of another language, or a name.
fn copy_word<'a>(text: &'a str, json: &mut String) -> &'a str {
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-');
    let end = text.find(|character| !is_part(character)).unwrap_or(text.len());
    let (word, after) = text.split_at(end);
    match word {
        "true" | "True" | "TRUE" | "yes" => json.push_str("true"),
        "false" | "False" | "FALSE" | "no" => json.push_str("false"),
        "null" | "None" | "undefined" => json.push_str("null"),
        // The exponent of a number.
        "e" | "E" if json.ends_with(|last: char| last.is_ascii_digit()) => json.push_str(word),
        name => {
            json.push('"');
            json.push_str(name);
            json.push('"');
        }
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, json: &str) {
        let read = parse_object(text).unwrap_or_else(|| panic!("cannot read {text}"));
        assert_eq!(Value::Object(read.object), serde_json::from_str::<Value>(json).unwrap(), "{text}");
    }

    #[test]
    fn common_deviations_are_repaired() {
        let plain = r#"{"a":"b","c":[1,true,null]}"#;
        check(plain, plain);
        check(r#"{"a": "b", "c": [1, true, null,],}"#, plain);
        check("{“a”: “b”, “c”: [1, True, None]}", plain);
        check("{'a': 'b', 'c': [1, true, null]}", plain);
        check("{a: \"b\", /* two */ c: [1, true, null] // the end\n}", plain);
        check(r#"{"a":"b","c":[1,true,null"#, plain);
        check("{\"a\":\"b\",\"c\":[1,true,null]\n```", plain);
    }

    #[test]
    fn strings_keep_what_is_in_them() {
        check("{\"a\": \"two\nlines, “quoted”\",}", r#"{"a": "two\nlines, “quoted”"}"#);
        check(r#"{"a": "it's "so" good",}"#, r#"{"a": "it's \"so\" good"}"#);
        check(r#"{'a': 'say \'hi\' \d',}"#, r#"{"a": "say 'hi' d"}"#);
        check(r#"{"a": "// no comment, {no} [bracket]",}"#, r#"{"a": "// no comment, {no} [bracket]"}"#);
    }

    #[test]
    fn text_after_the_object_is_not_consumed() {
        for text in ["{\"a\":1} and more", " {\"a\":1,} and more"] {
            assert_eq!(parse_object(text).map(|read| &text[read.consumed_bytes..]), Some(" and more"));
        }
    }

    #[test]
    fn other_values_are_not_objects() {
        for text in ["", "words", "[1]", "\"{}\"", "{{{{", "{]}", "{\"a\" \"b\"}"] {
            assert_eq!(parse_object(text), None, "{text}");
        }
    }
}
