//! OpenAI's chat completions API, as used by Qwen, opencode, the native agent and many others.

use serde_json::{Value, json};

use super::{
    json::{list, parse_or_string, text, texts, to_json_string},
    received::{MessageRole, ReceivedMessage, ReceivedRequest, ReceivedToolCall, ReceivedToolResult},
    reply::{PreparedReply, ReplyPart, chunks},
    sse,
    wire::ParsedRequest,
};

pub(super) fn read(body: &Value) -> ParsedRequest {
    let name = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
    ParsedRequest {
        model: text(body, "model"),
        system: Vec::new(),
        messages: list(body, "messages").iter().map(message).collect(),
        tools: list(body, "tools").iter().filter_map(name).collect(),
        schema: Some(body["response_format"]["json_schema"]["schema"].clone()).filter(Value::is_object),
    }
}

fn message(message: &Value) -> ReceivedMessage {
    let blocks = texts(&message["content"]);
    match message["role"].as_str().unwrap_or_default() {
        "assistant" => {
            let call = |call: &Value| ReceivedToolCall {
                id: text(call, "id"),
                tool: text(&call["function"], "name"),
                args: parse_or_string(&text(&call["function"], "arguments")),
            };
            let tool_calls = list(message, "tool_calls").iter().map(call).collect();
            ReceivedMessage { blocks, tool_calls, ..ReceivedMessage::new(MessageRole::Assistant) }
        }
        "tool" => {
            let result = ReceivedToolResult { id: text(message, "tool_call_id"), text: blocks.join("\n") };
            ReceivedMessage { tool_results: vec![result], ..ReceivedMessage::new(MessageRole::Tool) }
        }
        "user" => ReceivedMessage { blocks, ..ReceivedMessage::new(MessageRole::User) },
        _ => ReceivedMessage { blocks, ..ReceivedMessage::new(MessageRole::System) },
    }
}

pub(super) fn stream(reply: &PreparedReply<'_>, request: &ReceivedRequest) -> Vec<String> {
    let chunk = |choices: Value| {
        json!({
            "id": format!("chatcmpl-{}", reply.id_suffix), "object": "chat.completion.chunk", "created": 0,
            "model": reply.model, "choices": choices,
        })
    };
    let delta = |delta: Value| chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }]));
    let mut events = vec![delta(json!({ "role": "assistant", "content": "" }))];
    let mut calls = 0;
    for reply_part in &reply.parts {
        match reply_part {
            ReplyPart::Text(text) => {
                events.extend(chunks(text).into_iter().map(|chunk| delta(json!({ "content": chunk }))));
            }
            ReplyPart::Call { id, tool, args } => {
                let function = json!({ "name": tool, "arguments": "" });
                let begun = json!({ "index": calls, "id": id, "type": "function", "function": function });
                events.push(delta(json!({ "tool_calls": [begun] })));
                for piece in chunks(&to_json_string(args)) {
                    let more = json!({ "index": calls, "function": { "arguments": piece } });
                    events.push(delta(json!({ "tool_calls": [more] })));
                }
                calls += 1;
            }
        }
    }
    events.push(chunk(json!([{ "index": 0, "delta": {}, "finish_reason": finish(reply) }])));
    if request.raw["stream_options"]["include_usage"] == true {
        let mut last = chunk(json!([]));
        last["usage"] = usage(reply);
        events.push(last);
    }
    let mut pieces: Vec<String> = events.iter().map(sse::data).collect();
    pieces.push("data: [DONE]\n\n".to_owned());
    pieces
}

pub(super) fn unstreamed(reply: &PreparedReply<'_>) -> Value {
    let calls = reply.parts.iter().filter_map(|reply_part| match reply_part {
        ReplyPart::Text(_) => None,
        ReplyPart::Call { id, tool, args } => {
            let function = json!({ "name": tool, "arguments": to_json_string(args) });
            Some(json!({ "id": id, "type": "function", "function": function }))
        }
    });
    let mut message = json!({ "role": "assistant", "content": reply.text() });
    if reply.has_calls() {
        message["tool_calls"] = calls.collect();
    }
    json!({
        "id": format!("chatcmpl-{}", reply.id_suffix), "object": "chat.completion", "created": 0,
        "model": reply.model, "usage": usage(reply),
        "choices": [{ "index": 0, "message": message, "finish_reason": finish(reply) }],
    })
}

pub(super) fn error(code: u16, message: &str) -> Value {
    let kind = match code {
        401 => "authentication_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
}

fn finish<'a>(reply: &'a PreparedReply<'_>) -> &'a str {
    let own = if reply.has_calls() { "tool_calls" } else { "stop" };
    reply.finish.as_deref().unwrap_or(own)
}

fn usage(reply: &PreparedReply<'_>) -> Value {
    let usage = reply.usage;
    json!({
        "prompt_tokens": usage.input, "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{answer::AnswerPart, wire::ModelProtocol};

    fn parsed_request() -> ReceivedRequest {
        let call = json!({ "id": "c1", "type": "function",
            "function": { "name": "run_shell_command", "arguments": "{\"command\":\"ls\"}" } });
        ModelProtocol::Chat.parse_request(
            "/v1/chat/completions",
            json!({
                "model": "m", "stream": true, "stream_options": { "include_usage": true },
                "messages": [
                    { "role": "system", "content": "be brief" },
                    { "role": "user", "content": [
                        { "type": "text", "text": "<system-reminder>x</system-reminder>" },
                        { "type": "text", "text": "list it" },
                    ]},
                    { "role": "assistant", "content": null, "tool_calls": [call] },
                    { "role": "tool", "tool_call_id": "c1", "content": "a b" },
                ],
                "tools": [{ "type": "function", "function": { "name": "run_shell_command" } }],
            }),
        )
    }

    #[test]
    fn a_request_is_parsed() {
        let request = parsed_request();
        assert_eq!((request.model.as_str(), request.system.as_str()), ("m", "be brief"));
        assert_eq!(request.user_texts(), ["list it"]);
        assert_eq!(request.tools, ["run_shell_command"]);
        let args = json!({ "command": "ls" });
        let call = ReceivedToolCall { id: "c1".to_owned(), tool: "run_shell_command".to_owned(), args };
        assert_eq!(request.tool_calls(), [call]);
        assert_eq!(
            request.new_tool_results(),
            [ReceivedToolResult { id: "c1".to_owned(), text: "a b".to_owned() }]
        );
    }

    #[test]
    fn a_stream_adds_up_to_the_answer() {
        let request = parsed_request();
        let parts = [AnswerPart::Say("one moment, please".to_owned()), AnswerPart::Shell("ls -l".to_owned())];
        let reply = PreparedReply::new(&request, 1, &parts, None);
        let mut events = sse::parse_data(&stream(&reply, &request).concat());
        assert_eq!(events.pop(), Some(json!("[DONE]")));
        let usage = events.pop().unwrap();
        assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(10)));
        assert_eq!(events.pop().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        let joined = |pointer: &str| -> String {
            events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
        };
        assert_eq!(joined("/choices/0/delta/content"), "one moment, please");
        assert_eq!(joined("/choices/0/delta/tool_calls/0/function/name"), "run_shell_command");
        assert_eq!(joined("/choices/0/delta/tool_calls/0/id"), "call_1_0_1");
        let args = parse_or_string(&joined("/choices/0/delta/tool_calls/0/function/arguments"));
        assert_eq!(args["command"], "ls -l");
        assert_eq!(unstreamed(&reply)["choices"][0]["message"]["tool_calls"][0]["id"], "call_1_0_1");
    }
}
