//! A message of a conversation, and its serialisation.
//!
//! The serialisation repairs invalid calls. A call whose arguments are not a JSON object, or whose name servers refuse,
//! would make each later request of the run fail. The request therefore contains a similar valid call. The journal
//! keeps the original.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::tool::RawArguments;

/// A message of a conversation with the model.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatMessage {
    System(String),
    User(String),
    Assistant { text: Option<String>, calls: Vec<ModelToolCall> },
    Tool { call_id: String, text: String },
}

/// A tool call of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelToolCall {
    pub id: String,
    pub name: String,
    /// JSON text as the model sent it; it may be invalid.
    pub arguments: String,
}

impl ChatMessage {
    /// The message as one JSON object, ready to be put into a [`ModelRequest`](super::ModelRequest).
    pub fn to_json(&self) -> String {
        let plain = |role, content| WireMessage { role, tool_call_id: None, content, tool_calls: Vec::new() };
        let written = match self {
            Self::System(text) => plain("system", Some(text.as_str())),
            Self::User(text) => plain("user", Some(text.as_str())),
            Self::Tool { call_id, text } => {
                WireMessage { tool_call_id: Some(call_id), ..plain("tool", Some(text.as_str())) }
            }
            Self::Assistant { text, calls } if calls.is_empty() => {
                plain("assistant", Some(text.as_deref().unwrap_or_default()))
            }
            Self::Assistant { text, calls } => WireMessage {
                tool_calls: calls.iter().map(WireToolCall::of).collect(),
                ..plain("assistant", text.as_deref())
            },
        };
        serde_json::to_string(&written).expect("texts under names can always be written as JSON")
    }
}

/// A message during serialisation. It borrows, because conversations are long.
#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireToolCall<'a>>,
}

#[derive(Serialize)]
struct WireToolCall<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: Cow<'a, str>,
    arguments: String,
}

impl<'a> WireToolCall<'a> {
    fn of(call: &'a ModelToolCall) -> Self {
        // Several servers parse the arguments of earlier calls and refuse the complete request if they are invalid.
        let arguments = match RawArguments::parse(&call.arguments) {
            Ok(RawArguments { values, exact_numbers: exact }) if exact.is_empty() => {
                Value::Object(values).to_string()
            }
            Ok(_) => call.arguments.clone(),
            Err(_) => "{}".to_owned(),
        };
        let function = WireFunction { name: wire_name(&call.name), arguments };
        Self { id: &call.id, kind: "function", function }
    }
}

impl ModelToolCall {
    /// The arguments as a JSON object. An empty text is a call without arguments.
    pub fn parsed_arguments(&self) -> Result<Map<String, Value>, serde_json::Error> {
        parse_arguments(&self.arguments)
    }
}

/// Parses arguments as a JSON object of at most [`MAX_DEPTH`] levels.
pub(crate) fn parse_arguments(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    if super::json_depth::depth(text) > MAX_DEPTH {
        let message = format!("it is nested more than {MAX_DEPTH} levels deep");
        return Err(serde::de::Error::custom(message));
    }
    serde_json::from_str(text)
}

/// Maximum nesting of arguments. Parsers have limits (serde_json's is 127), and the journal nests arguments further.
const MAX_DEPTH: usize = 64;

/// Maximum length of a tool name, in characters.
pub const MAX_TOOL_NAME_CHARS: usize = 64;

/// Whether servers accept this as the name of a tool.
pub fn is_wire_name(name: &str) -> bool {
    (1..=MAX_TOOL_NAME_CHARS).contains(&name.len()) && name.chars().all(is_wire_char)
}

/// The most similar name that servers accept.
pub(crate) fn wire_name(name: &str) -> Cow<'_, str> {
    if is_wire_name(name) {
        return Cow::Borrowed(name);
    }
    let name: String =
        name.chars().take(MAX_TOOL_NAME_CHARS).map(|c| if is_wire_char(c) { c } else { '_' }).collect();
    Cow::Owned(if name.is_empty() { "_".to_owned() } else { name })
}

fn is_wire_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sent(message: &ChatMessage) -> Value {
        serde_json::from_str(&message.to_json()).unwrap()
    }

    fn call(name: &str, arguments: &str) -> ModelToolCall {
        ModelToolCall { id: "c1".to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn messages_are_written_as_servers_want_them() {
        assert_eq!(sent(&ChatMessage::User("hi".to_owned())), json!({ "role": "user", "content": "hi" }));
        let message = ChatMessage::Assistant { text: None, calls: vec![call("sh", r#"{"a": 1}"#)] };
        let function = json!({ "name": "sh", "arguments": r#"{"a":1}"# });
        let expected = json!({
            "role": "assistant", "content": null,
            "tool_calls": [{ "id": "c1", "type": "function", "function": function }],
        });
        assert_eq!(sent(&message), expected);
        let result = ChatMessage::Tool { call_id: "c1".to_owned(), text: "ok".to_owned() };
        assert_eq!(sent(&result), json!({ "role": "tool", "tool_call_id": "c1", "content": "ok" }));
    }

    #[test]
    fn invalid_calls_are_sent_as_similar_valid_ones() {
        for arguments in [r#"{"a": "#, "[1]", "hello", "null"] {
            let message = ChatMessage::Assistant { text: None, calls: vec![call("session.end", arguments)] };
            let function = &sent(&message)["tool_calls"][0]["function"];
            assert_eq!(function, &json!({ "name": "session_end", "arguments": "{}" }));
        }
        assert_eq!(wire_name(&"ü".repeat(100)), "_".repeat(64));
        assert_eq!(wire_name(""), "_");
    }

    #[test]
    fn arguments_that_are_nested_too_deeply_are_refused_and_not_sent_back() {
        let nested = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(call("t", &nested(64)).parsed_arguments().is_ok());
        for depth in [65, 127, 128, 1_000, 100_000] {
            let call = call("t", &nested(depth));
            let refused = call.parsed_arguments().unwrap_err().to_string();
            assert_eq!(refused, "it is nested more than 64 levels deep");
            let message = ChatMessage::Assistant { text: None, calls: vec![call] };
            assert_eq!(sent(&message)["tool_calls"][0]["function"]["arguments"], "{}");
        }
        assert!(call("t", &format!(r#"{{"a":"{}"}}"#, r#"[{\"["#.repeat(1000))).parsed_arguments().is_ok());
    }

    #[test]
    fn no_arguments_are_an_empty_object() {
        assert_eq!(call("t", " ").parsed_arguments().unwrap(), Map::new());
    }
}
