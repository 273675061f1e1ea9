//! Parses the beginning of a JSON line that exceeds the size limit.

use std::borrow::Cow;

use serde_json::{Deserializer, value::RawValue};

/// The members of the outermost object that are complete in the head of a line, in order.
pub(crate) struct JsonMembers<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> JsonMembers<'a> {
    /// Parses the head. `None` if the line is not an object, and so not a protocol message.
    pub(crate) fn of(head: &'a [u8]) -> Option<Self> {
        let mut rest = head.trim_ascii_start().strip_prefix(b"{")?;
        let mut members = Vec::new();
        while let Some((key, value, behind)) = member(rest) {
            members.push((key, value));
            match behind.strip_prefix(b",") {
                Some(behind) => rest = behind,
                None => break,
            }
        }
        Some(Self(members))
    }

    /// The raw value of a member.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }

    /// The value of a member, if it is a text.
    pub(crate) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        serde_json::from_str(self.raw(name)?.get()).ok().map(Cow::Owned)
    }
}

/// Parses the first member of the rest of an object, and returns the remaining bytes. `None` if it is incomplete; a
/// value is complete if another byte follows it.
fn member(rest: &[u8]) -> Option<(Cow<'_, str>, &RawValue, &[u8])> {
    let (key, behind) = value(rest)?;
    let key = serde_json::from_str::<String>(key.get()).ok()?;
    let (value, behind) = value(behind.strip_prefix(b":")?)?;
    Some((Cow::Owned(key), value, behind))
}

fn value(bytes: &[u8]) -> Option<(&RawValue, &[u8])> {
    let mut values = Deserializer::from_slice(bytes).into_iter::<&RawValue>();
    let value = values.next()?.ok()?;
    let behind = bytes.get(values.byte_offset()..)?.trim_ascii_start();
    (!behind.is_empty()).then_some((value, behind))
}

#[cfg(test)]
mod tests {
    use super::JsonMembers;

    #[test]
    fn whole_members_of_a_line_that_breaks_off_are_read() {
        let head = br#" { "a" : "x\"y", "b":{"type":"inner","c":[1,2]},"n":17,"long":"never end"#;
        let members = JsonMembers::of(head).unwrap();
        assert_eq!(members.text("a").as_deref(), Some("x\"y"));
        assert_eq!(members.raw("n").unwrap().get(), "17");
        assert!(members.raw("long").is_none() && members.raw("type").is_none() && members.raw("c").is_none());
    }

    #[test]
    fn a_number_that_may_continue_is_not_whole() {
        let members = JsonMembers::of(br#"{"method":"m","id":12"#).unwrap();
        assert_eq!(members.text("method").as_deref(), Some("m"));
        assert!(members.raw("id").is_none());
    }

    #[test]
    fn other_values_have_no_members() {
        for head in [&b"plain text"[..], b"[1,2", b"", b"\"{"] {
            assert!(JsonMembers::of(head).is_none());
        }
        assert!(JsonMembers::of(b"{").is_some_and(|members| members.raw("a").is_none()));
    }
}
