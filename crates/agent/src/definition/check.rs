//! Checks a YAML tree against the schema: unknown keys, missing keys and wrong types, each with its location.
//!
//! This is not a general JSON Schema validator. It supports the keywords of our schema and has its own messages.

use abide_os::{
    config_problem::{ConfigProblem, ConfigSuggestion},
    suggestion::nearest,
};
use serde_json::{Map, Value, json};
use serde_saphyr::Location;

use super::yaml::{YamlDocument, YamlNode, YamlValue};

/// Converts a tree to JSON that matches the schema, and lists the problems.
pub(super) fn check(document: &YamlDocument<'_>, schema: &Value) -> (Value, Vec<ConfigProblem>) {
    let mut checking = SchemaCheck { document, problems: Vec::new() };
    let value = match &document.root.value {
        YamlValue::Null => json!({}),
        YamlValue::Bool(_)
        | YamlValue::Integer(_)
        | YamlValue::Number(_)
        | YamlValue::Text(_)
        | YamlValue::List(_)
        | YamlValue::Map(_) => checking.check_value("", &document.root, schema),
    };
    (value, checking.problems)
}

struct SchemaCheck<'a> {
    document: &'a YamlDocument<'a>,
    problems: Vec<ConfigProblem>,
}

impl SchemaCheck<'_> {
    fn check_value(&mut self, name: &str, node: &YamlNode, schema: &Value) -> Value {
        let matching_schema = alternatives(schema).into_iter().find(|kind| matches_type(name, node, kind));
        let Some(schema) = matching_schema else {
            self.report_type_mismatch(name, node, schema);
            return Value::Null;
        };
        match &node.value {
            YamlValue::Null => Value::Null,
            YamlValue::Map(_) => self.check_map(name, node, schema),
            YamlValue::List(items) => {
                if items.len() < min_bound(schema, "minItems") {
                    self.report(node.location, name, "expected at least one", None);
                }
                let each = items.iter().enumerate();
                let kind = &schema["items"];
                each.map(|(at, item)| self.check_value(&format!("{name}[{at}]"), item, kind)).collect()
            }
            // A word of a command may look like a number. Its original spelling is used.
            YamlValue::Bool(_) | YamlValue::Integer(_) | YamlValue::Number(_) if is_text(schema) => {
                Value::from(self.document.source_text(node.location))
            }
            YamlValue::Bool(is) => Value::from(*is),
            YamlValue::Integer(number) => {
                self.check_range(name, node, schema, to_f64(*number));
                u64::try_from(*number).map_or_else(|_| json!(to_f64(*number)), Value::from)
            }
            YamlValue::Number(number) => {
                self.check_range(name, node, schema, *number);
                json!(number)
            }
            YamlValue::Text(text) => {
                if text.trim().is_empty() && min_bound(schema, "minLength") > 0 {
                    self.report(node.location, name, "must not be empty", None);
                }
                let words = allowed_values(schema);
                if !words.is_empty() && !words.contains(&text.as_str()) {
                    let synonym = VALUE_SYNONYMS.iter().find(|(other, _)| text.eq_ignore_ascii_case(other));
                    let synonym = synonym.map(|(_, word)| *word).filter(|word| words.contains(word));
                    let exact = words.iter().copied().find(|word| text.eq_ignore_ascii_case(word));
                    let similar =
                        exact.or(synonym).or_else(|| nearest(&text.to_lowercase(), words.iter().copied()));
                    let reason = format!("expected {}, not {text:?}", join_with_or(&words));
                    self.report(node.location, name, reason, similar.map(similar_name));
                }
                Value::from(text.as_str())
            }
        }
    }

    fn check_map(&mut self, name: &str, node: &YamlNode, schema: &Value) -> Value {
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let mut map = Map::new();
        for (key, inner) in node.entries() {
            let path = if name.is_empty() { key.value.clone() } else { format!("{name}.{}", key.value) };
            let kind = match properties.get(&key.value) {
                Some(kind) => kind,
                None if schema["additionalProperties"].is_object() => &schema["additionalProperties"],
                None => {
                    self.report_unknown_key(key.referenced, name, &key.value, properties);
                    continue;
                }
            };
            // Only known keys can be optional.
            let is_required = !properties.contains_key(&key.value)
                || required(schema).any(|is_required| is_required == key.value);
            match inner.value {
                // An optional key without a value counts as absent.
                YamlValue::Null if !is_required => {}
                YamlValue::Null => {
                    let advice = suggest_example(kind).unwrap_or("write one after the colon");
                    self.report(key.referenced, "", format!("{path} has no value"), Some(to_advice(advice)));
                }
                YamlValue::Bool(_)
                | YamlValue::Integer(_)
                | YamlValue::Number(_)
                | YamlValue::Text(_)
                | YamlValue::List(_)
                | YamlValue::Map(_) => {
                    let value = self.check_value(&path, inner, kind);
                    map.insert(key.value.clone(), value);
                }
            }
        }
        for is_required in required(schema) {
            if node.key_location(is_required).is_none() {
                self.report(node.location, name, format!("{is_required} is missing"), None);
            }
        }
        Value::Object(map)
    }

    fn report_unknown_key(&mut self, at: Location, name: &str, key: &str, properties: &Map<String, Value>) {
        let similar = nearest(&key.to_lowercase(), properties.keys().map(String::as_str));
        let synonym =
            KEY_SYNONYMS.iter().find(|(wrong, right)| *wrong == key && properties.contains_key(*right));
        let synonym = synonym.map(|(_, right)| *right);
        let all: Vec<&str> = properties.keys().map(String::as_str).collect();
        let suggestion = synonym
            .or(similar)
            .map_or_else(|| ConfigSuggestion::Advice(format!("there are {}", all.join(", "))), similar_name);
        let location = if name.is_empty() { String::new() } else { format!(" in {name}") };
        self.report(at, "", format!("unknown key {key}{location}"), Some(suggestion));
    }

    fn report_type_mismatch(&mut self, name: &str, node: &YamlNode, schema: &Value) {
        let kinds: Vec<&str> =
            alternatives(schema).into_iter().map(kind_name).filter(|kind| !kind.is_empty()).collect();
        let expected = kinds.join(" or ");
        let actual = match &node.value {
            YamlValue::Null => "nothing".to_owned(),
            YamlValue::Bool(is) => is.to_string(),
            YamlValue::Integer(number) => number.to_string(),
            YamlValue::Number(number) => number.to_string(),
            YamlValue::Text(_) => "a text".to_owned(),
            YamlValue::List(_) => "a list".to_owned(),
            YamlValue::Map(_) => "a map".to_owned(),
        };
        let written = self.document.source_text(node.location);
        let suggestion = match node.value {
            YamlValue::Bool(_) | YamlValue::Integer(_) | YamlValue::Number(_) if !written.contains('\n') => {
                suggest_quotes(written, schema)
            }
            YamlValue::Text(ref text) => suggest_for_text(text, schema),
            YamlValue::Null
            | YamlValue::Bool(_)
            | YamlValue::Integer(_)
            | YamlValue::Number(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => None,
        };
        let advice = suggestion.or_else(|| suggest_example(schema).map(str::to_owned));
        let name = if name.is_empty() { "the file" } else { name };
        let reason = format!("expected {expected}, not {actual}");
        self.report(node.location, name, reason, advice.map(ConfigSuggestion::Advice));
    }

    fn check_range(&mut self, name: &str, node: &YamlNode, schema: &Value, number: f64) {
        let (minimum, maximum) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
        let reason = match (minimum, maximum) {
            (Some(minimum), _) if number < minimum => format!("expected at least {minimum}"),
            (_, Some(maximum)) if number > maximum => format!("expected at most {maximum}"),
            (_, _) => return,
        };
        self.report(node.location, name, reason, None);
    }

    /// Adds a problem. An empty key stands for none.
    fn report(
        &mut self,
        at: Location,
        key: &str,
        reason: impl Into<String>,
        suggestion: Option<ConfigSuggestion>,
    ) {
        let problem = self.document.problem(at, reason).with_key(key);
        self.problems.push(problem.with_suggestion(suggestion));
    }
}

