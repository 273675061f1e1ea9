//! Truncates messages: keeps their beginning and end, and adds the path of the complete text.
//!
//! Messages are truncated in their JSON form. Parsing them for each cut is cheaper than storing them twice, because
//! cuts are rare.

use serde_json::{Value, json};

/// The size to which the largest of these must be cut so that their sum is at most `room`.
pub(super) fn largest_allowed_size(mut sizes: Vec<usize>, room: usize) -> usize {
    sizes.sort_unstable();
    let (mut remaining_room, mut remaining_sizes) = (room, sizes.len());
    for size in sizes {
        if size > remaining_room / remaining_sizes {
            return remaining_room / remaining_sizes;
        }
        remaining_room -= size;
        remaining_sizes -= 1;
    }
    usize::MAX
}

/// Cuts the text of a message so that the message has about `max_bytes` bytes; a shorter one is unchanged. `size` is
/// the length of the text before all cuts, if known.
pub(super) fn cut_content(
    message: &str,
    max_bytes: usize,
    full_text_path: &str,
    size: Option<usize>,
) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(message) else { return message.to_owned() };
    let Some(text) = value["content"].as_str().map(str::to_owned) else { return message.to_owned() };
    let size = size.unwrap_or(text.len());
    let mut room = max_bytes;
    // The cut text may need more escapes in JSON than the average, so a second attempt may be needed.
    loop {
        value["content"] = Value::String(cut(&text, room, full_text_path, size));
        let cut = value.to_string();
        if cut.len() <= max_bytes || room == 0 {
            return if cut.len() < message.len() { cut } else { message.to_owned() };
        }
        room = room.saturating_sub((cut.len() - max_bytes).max(room / 8)).min(room - 1);
    }
}

/// The beginning and end of a text in about `room` bytes, with a note about the rest.
fn cut(text: &str, max_bytes: usize, full_text_path: &str, size: usize) -> String {
    let half = max_bytes / 2;
    let head = &text[..text.floor_char_boundary(half)];
    let tail = &text[text.ceil_char_boundary(text.len().saturating_sub(half).max(head.len()))..];
    format!("{head}\n[left out here to make room; all {size} bytes are in {full_text_path}]\n{tail}")
}

/// Omits the longest arguments of the calls and, if that is not enough, cuts the text of the message.
pub(super) fn omit_arguments(message: &str, max_bytes: usize, full_text_path: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(message) else { return message.to_owned() };
    let Some(calls) = value["tool_calls"].as_array_mut() else { return message.to_owned() };
    let each = max_bytes / calls.len().max(1);
    for call in calls {
        let Some(written) = call["function"]["arguments"].as_str() else { continue };
        let bytes = written.len();
        if bytes > each.max(MIN_OMITTED_ARGUMENT_BYTES) {
            let note = format!(
                "{bytes} bytes of arguments, left out here to make room; they are in {full_text_path}"
            );
            call["function"]["arguments"] = Value::String(json!({ "left_out": note }).to_string());
        }
    }
    let shorter = value.to_string();
    if shorter.len() <= max_bytes { shorter } else { cut_content(&shorter, max_bytes, full_text_path, None) }
}

/// Arguments that are shorter than the note are not replaced by it. In bytes.
const MIN_OMITTED_ARGUMENT_BYTES: usize = 200;

pub(super) fn parse_calls(message: &str) -> Vec<Value> {
    let value = serde_json::from_str::<Value>(message).unwrap_or_default();
    value["tool_calls"].as_array().cloned().unwrap_or_default()
}

/// Replaces the calls of a message.
pub(super) fn with_calls(message: &str, calls: Vec<Value>) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(message) else { return message.to_owned() };
    value["tool_calls"] = Value::Array(calls);
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_cut_most() {
        assert_eq!(largest_allowed_size(vec![10, 20, 30], 60), usize::MAX);
        assert_eq!(largest_allowed_size(vec![10, 100, 100], 110), 50);
        assert_eq!(largest_allowed_size(vec![100; 4], 0), 0);
        assert_eq!(largest_allowed_size(vec![], 0), usize::MAX);
    }

    #[test]
    fn a_cut_text_has_its_beginning_end_and_path() {
        for text in ["abc".repeat(1000), "\u{1}é\u{1F600}\"".repeat(500)] {
            let message = json!({ "role": "tool", "tool_call_id": "c", "content": text }).to_string();
            for most in [0, 300, 1000, 2000] {
                let cut = cut_content(&message, most, ".abide/executions/act_1", Some(9000));
                assert!(cut.len() <= most.max(300), "{} bytes for {most}", cut.len());
                let value: Value = serde_json::from_str(&cut).unwrap();
                let shown = value["content"].as_str().unwrap();
                assert!(shown.contains("all 9000 bytes are in .abide/executions/act_1"), "{shown}");
                let (head, tail) = shown.split_once("\n[left out").unwrap();
                let tail = tail.split_once("]\n").unwrap().1;
                assert!(
                    text.starts_with(head) && text.ends_with(tail) && head.len() + tail.len() < text.len()
                );
            }
        }
        let short = json!({ "role": "tool", "content": "short" }).to_string();
        assert_eq!(cut_content(&short, 10, "x", None), short);
    }
}
