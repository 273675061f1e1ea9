//! Anthropic's messages API, as used by Claude Code.

use serde_json::{Value, json};

use super::{
    json::{list, text, texts},
    received::{MessageRole, ReceivedMessage, ReceivedToolCall, ReceivedToolResult},
    reply::{PreparedReply, ReplyPart, chunks},
    sse,
    wire::ParsedRequest,
};

pub(super) fn read(body: &Value) -> ParsedRequest {
    ParsedRequest {
        model: text(body, "model"),
        system: texts(&body["system"]),
        messages: list(body, "messages").iter().map(message).collect(),
        tools: list(body, "tools").iter().map(|tool| text(tool, "name")).collect(),
        schema: Some(body["output_config"]["format"]["schema"].clone()).filter(Value::is_object),
    }
}

fn message(message: &Value) -> ReceivedMessage {
    let role = match message["role"].as_str().unwrap_or_default() {
        "assistant" => MessageRole::Assistant,
        "system" => MessageRole::System,
        _ => MessageRole::User,
    };
    let mut read = ReceivedMessage::new(role);
    if let Some(plain) = message["content"].as_str() {
        read.blocks.push(plain.to_owned());
    }
    for block in list(message, "content") {
        match block["type"].as_str().unwrap_or_default() {
            "text" => read.blocks.push(text(block, "text")),
            "tool_use" => read.tool_calls.push(ReceivedToolCall {
                id: text(block, "id"),
                tool: text(block, "name"),
                args: block["input"].clone(),
            }),
            "tool_result" => read.tool_results.push(ReceivedToolResult {
                id: text(block, "tool_use_id"),
                text: texts(&block["content"]).join("\n"),
            }),
            _ => {}
        }
    }
    read
}

