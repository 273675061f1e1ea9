//! YAML as a tree in which each value has its location. The meaning of the values is not known here.

use std::fmt;
use std::path::Path;

use abide_os::config_problem::{ConfigOrigin, ConfigProblem, FilePosition};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// The text and tree of a file.
#[derive(Debug)]
pub(super) struct YamlDocument<'a> {
    path: &'a Path,
    text: &'a str,
    pub(super) root: YamlNode,
}

/// A value and its location.
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) value: YamlValue,
    pub(super) location: Location,
}

#[derive(Debug)]
pub(super) enum YamlValue {
    Null,
    Bool(bool),
    Integer(i128),
    Number(f64),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(Spanned<String>, YamlNode)>),
}

impl<'a> YamlDocument<'a> {
    /// Parses the text of a file.
    pub(super) fn parse(path: &'a Path, text: &'a str) -> Result<Self, ConfigProblem> {
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        match serde_saphyr::from_str_with_options::<YamlNode>(text, options) {
            Ok(root) => Ok(Self { path, text, root }),
            Err(error) => {
                let (reason, advice) = explain_parse_error(&error);
                let origin = match error.location() {
                    Some(at) => ConfigOrigin::file_at(path, position(text, at)),
                    None => ConfigOrigin::file(path),
                };
                Err(ConfigProblem::new(origin, reason).with_advice(advice))
            }
        }
    }

    /// A problem at a location of this file.
    pub(super) fn problem(&self, at: Location, reason: impl Into<String>) -> ConfigProblem {
        ConfigProblem::new(ConfigOrigin::file_at(self.path, position(self.text, at)), reason)
    }

    /// The original spelling of the value at a location.
    pub(super) fn source_text(&self, at: Location) -> &'a str {
        let whole = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
        let (start, length) = (whole(at.span().byte_offset()), whole(at.span().byte_len()));
        let range = start.zip(length).and_then(|(start, length)| self.text.get(start..start + length));
        range.unwrap_or_default()
    }
}

impl YamlNode {
    /// The value of a key; `None` if it is absent or null, or if this is not a map.
    pub(super) fn get(&self, key: &str) -> Option<&YamlNode> {
        let node = self.entries().iter().find(|(name, _)| name.value == key).map(|(_, node)| node);
        node.filter(|node| !matches!(node.value, YamlValue::Null))
    }

    /// The location of a key.
    pub(super) fn key_location(&self, key: &str) -> Option<Location> {
        self.entries().iter().find(|(name, _)| name.value == key).map(|(name, _)| name.referenced)
    }

    pub(super) fn entries(&self) -> &[(Spanned<String>, YamlNode)] {
        match &self.value {
            YamlValue::Map(entries) => entries,
            YamlValue::Null
            | YamlValue::Bool(_)
            | YamlValue::Integer(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::List(_) => &[],
        }
    }

    pub(super) fn items(&self) -> &[YamlNode] {
        match &self.value {
            YamlValue::List(items) => items,
            YamlValue::Null
            | YamlValue::Bool(_)
            | YamlValue::Integer(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::Map(_) => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let YamlValue::Text(text) = &self.value { Some(text) } else { None }
    }

    pub(super) fn is_true(&self) -> bool {
        matches!(self.value, YamlValue::Bool(true))
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined: _ } = Spanned::deserialize(deserializer)?;
        Ok(Self { value, location: referenced })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlVisitor)
    }
}

struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(is))
    }

    fn visit_i64<E>(self, number: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(YamlValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(YamlValue::Map(entries))
    }
}

/// The parser's message without hints for programmers, and a remedy for common mistakes.
fn explain_parse_error(error: &serde_saphyr::Error) -> (String, Option<String>) {
    let message = error.without_snippet().to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    if let Some((duplicate, _)) = message.split_once(", set DuplicateKeyPolicy") {
        let key = duplicate.rsplit(": ").next().unwrap_or(duplicate);
        return (format!("the key {key} occurs twice"), Some("keep one of them".to_owned()));
    }
    let advice = [
        ("multiple YAML documents", "a definition is one document: remove the line ---"),
        ("tabs", "indent with blanks"),
        ("mapping values are not allowed", "put a text with a colon into quotes"),
        ("did not find expected '-'", "is it indented like its neighbours?"),
        ("illegal placement of ':'", "is a bracket or quote before it not closed?"),
        ("quoted scalar", "is the closing quote missing?"),
        ("unclosed quote", "is the closing quote missing?"),
        ("non-finite float", "put it into quotes if it is a text"),
        ("expected string scalar", "a key is one word"),
        ("null into string", "a key needs a name"),
    ];
    let remedy = advice.iter().find(|(words, _)| message.contains(words));
    let message = message.split("; use ").next().unwrap_or(message);
    (format!("invalid YAML: {message}"), remedy.map(|(_, advice)| (*advice).to_owned()))
}

fn position(text: &str, at: Location) -> FilePosition {
    let number = |number: u64| usize::try_from(number).unwrap_or(1).max(1);
    let marked_chars = usize::try_from(at.span().len()).unwrap_or(1);
    FilePosition::with_excerpt(text, number(at.line()), number(at.column()), marked_chars)
}
