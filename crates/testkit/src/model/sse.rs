//! Server-sent events as text.

use serde_json::Value;

/// Formats an event without a name.
pub(super) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// Formats an event whose name is the `type` of its data.
pub(super) fn named_event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or("message"))
}

/// Parses the data of each event in a stream.
#[cfg(test)]
pub(super) fn parse_data(stream: &str) -> Vec<Value> {
    let data = stream.split("\n\n").filter(|event| !event.is_empty()).map(|event| {
        let line = event.lines().find_map(|line| line.strip_prefix("data: "));
        line.expect("an event without data")
    });
    data.map(super::json::parse_or_string).collect()
}
