//! Reads JSON of unknown structure: missing members and unexpected types give empty values instead of errors.

use serde_json::Value;

/// Returns the string at `key`, or an empty one.
pub(super) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Returns the elements at `key`, or none.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the texts of a value that is either a string or a list of objects with a `text` member.
pub(super) fn texts(value: &Value) -> Vec<String> {
    if let Some(text) = value.as_str() {
        return vec![text.to_owned()];
    }
    let parts = value.as_array().map_or(&[][..], Vec::as_slice);
    parts
        .iter()
        .filter_map(|part| part.as_str().or_else(|| part["text"].as_str()))
        .map(str::to_owned)
        .collect()
}

/// Returns the JSON in a string, or the string itself if it is not JSON.
pub(super) fn parse_or_string(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// Returns a JSON value as the string in which some protocols carry it.
pub(super) fn to_json_string(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    }
}