/// Names that other programs use for the same settings.
const KEY_SYNONYMS: &[(&str, &str)] = &[
    ("api_key", "api_key_env"),
    ("key", "api_key_env"),
    ("url", "base_url"),
    ("api_base", "base_url"),
    ("endpoint", "base_url"),
    ("model", "name"),
    ("id", "name"),
    ("max_tokens", "max_output_tokens"),
    ("context_window", "context_tokens"),
    ("timeout", "timeout_sec"),
    ("timeout_ms", "timeout_sec"),
    ("retries", "max_retries"),
    ("args", "command"),
    ("cmd", "command"),
    ("params", "parameters"),
    ("arguments", "parameters"),
    ("environment", "env"),
    ("working_dir", "cwd"),
    ("workdir", "cwd"),
    ("session", "stateful"),
    ("kind", "type"),
    ("inject", "inject_as"),
    ("option", "option_name"),
    ("flag", "option_name"),
    ("optional", "required"),
];

/// Names that other programs use for the same types.
const VALUE_SYNONYMS: &[(&str, &str)] = &[
    ("str", "string"),
    ("text", "string"),
    ("int", "integer"),
    ("float", "number"),
    ("bool", "boolean"),
    ("arg", "argument"),
    ("positional", "argument"),
    ("flag", "option"),
    ("input", "stdin"),
];

fn similar_name(name: &str) -> ConfigSuggestion {
    ConfigSuggestion::Name(name.to_owned())
}