pub(super) fn stream(reply: &PreparedReply<'_>) -> Vec<String> {
    let mut begun = envelope(reply);
    begun["content"] = json!([]);
    begun["stop_reason"] = json!(null);
    begun["usage"]["output_tokens"] = json!(1);
    let mut events = vec![json!({ "type": "message_start", "message": begun })];
    for (index, reply_part) in reply.parts.iter().enumerate() {
        let (block, deltas): (Value, Vec<Value>) = match reply_part {
            ReplyPart::Text(text) => {
                let delta = |chunk| json!({ "type": "text_delta", "text": chunk });
                (json!({ "type": "text", "text": "" }), chunks(text).into_iter().map(delta).collect())
            }
            ReplyPart::Call { args, .. } => {
                let mut block = content(reply_part);
                block["input"] = json!({});
                let args = args.to_string();
                let delta = |chunk| json!({ "type": "input_json_delta", "partial_json": chunk });
                (block, chunks(&args).into_iter().map(delta).collect())
            }
        };
        events.push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        let delta = |delta| json!({ "type": "content_block_delta", "index": index, "delta": delta });
        events.extend(deltas.into_iter().map(delta));
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    let stop = json!({ "stop_reason": stop_reason(reply), "stop_sequence": null });
    let usage = json!({ "input_tokens": reply.usage.input, "output_tokens": reply.usage.output });
    events.push(json!({ "type": "message_delta", "delta": stop, "usage": usage }));
    events.push(json!({ "type": "message_stop" }));
    events.iter().map(sse::named_event).collect()
}

pub(super) fn unstreamed(reply: &PreparedReply<'_>) -> Value {
    let mut message = envelope(reply);
    message["content"] = reply.parts.iter().map(content).collect();
    message
}

fn envelope(reply: &PreparedReply<'_>) -> Value {
    json!({
        "id": format!("msg_{}", reply.id_suffix), "type": "message", "role": "assistant", "model": reply.model,
        "stop_reason": stop_reason(reply), "stop_sequence": null,
        "usage": {
            "input_tokens": reply.usage.input, "output_tokens": reply.usage.output,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        },
    })
}

fn content(part: &ReplyPart) -> Value {
    match part {
        ReplyPart::Text(part) => json!({ "type": "text", "text": part }),
        // Ids of the service begin with `toolu_`, and some programs check this.
        ReplyPart::Call { id, tool, args } => {
            json!({ "type": "tool_use", "id": id.replace("call_", "toolu_"), "name": tool, "input": args })
        }
    }
}

fn stop_reason(reply: &PreparedReply<'_>) -> &'static str {
    if reply.has_calls() { "tool_use" } else { "end_turn" }
}

pub(super) fn count(tokens: u64) -> Value {
    json!({ "input_tokens": tokens })
}

pub(super) fn error(code: u16, message: &str) -> Value {
    let kind = match code {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        answer::AnswerPart, json::parse_or_string, received::ReceivedRequest, wire::ModelProtocol,
    };

    fn parsed_request() -> ReceivedRequest {
        ModelProtocol::Anthropic.parse_request(
            "/v1/messages",
            json!({
                "model": "m", "stream": true, "max_tokens": 100,
                "system": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }],
                "messages": [
                    { "role": "user", "content": [
                        { "type": "text", "text": "<system-reminder>\nx\n</system-reminder>" },
                        { "type": "text", "text": "go" },
                    ]},
                    { "role": "assistant", "content": [
                        { "type": "thinking", "thinking": "hm", "signature": "s" },
                        { "type": "tool_use", "id": "t1", "name": "Bash", "input": { "command": "ls" } },
                    ]},
                    { "role": "user", "content": [
                        { "type": "tool_result", "tool_use_id": "t1", "is_error": true,
                          "content": [{ "type": "text", "text": "Exit code 3" }] },
                    ]},
                ],
                "tools": [{ "name": "Bash", "input_schema": {} }, { "name": "Read", "input_schema": {} }],
            }),
        )
    }

    #[test]
    fn a_request_is_parsed() {
        let request = parsed_request();
        assert_eq!((request.model.as_str(), request.system.as_str()), ("m", "one\n\ntwo"));
        assert_eq!(request.user_texts(), ["go"]);
        assert_eq!(request.tools, ["Bash", "Read"]);
        assert_eq!(request.tool_calls()[0].args, json!({ "command": "ls" }));
        assert_eq!(request.new_tool_results()[0].text, "Exit code 3");
        assert_eq!(crate::model::faults(&request), [""; 0]);
    }

    #[test]
    fn a_text_beside_a_result_is_the_prompt() {
        let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": "aborted" });
        let call = json!({ "type": "tool_use", "id": "t1", "name": "Bash", "input": {} });
        let request = ModelProtocol::Anthropic.parse_request(
            "/v1/messages",
            json!({ "messages": [
                { "role": "user", "content": "go" },
                { "role": "assistant", "content": [call] },
                { "role": "user", "content": [result, { "type": "text", "text": "continue" }] },
            ]}),
        );
        assert_eq!(request.current_prompt(), Some("continue".to_owned()));
    }

    #[test]
    fn a_stream_adds_up_to_the_answer() {
        let request = parsed_request();
        let parts = [AnswerPart::Say("one moment, please".to_owned()), AnswerPart::Shell("ls".to_owned())];
        let reply = PreparedReply::new(&request, 1, &parts, None);
        let events = sse::parse_data(&stream(&reply).concat());
        let joined = |index: u64, field: &str| -> String {
            let of = events.iter().filter(|event| event["index"] == index);
            of.filter_map(|event| event["delta"][field].as_str()).collect()
        };
        assert_eq!(joined(0, "text"), "one moment, please");
        assert_eq!(parse_or_string(&joined(1, "partial_json"))["command"], "ls");
        let starts = events.iter().filter(|event| event["type"] == "content_block_start");
        let stops = events.iter().filter(|event| event["type"] == "content_block_stop");
        assert_eq!((starts.count(), stops.count()), (2, 2));
        let ends: Vec<&Value> = events.iter().rev().take(2).map(|event| &event["type"]).collect();
        assert_eq!(ends, ["message_stop", "message_delta"]);
        assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
        assert_eq!(unstreamed(&reply)["content"][1]["input"]["command"], "ls");
    }
}
