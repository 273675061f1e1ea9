//! OpenAI's responses API, as used by Codex.

use serde_json::{Value, json};

use super::{
    json::{list, parse_or_string, text, texts, to_json_string},
    received::{MessageRole, ReceivedMessage, ReceivedRequest, ReceivedToolCall, ReceivedToolResult},
    reply::{PreparedReply, ReplyPart, chunks},
    sse,
    wire::ParsedRequest,
};

pub(super) fn read(body: &Value) -> ParsedRequest {
    let mut read = ParsedRequest {
        model: text(body, "model"),
        schema: Some(body["text"]["format"]["schema"].clone()).filter(Value::is_object),
        ..ParsedRequest::default()
    };
    read.system.extend(body["instructions"].as_str().map(str::to_owned));
    if let Some(prompt) = body["input"].as_str() {
        read.messages.push(ReceivedMessage {
            blocks: vec![prompt.to_owned()],
            ..ReceivedMessage::new(MessageRole::User)
        });
    }
    read.messages.extend(list(body, "input").iter().filter_map(item));
    read.tools = list(body, "tools").iter().flat_map(tools).collect();
    read
}

/// Parses an item of the input. Reasoning and unknown items are ignored.
fn item(item: &Value) -> Option<ReceivedMessage> {
    let call = |args: Value| {
        let call = ReceivedToolCall { id: text(item, "call_id"), tool: text(item, "name"), args };
        ReceivedMessage { tool_calls: vec![call], ..ReceivedMessage::new(MessageRole::Assistant) }
    };
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let role = match item["role"].as_str()? {
                "assistant" => MessageRole::Assistant,
                "user" => MessageRole::User,
                _ => MessageRole::System,
            };
            Some(ReceivedMessage { blocks: texts(&item["content"]), ..ReceivedMessage::new(role) })
        }
        "function_call" => Some(call(parse_or_string(&text(item, "arguments")))),
        "custom_tool_call" => Some(call(item["input"].clone())),
        "function_call_output" | "custom_tool_call_output" => {
            // A string, a list of text blocks, or an object that contains one of them.
            let output = &item["output"];
            let content = if output.is_object() { &output["content"] } else { output };
            let result = ReceivedToolResult { id: text(item, "call_id"), text: texts(content).join("\n") };
            Some(ReceivedMessage { tool_results: vec![result], ..ReceivedMessage::new(MessageRole::Tool) })
        }
        _ => None,
    }
}

/// Returns the names of a tool. A namespace contains several; a tool without a name is known by its type.
fn tools(tool: &Value) -> Vec<String> {
    if tool["type"] == "namespace" {
        return list(tool, "tools").iter().flat_map(tools).collect();
    }
    let name = tool["name"].as_str().or_else(|| tool["type"].as_str());
    name.map(str::to_owned).into_iter().collect()
}

/// Whether the request offers this tool with free-text input.
fn is_custom(request: &ReceivedRequest, name: &str) -> bool {
    list(&request.raw, "tools").iter().any(|tool| tool["type"] == "custom" && tool["name"] == name)
}

pub(super) fn stream(reply: &PreparedReply<'_>, request: &ReceivedRequest) -> Vec<String> {
    let id = format!("resp_{}", reply.id_suffix);
    let mut events = vec![json!({ "type": "response.created", "response": { "id": id } })];
    let items = items(reply, request);
    for (index, item) in items.iter().enumerate() {
        let mut begun = item.clone();
        begun["status"] = json!("in_progress");
        let deltas = match &reply.parts[index] {
            ReplyPart::Text(text) => {
                begun["content"] = json!([]);
                let delta = |chunk| {
                    json!({
                        "type": "response.output_text.delta", "item_id": item["id"], "output_index": index,
                        "content_index": 0, "delta": chunk,
                    })
                };
                chunks(text).into_iter().map(delta).collect()
            }
            ReplyPart::Call { .. } => Vec::new(),
        };
        events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": begun }));
        events.extend(deltas);
        events.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
    }
    events.push(json!({ "type": "response.completed", "response": response(reply, &items) }));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(number);
    }
    events.iter().map(sse::named_event).collect()
}

pub(super) fn unstreamed(reply: &PreparedReply<'_>, request: &ReceivedRequest) -> Value {
    response(reply, &items(reply, request))
}