fn to_advice(text: &str) -> ConfigSuggestion {
    ConfigSuggestion::Advice(text.to_owned())
}

/// The alternatives of a schema; the schema itself if it has none.
fn alternatives(schema: &Value) -> Vec<&Value> {
    match schema["anyOf"].as_array() {
        Some(kinds) => kinds.iter().flat_map(alternatives).collect(),
        None => vec![schema],
    }
}

fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            if allowed_values(schema).is_empty() { vec![] } else { vec!["string"] }
        }
    }
}

fn is_text(schema: &Value) -> bool {
    let types = types(schema);
    types.contains(&"string") && !types.contains(&"integer") && !types.contains(&"number")
}

fn matches_type(name: &str, node: &YamlNode, schema: &Value) -> bool {
    let types = types(schema);
    let has = |kind| types.contains(&kind);
    let as_written = || is_text(schema) && accepts_source_text(name);
    match &node.value {
        YamlValue::Null => has("null"),
        YamlValue::Bool(_) => has("boolean") || as_written(),
        YamlValue::Integer(_) => has("integer") || has("number") || as_written(),
        YamlValue::Number(_) => has("number") || as_written(),
        YamlValue::Text(_) => has("string"),
        YamlValue::List(_) => has("array"),
        YamlValue::Map(_) => has("object"),
    }
}

/// Whether a number or boolean is accepted as text in its original spelling: as a word of a command (`[sleep, 5]`) or
/// the value of a variable (`PORT: 8080`). Elsewhere it is an error.
fn accepts_source_text(name: &str) -> bool {
    let is_word = name.rsplit_once('[').is_some_and(|(list, _)| list.ends_with(".command"));
    is_word || name.contains("].env.")
}

fn accepts_word_list(schema: &Value) -> bool {
    let alternatives = alternatives(schema);
    let has = |kind: &str| alternatives.iter().any(|schema| types(schema).contains(&kind));
    has("array") && has("string")
}

fn accepts_only_text(schema: &Value) -> bool {
    let types: Vec<&str> =
        alternatives(schema).into_iter().flat_map(types).filter(|kind| *kind != "null").collect();
    types == ["string"] && allowed_values(schema).is_empty()
}

/// A suggestion for a number or boolean that should be a text.
fn suggest_quotes(written: &str, schema: &Value) -> Option<String> {
    if accepts_word_list(schema) {
        return Some(format!("write [\"{written}\"], or \"{written}\" with shell: true"));
    }
    accepts_only_text(schema).then(|| format!("write it in quotes: \"{written}\""))
}

/// An example of a valid value.
fn suggest_example(schema: &Value) -> Option<&'static str> {
    let alternatives = alternatives(schema);
    let wants = |kind: &str| alternatives.iter().any(|schema| types(schema).contains(&kind));
    if accepts_word_list(schema) {
        Some("write a list of words, such as [\"ls\", \"-l\"]")
    } else if accepts_only_text(schema) {
        Some("write one text, in quotes if need be")
    } else if wants("array") {
        Some("write a list: one item a line with a - before it")
    } else if wants("object") && alternatives.len() == 1 {
        Some("write keys with their values, such as `name: value`")
    } else {
        None
    }
}

fn kind_name(schema: &Value) -> &'static str {
    match types(schema).into_iter().find(|kind| *kind != "null") {
        Some("object") => "a map",
        Some("array") => "a list",
        Some("string") => "a text",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        Some("boolean") => "true or false",
        Some(_) | None => "",
    }
}

/// A suggestion for a text of the wrong type.
fn suggest_for_text(text: &str, schema: &Value) -> Option<String> {
    let wants = |kind: &str| alternatives(schema).into_iter().any(|schema| types(schema).contains(&kind));
    let lower = text.to_lowercase();
    if wants("boolean") {
        return match lower.as_str() {
            "yes" | "on" | "y" | "true" => Some("write true".to_owned()),
            "no" | "off" | "n" | "false" => Some("write false".to_owned()),
            _ => None,
        };
    }
    if (wants("integer") || wants("number")) && text.trim().parse::<f64>().is_ok() {
        return Some("write it without quotes".to_owned());
    }
    if wants("array") {
        return Some("write a list: one item a line with a - before it, or [in, brackets]".to_owned());
    }
    None
}

fn allowed_values(schema: &Value) -> Vec<&str> {
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().filter_map(Value::as_str).collect();
    }
    let each = schema["oneOf"].as_array().map_or(&[][..], Vec::as_slice);
    each.iter().filter_map(|word| word["const"].as_str()).collect()
}

fn join_with_or(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some(_) | None => words.concat(),
    }
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn min_bound(schema: &Value, bound: &str) -> usize {
    schema[bound].as_u64().and_then(|least| usize::try_from(least).ok()).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "only compared with bounds that are far from the edge")]
fn to_f64(number: i128) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
