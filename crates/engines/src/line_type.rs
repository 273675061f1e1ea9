//! Finds the type of a JSON line without parsing all of it.
//!
//! Programs that print JSON put `type` first, so most lines are parsed only once, as their own type. The rest of the
//! line is not checked; callers that do not parse it use [`check_json`].

use std::borrow::Cow;

use serde::{Deserialize, de::IgnoredAny};

/// The `type` member at any position.
#[derive(Debug, Deserialize)]
struct TypeField<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// The type of a line.
pub(crate) fn of(line: &[u8]) -> Option<Cow<'_, str>> {
    match leading(line) {
        Some(kind) => Some(Cow::Borrowed(kind)),
        None => Some(serde_json::from_slice::<TypeField<'_>>(line).ok()?.kind),
    }
}

/// The type of a line that begins with it.
pub(crate) fn leading(line: &[u8]) -> Option<&str> {
    let rest = line.strip_prefix(br#"{"type":""#)?;
    let kind = rest.get(..memchr::memchr(b'"', rest)?)?;
    std::str::from_utf8(kind).ok().filter(|kind| !kind.contains('\\'))
}

/// Whether the complete line is valid JSON.
pub(crate) fn check_json(line: &[u8]) -> Option<()> {
    serde_json::from_slice::<IgnoredAny>(line).ok().map(drop)
}

#[cfg(test)]
mod tests {
    use super::{check_json, of};

    #[test]
    fn the_type_is_found_wherever_it_stands() {
        for line in [r#"{"type":"a.b","x":1}"#, r#"{"x":1,"type":"a.b"}"#, r#"{"type":"a\u002eb"}"#] {
            assert_eq!(of(line.as_bytes()).as_deref(), Some("a.b"), "{line}");
        }
        assert_eq!(of(br#"{"x":{"type":"a"}}"#), None);
    }

    #[test]
    fn a_line_that_breaks_off_is_not_whole() {
        assert_eq!(check_json(br#"{"type":"a"}"#), Some(()));
        assert_eq!(check_json(br#"{"type":"a","#), None);
    }
}