fn items(reply: &PreparedReply<'_>, request: &ReceivedRequest) -> Vec<Value> {
    let item = |(index, reply_part): (usize, &ReplyPart)| match reply_part {
        ReplyPart::Text(text) => json!({
            "type": "message", "id": format!("msg_{}_{index}", reply.id_suffix), "role": "assistant",
            "status": "completed", "content": [{ "type": "output_text", "text": text, "annotations": [] }],
        }),
        ReplyPart::Call { id, tool, args } if is_custom(request, tool) => json!({
            "type": "custom_tool_call", "id": format!("ctc_{}_{index}", reply.id_suffix), "status": "completed",
            "call_id": id, "name": tool, "input": to_json_string(args),
        }),
        ReplyPart::Call { id, tool, args } => json!({
            "type": "function_call", "id": format!("fc_{}_{index}", reply.id_suffix), "status": "completed",
            "call_id": id, "name": tool, "arguments": to_json_string(args),
        }),
    };
    reply.parts.iter().enumerate().map(item).collect()
}

fn response(reply: &PreparedReply<'_>, items: &[Value]) -> Value {
    let usage = reply.usage;
    json!({
        "id": format!("resp_{}", reply.id_suffix), "object": "response", "created_at": 0, "status": "completed",
        "model": reply.model, "output": items,
        "usage": {
            "input_tokens": usage.input, "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": usage.output, "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": usage.input + usage.output,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{answer::AnswerPart, wire::ModelProtocol};

    fn parsed_request() -> ReceivedRequest {
        let message = |role: &str, text: &str| json!({ "type": "message", "role": role, "content": [{ "type": "input_text", "text": text }] });
        ModelProtocol::Responses.parse_request(
            "/v1/responses",
            json!({
                "model": "m", "stream": true, "store": false,
                "input": [
                    message("developer", "You are an agent."),
                    message("user", "<environment_context>\n  <cwd>x</cwd>\n</environment_context>"),
                    message("user", "go"),
                    { "type": "reasoning", "summary": [], "encrypted_content": null },
                    { "type": "function_call", "name": "exec_command", "call_id": "c1",
                      "arguments": "{\"cmd\":\"ls\"}" },
                    { "type": "custom_tool_call", "name": "apply_patch", "call_id": "c2", "input": "*** Begin" },
                    { "type": "function_call_output", "call_id": "c1", "output": "Output:\na b\n" },
                    { "type": "custom_tool_call_output", "call_id": "c2",
                      "output": [{ "type": "input_text", "text": "done" }] },
                ],
                "tools": [
                    { "type": "function", "name": "exec_command" }, { "type": "custom", "name": "apply_patch" },
                    { "type": "web_search" },
                    { "type": "namespace", "name": "mcp", "tools": [{ "type": "function", "name": "look" }] },
                ],
            }),
        )
    }

    #[test]
    fn a_request_is_parsed() {
        let request = parsed_request();
        assert_eq!(request.system, "You are an agent.");
        assert_eq!(request.user_texts(), ["go"]);
        assert_eq!(request.tools, ["exec_command", "apply_patch", "web_search", "look"]);
        let args: Vec<Value> = request.tool_calls().into_iter().map(|call| call.args).collect();
        assert_eq!(args, [json!({ "cmd": "ls" }), json!("*** Begin")]);
        let results: Vec<String> = request.new_tool_results().into_iter().map(|result| result.text).collect();
        assert_eq!(results, ["Output:\na b\n", "done"]);
        assert_eq!(crate::model::faults(&request), [""; 0]);
    }

    #[test]
    fn a_stream_adds_up_to_the_answer() {
        let request = parsed_request();
        let patch = AnswerPart::Call { tool: "apply_patch".to_owned(), args: json!("*** Begin Patch") };
        let parts =
            [AnswerPart::Say("one moment, please".to_owned()), AnswerPart::Shell("ls".to_owned()), patch];
        let reply = PreparedReply::new(&request, 1, &parts, None);
        let events = sse::parse_data(&stream(&reply, &request).concat());
        let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
        let text: String =
            of("response.output_text.delta").filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!(text, "one moment, please");
        let items: Vec<Value> = of("response.output_item.done").map(|event| event["item"].clone()).collect();
        let kinds: Vec<&Value> = items.iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, ["message", "function_call", "custom_tool_call"]);
        assert_eq!(items[1]["arguments"], r#"{"cmd":"ls"}"#);
        assert_eq!(items[2]["input"], "*** Begin Patch");
        assert_eq!(events.first().map(|event| &event["type"]), Some(&json!("response.created")));
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed");
        assert_eq!(last["response"]["output"], Value::from(items));
        assert_eq!(last["response"], unstreamed(&reply, &request));
    }
}
