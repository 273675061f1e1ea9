//! YAML as a tree in which everything knows its place. What it means is decided elsewhere.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::problem::{Place, Problem};

/// A file's text and tree.
#[derive(Debug)]
pub(super) struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    pub(super) root: Node,
}

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) value: Yaml,
    pub(super) at: Location,
}

#[derive(Debug)]
pub(super) enum Yaml {
    Null,
    Bool(bool),
    Integer(i128),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Spanned<String>, Node)>),
}

impl<'a> Document<'a> {
    /// Reads the text of a file.
    pub(super) fn parse(path: &'a Path, text: &'a str) -> Result<Self, Problem> {
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        match serde_saphyr::from_str_with_options::<Node>(text, options) {
            Ok(root) => Ok(Self { path, text, root }),
            Err(error) => {
                let (message, suggestion) = told(&error);
                let problem = Problem::new(path, message).suggesting(suggestion);
                Err(Problem { place: error.location().map(|at| place(text, at)), ..problem })
            }
        }
    }

    /// Something that is wrong at a place of this file.
    pub(super) fn problem(&self, at: Location, message: impl Into<String>) -> Problem {
        Problem { place: Some(place(self.text, at)), ..Problem::new(self.path, message) }
    }

    /// What stands there, as it was written.
    pub(super) fn written(&self, at: Location) -> &'a str {
        let whole = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
        let (start, length) = (whole(at.span().byte_offset()), whole(at.span().byte_len()));
        let range = start.zip(length).and_then(|(start, length)| self.text.get(start..start + length));
        range.unwrap_or_default()
    }
}

impl Node {
    /// The value of a key, if this is a map that has it and it is not left empty.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let found = self.entries().iter().find(|(name, _)| name.value == key).map(|(_, node)| node);
        found.filter(|node| !matches!(node.value, Yaml::Null))
    }

    /// The place of a key itself.
    pub(super) fn key(&self, key: &str) -> Option<Location> {
        self.entries().iter().find(|(name, _)| name.value == key).map(|(name, _)| name.referenced)
    }

    pub(super) fn entries(&self) -> &[(Spanned<String>, Node)] {
        match &self.value {
            Yaml::Map(entries) => entries,
            Yaml::Null
            | Yaml::Bool(_)
            | Yaml::Integer(_)
            | Yaml::Number(_)
            | Yaml::Text(_)
            | Yaml::List(_) => &[],
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        match &self.value {
            Yaml::List(items) => items,
            Yaml::Null
            | Yaml::Bool(_)
            | Yaml::Integer(_)
            | Yaml::Number(_)
            | Yaml::Text(_)
            | Yaml::Map(_) => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Yaml::Text(text) = &self.value { Some(text) } else { None }
    }

    pub(super) fn is_true(&self) -> bool {
        matches!(self.value, Yaml::Bool(true))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined: _ } = Spanned::deserialize(deserializer)?;
        Ok(Self { value, at: referenced })
    }
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Anything)
    }
}

struct Anything;

impl<'de> Visitor<'de> for Anything {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_none<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Yaml, E> {
        Ok(Yaml::Bool(is))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Yaml, E> {
        Ok(Yaml::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Yaml, E> {
        Ok(Yaml::Integer(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Yaml, E> {
        Ok(Yaml::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Yaml, E> {
        Ok(Yaml::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Yaml, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Yaml::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Yaml, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Yaml::Map(entries))
    }
}

/// The reader's words without those that are for programmers, and what to do in the commonest cases.
fn told(error: &serde_saphyr::Error) -> (String, Option<String>) {
    let message = error.without_snippet().to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    if let Some((duplicate, _)) = message.split_once(", set DuplicateKeyPolicy") {
        let key = duplicate.rsplit(": ").next().unwrap_or(duplicate);
        return (format!("the key {key} is there twice"), Some("keep one of them".to_owned()));
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
    let found = advice.iter().find(|(words, _)| message.contains(words));
    let message = message.split("; use ").next().unwrap_or(message);
    (format!("no valid YAML: {message}"), found.map(|(_, advice)| (*advice).to_owned()))
}

fn place(text: &str, at: Location) -> Place {
    let number = |number: u64| usize::try_from(number).unwrap_or(1).max(1);
    let (line, column) = (number(at.line()), number(at.column()));
    let text = text.lines().nth(line - 1).unwrap_or_default().to_owned();
    let rest = text.chars().count().saturating_sub(column - 1).max(1);
    let length = usize::try_from(at.span().len()).unwrap_or(1).clamp(1, rest);
    Place { line, column, length, text }
}
