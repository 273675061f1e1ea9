//! Reads the subject of a permission request from an engine's JSON without losing a part of it.
//!
//! The JSON is never parsed into a tree, because a hostile request of a few megabytes would need gigabytes. The
//! top-level fields are split, and nested values remain text.

use std::{borrow::Cow, fmt};

use abide_domain::context::{FieldValue, RequestField};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Maximum number of fields or items. A request with more is shown as one piece of JSON.
const MAX_FIELDS: usize = 1_000;

/// The fields of a JSON object in order, including repeated ones.
#[derive(Debug, Default)]
pub(crate) struct JsonFields<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> JsonFields<'a> {
    /// `None` if the value is not an object or has too many fields.
    pub(crate) fn of(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    /// Removes and returns the texts of these names, if each occurs once and is a text.
    pub(crate) fn take_texts<const N: usize>(&mut self, names: [&str; N]) -> Option<[String; N]> {
        let texts = names.map(|name| serde_json::from_str::<String>(self.unique(name)?.get()).ok());
        if texts.iter().any(Option::is_none) {
            return None;
        }
        self.0.retain(|(name, _)| !names.contains(&&**name));
        Some(texts.map(Option::unwrap_or_default))
    }

    /// Removes and returns a list of texts, if it occurs once, is not empty and contains only texts.
    pub(crate) fn take_list(&mut self, name: &str) -> Option<Vec<String>> {
        let items = JsonItems::of(self.unique(name)?)?.0;
        let texts: Option<Vec<String>> =
            items.iter().map(|raw| serde_json::from_str(raw.get()).ok()).collect();
        let texts = texts.filter(|texts| !texts.is_empty())?;
        self.take(name);
        Some(texts)
    }

    /// Removes and returns a field, if it occurs once.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let raw = self.unique(name)?;
        self.0.retain(|(its, _)| its != name);
        Some(raw)
    }

    /// The value of a field that occurs once.
    fn unique(&self, name: &str) -> Option<&'a RawValue> {
        let mut named = self.0.iter().filter(|(its, _)| its == name);
        let (_, raw) = named.next()?;
        named.next().is_none().then_some(*raw)
    }

    /// The fields that were not taken.
    pub(crate) fn into_rest(self) -> Vec<RequestField> {
        self.0.into_iter().map(|(name, raw)| field(&name, raw)).collect()
    }
}

/// The fields of an input. A value that is not an object, or has too many fields, becomes one field of this name.
pub(crate) fn fields(name: &str, raw: &RawValue) -> Vec<RequestField> {
    match JsonFields::of(raw) {
        Some(fields) => fields.into_rest(),
        None => vec![field(name, raw)],
    }
}

pub(crate) fn field(name: &str, raw: &RawValue) -> RequestField {
    let text = || serde_json::from_str::<String>(raw.get()).ok();
    let value = match raw.get().starts_with('"').then(text).flatten() {
        Some(text) => FieldValue::Text(text),
        None => FieldValue::Json(raw.get().to_owned()),
    };
    RequestField { name: name.to_owned(), value }
}

/// The removed and added lines between two texts. Common lines at both ends are omitted, except three.
///
/// It takes one pass and stores no list of lines. A minimal diff could take hours for a hostile request.
pub(crate) fn diff(old: &str, new: &str) -> String {
    let same = common_prefix_bytes(old, new);
    let tail = common_suffix_bytes(&old[same..], &new[same..]);
    let (before, after) = (&old[same..old.len() - tail], &new[same..new.len() - tail]);
    let mut diff = String::with_capacity(before.len() + after.len() + 256);
    let mut add = |sign: char, text: &str| {
        for line in text.split_inclusive('\n') {
            diff.push(sign);
            diff.push_str(line);
            if !line.ends_with('\n') {
                diff.push_str("\n\\ no newline at the end\n");
            }
        }
    };
    add(' ', last_lines(&old[..same]));
    add('-', before);
    add('+', after);
    add(' ', first_lines(&old[old.len() - tail..]));
    if diff.ends_with('\n') {
        diff.pop();
    }
    diff
}

/// Number of unchanged lines on each side of a change.
const CONTEXT_LINES: usize = 3;

/// Length of the common whole lines at the start of two texts, in bytes.
fn common_prefix_bytes(old: &str, new: &str) -> usize {
    if old == new {
        return old.len();
    }
    let same = old.bytes().zip(new.bytes()).take_while(|(one, other)| one == other).count();
    old.as_bytes()[..same].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1)
}

