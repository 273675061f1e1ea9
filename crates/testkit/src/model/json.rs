//! Reading JSON whose shape nobody promised: what is missing or of another kind is nothing, never an error.

use serde_json::Value;

/// The text at `key`, or an empty one.
pub(super) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// The elements at `key`, or none.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// A text that is given either plainly or as a list of pieces with a `text` each.
pub(super) fn pieces(value: &Value) -> Vec<String> {
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

/// The JSON that a string holds, or the string when it holds something else.
pub(super) fn unfolded(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// A JSON value as the string in which some wires carry it.
pub(super) fn folded(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    }
}
