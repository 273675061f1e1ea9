//! Checks the order of messages that services demand: a call is followed by its result, and a result follows its call.
//!
//! The check uses the parsed request, so the same rules hold for each protocol but one.

use std::collections::HashSet;

use super::{
    received::{MessageRole, ReceivedMessage, ReceivedRequest},
    wire::ModelProtocol,
};

/// Returns the reasons, as sentences, for which a real service would refuse the request.
pub fn faults(request: &ReceivedRequest) -> Vec<String> {
    if request.protocol == ModelProtocol::Gemini {
        // This service pairs by name and position, and its program is known to repeat a result after a resume.
        return Vec::new();
    }
    let mut faults = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut open_calls: Vec<&str> = Vec::new();
    for (index, message) in request.messages.iter().enumerate() {
        for result in &message.tool_results {
            match open_calls.iter().position(|id| *id == result.id) {
                Some(at) => {
                    open_calls.remove(at);
                }
                None => faults.push(format!(
                    "messages[{index}]: the result of {} follows no open call of that id",
                    display_id(&result.id)
                )),
            }
        }
        let continues = message.role == MessageRole::Tool || !message.tool_results.is_empty();
        // A protocol with one item per call may have several calls in a row before the first result.
        let calls_on = message.role == MessageRole::Assistant && request.protocol == ModelProtocol::Responses;
        if !open_calls.is_empty() && !calls_on && (!continues || message.role == MessageRole::Assistant) {
            faults
                .push(format!("messages[{index}]: calls {} have no result before it", open_calls.join(", ")));
            open_calls.clear();
        }
        for call in &message.tool_calls {
            if call.id.is_empty() {
                faults.push(format!("messages[{index}]: a call of {} has no id", call.tool));
            } else if !seen.insert(&call.id) {
                faults.push(format!("messages[{index}]: the id {} is used twice", call.id));
            }
            if call.args.is_string() && request.protocol == ModelProtocol::Chat {
                faults.push(format!(
                    "messages[{index}]: the arguments of {} are not JSON",
                    display_id(&call.id)
                ));
            }
            open_calls.push(&call.id);
        }
        faults.extend(empty_message_fault(index, message));
    }
    if !open_calls.is_empty() {
        faults.push(format!("calls {} have no result at the end", open_calls.join(", ")));
    }
    match request.messages.iter().rfind(|message| message.role != MessageRole::System) {
        None => faults.push("there is no message".to_owned()),
        // Other services accept a request that ends with the beginning of the model's answer.
        Some(last) if last.role == MessageRole::Assistant && request.protocol == ModelProtocol::Chat => {
            faults.push("the model has the last word".to_owned());
        }
        Some(_) => {}
    }
    faults
}

fn empty_message_fault(index: usize, message: &ReceivedMessage) -> Option<String> {
    let empty = message.tool_calls.is_empty() && message.tool_results.is_empty() && message.text().is_empty();
    match message.role {
        MessageRole::Assistant if empty => {
            Some(format!("messages[{index}]: an assistant says nothing and calls nothing"))
        }
        MessageRole::Tool if message.tool_results.iter().any(|result| result.id.is_empty()) => {
            Some(format!("messages[{index}]: a result names no call"))
        }
        MessageRole::System | MessageRole::User | MessageRole::Assistant | MessageRole::Tool => None,
    }
}

fn display_id(id: &str) -> &str {
    if id.is_empty() { "a call without id" } else { id }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(messages: Value) -> Vec<String> {
        let raw = json!({ "model": "m", "messages": messages });
        faults(&ModelProtocol::Chat.parse_request("/v1/chat/completions", raw))
    }

    fn assistant(ids: &[&str]) -> Value {
        let calls: Vec<Value> = ids
            .iter()
            .map(|id| json!({ "id": id, "type": "function", "function": { "name": "t", "arguments": "{}" } }))
            .collect();
        json!({ "role": "assistant", "content": null, "tool_calls": calls })
    }

    fn tool(id: &str) -> Value {
        json!({ "role": "tool", "tool_call_id": id, "content": "ok" })
    }

    fn user() -> Value {
        json!({ "role": "user", "content": "go" })
    }

    #[test]
    fn calls_with_their_results_are_in_order() {
        let none: [String; 0] = [];
        assert_eq!(check(json!([user(), assistant(&["a", "b"]), tool("b"), tool("a"), user()])), none);
    }

    #[test]
    fn a_call_without_result_is_a_fault() {
        let faults = check(json!([user(), assistant(&["a", "b"]), tool("a"), user()]));
        assert_eq!(faults, ["messages[3]: calls b have no result before it"]);
        assert_eq!(check(json!([user(), assistant(&["a"])])).len(), 2);
    }

    #[test]
    fn a_result_without_call_is_a_fault() {
        let expected = ["messages[1]: the result of a follows no open call of that id"];
        assert_eq!(check(json!([user(), tool("a")])), expected);
        let repeated = check(json!([user(), assistant(&["a"]), tool("a"), tool("a")]));
        assert_eq!(repeated, ["messages[3]: the result of a follows no open call of that id"]);
    }

    #[test]
    fn an_id_is_used_once() {
        let messages = json!([user(), assistant(&["a"]), tool("a"), assistant(&["a"]), tool("a")]);
        assert_eq!(check(messages), ["messages[3]: the id a is used twice"]);
    }

    #[test]
    fn the_model_may_not_have_the_last_word() {
        let messages = json!([user(), { "role": "assistant", "content": "x" }]);
        assert_eq!(check(messages), ["the model has the last word"]);
    }
}