/// Length of the common whole lines at the end of two texts, in bytes.
fn common_suffix_bytes(old: &str, new: &str) -> usize {
    let same = old.bytes().rev().zip(new.bytes().rev()).take_while(|(one, other)| one == other).count();
    let begins_a_line = |text: &str| match text.len() - same {
        0 => true,
        at => text.as_bytes()[at - 1] == b'\n',
    };
    if begins_a_line(old) && begins_a_line(new) {
        return same;
    }
    let tail = &old.as_bytes()[old.len() - same..];
    tail.iter().position(|byte| *byte == b'\n').map_or(0, |newline| same - newline - 1)
}

fn first_lines(text: &str) -> &str {
    let mut newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    newlines.nth(CONTEXT_LINES - 1).map_or(text, |(at, _)| &text[..=at])
}

fn last_lines(text: &str) -> &str {
    let mut newlines = text.bytes().enumerate().rev().filter(|(_, byte)| *byte == b'\n');
    newlines.nth(CONTEXT_LINES).map_or(text, |(at, _)| &text[at + 1..])
}

/// The items of a JSON list.
#[derive(Debug, Default)]
pub(crate) struct JsonItems<'a>(pub(crate) Vec<&'a RawValue>);

impl<'a> JsonItems<'a> {
    /// `None` if the value is not a list or has too many items.
    pub(crate) fn of(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonItems<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ItemsVisitor)
    }
}

struct ItemsVisitor;

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = JsonItems<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of at most {MAX_FIELDS} parts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
        let mut items = vec![];
        while let Some(raw) = parts.next_element()? {
            if items.len() == MAX_FIELDS {
                return Err(serde::de::Error::custom("too many parts"));
            }
            items.push(raw);
        }
        Ok(JsonItems(items))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = JsonFields<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an object with at most {MAX_FIELDS} fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields = vec![];
        while let Some((BorrowedName(name), raw)) = entries.next_entry()? {
            if fields.len() == MAX_FIELDS {
                return Err(serde::de::Error::custom("too many fields"));
            }
            fields.push((name, raw));
        }
        Ok(JsonFields(fields))
    }
}

/// A name that is borrowed unless it has escapes.
#[derive(Deserialize)]
struct BorrowedName<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).expect("the test's JSON is JSON")
    }

    #[test]
    fn nothing_of_an_input_is_lost() {
        let input = raw(r#"{"a":"x\ny","b":[1, {"c":2}],"a":null,"":"\u0061"}"#);
        let text = |name: &str, text: &str| RequestField {
            name: name.to_owned(),
            value: FieldValue::Text(text.to_owned()),
        };
        let json = |name: &str, text: &str| RequestField {
            name: name.to_owned(),
            value: FieldValue::Json(text.to_owned()),
        };
        assert_eq!(
            fields("input", &input),
            [text("a", "x\ny"), json("b", r#"[1, {"c":2}]"#), json("a", "null"), text("", "a")]
        );
        assert_eq!(fields("input", &raw("[1]")), [json("input", "[1]")]);
        let many: Vec<String> = (0..=MAX_FIELDS).map(|number| format!("\"{number}\":{number}")).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(fields("input", &raw(&many)), [json("input", &many)]);
    }

    #[test]
    fn a_field_that_is_there_twice_is_not_taken_for_the_one() {
        let input = raw(r#"{"command":"ls","command":"rm -rf /"}"#);
        let mut fields = JsonFields::of(&input).unwrap();
        assert_eq!(fields.take_texts(["command"]), None);
        assert_eq!(fields.into_rest().len(), 2);
    }

    #[test]
    fn a_diff_has_every_line_that_goes_or_comes() {
        let cases = [
            ("", "a\nb\n", "+a\n+b"),
            ("a\n", "", "-a"),
            ("a\nb\nc\n", "a\nX\nc\n", " a\n-b\n+X\n c"),
            (
                "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
                "1\n2\n3\n4\n5!\n6\n7\n8\n9\n",
                " 2\n 3\n 4\n-5\n+5!\n 6\n 7\n 8",
            ),
            ("a", "a\n", "-a\n\\ no newline at the end\n+a"),
            ("x\nx\n", "x\n", " x\n-x"),
            ("same\n", "same\n", " same"),
        ];
        for (old, new, expected) in cases {
            assert_eq!(diff(old, new), expected, "{old:?} -> {new:?}");
        }
    }
}
