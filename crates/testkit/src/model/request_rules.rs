//! Rules of services for a chat-completions request, besides the order of its messages.
//!
//! Only rules that a large service was observed to enforce, so that a request accepted here is accepted there.

use serde_json::Value;

use super::{
    json::{list, text},
    received::ReceivedRequest,
    wire::ModelProtocol,
};

/// Returns the reasons, as sentences, for which a real service would refuse the request.
pub(super) fn faults(request: &ReceivedRequest) -> Vec<String> {
    if request.protocol != ModelProtocol::Chat {
        return Vec::new();
    }
    let mut faults = Vec::new();
    if request.raw["tools"].as_array().is_some_and(Vec::is_empty) {
        faults.push("tools: an empty list".to_owned());
    }
    for (index, name) in request.tools.iter().enumerate() {
        if !is_name(name) {
            faults.push(format!("tools[{index}]: {name:?} is no name of a tool"));
        }
        if request.tools[..index].contains(name) {
            faults.push(format!("tools[{index}]: {name} is offered twice"));
        }
    }
    for (index, message) in list(&request.raw, "messages").iter().enumerate() {
        faults.extend(fault(message).map(|fault| format!("messages[{index}]: {fault}")));
    }
    faults
}

fn fault(message: &Value) -> Option<String> {
    let role = message["role"].as_str().unwrap_or_default();
    if !["system", "developer", "user", "assistant", "tool"].contains(&role) {
        return Some(format!("{role:?} is no role"));
    }
    let calls = &message["tool_calls"];
    if calls.as_array().is_some_and(Vec::is_empty) {
        return Some("tool_calls is an empty list".to_owned());
    }
    if message["content"].is_null() && calls.is_null() {
        return Some("content is missing".to_owned());
    }
    let names = list(message, "tool_calls").iter().map(|call| text(&call["function"], "name"));
    names.into_iter().find(|name| !is_name(name)).map(|name| format!("{name:?} is no name of a tool"))
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=64).contains(&name.len()) && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(request: Value) -> Vec<String> {
        faults(&ModelProtocol::Chat.parse_request("/v1/chat/completions", request))
    }

    #[test]
    fn a_request_in_good_form_has_no_faults() {
        let tool = json!({ "type": "function", "function": { "name": "run_it" } });
        let user = json!({ "role": "user", "content": "go" });
        let none: [String; 0] = [];
        assert_eq!(check(json!({ "messages": [user], "tools": [tool] })), none);
    }

    #[test]
    fn a_refusal_of_a_service_is_a_fault() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let call = json!({ "id": "c", "type": "function", "function": { "name": "session.end" } });
        let messages = json!([
            { "role": "human", "content": "go" }, { "role": "user", "content": null },
            { "role": "assistant", "content": null, "tool_calls": [] },
            { "role": "assistant", "content": null, "tool_calls": [call] },
        ]);
        let expected = [
            "tools[0]: \"a b\" is no name of a tool",
            "tools[2]: c is offered twice",
            "messages[0]: \"human\" is no role",
            "messages[1]: content is missing",
            "messages[2]: tool_calls is an empty list",
            "messages[3]: \"session.end\" is no name of a tool",
        ];
        let tools = [tool("a b"), tool("c"), tool("c")];
        assert_eq!(check(json!({ "messages": messages, "tools": tools })), expected);
        assert_eq!(check(json!({ "messages": [], "tools": [] })), ["tools: an empty list"]);
    }
}
