//! OpenAI's chat completions, as Qwen, opencode, our own agent and many others speak them.

use serde_json::{Value, json};

use super::{
    heard::{Heard, Message, Role, ToolCall, ToolResult},
    json::{folded, list, pieces, text, unfolded},
    reply::{Reply, Said, chunks},
    sse,
    wire::Read,
};

pub(super) fn read(body: &Value) -> Read {
    let name = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
    Read {
        model: text(body, "model"),
        system: Vec::new(),
        messages: list(body, "messages").iter().map(message).collect(),
        tools: list(body, "tools").iter().filter_map(name).collect(),
        schema: Some(body["response_format"]["json_schema"]["schema"].clone()).filter(Value::is_object),
    }
}

fn message(message: &Value) -> Message {
    let blocks = pieces(&message["content"]);
    match message["role"].as_str().unwrap_or_default() {
        "assistant" => {
            let call = |call: &Value| ToolCall {
                id: text(call, "id"),
                tool: text(&call["function"], "name"),
                args: unfolded(&text(&call["function"], "arguments")),
            };
            let tool_calls = list(message, "tool_calls").iter().map(call).collect();
            Message { blocks, tool_calls, ..Message::new(Role::Assistant) }
        }
        "tool" => {
            let result = ToolResult { id: text(message, "tool_call_id"), text: blocks.join("\n") };
            Message { tool_results: vec![result], ..Message::new(Role::Tool) }
        }
        "user" => Message { blocks, ..Message::new(Role::User) },
        _ => Message { blocks, ..Message::new(Role::System) },
    }
}

pub(super) fn stream(reply: &Reply<'_>, heard: &Heard) -> Vec<String> {
    let chunk = |choices: Value| {
        json!({
            "id": format!("chatcmpl-{}", reply.mark), "object": "chat.completion.chunk", "created": 0,
            "model": reply.model, "choices": choices,
        })
    };
    let delta = |delta: Value| chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }]));
    let mut events = vec![delta(json!({ "role": "assistant", "content": "" }))];
    let mut calls = 0;
    for said in &reply.said {
        match said {
            Said::Text(said) => {
                events.extend(chunks(said).into_iter().map(|chunk| delta(json!({ "content": chunk }))));
            }
            Said::Call { id, tool, args } => {
                let function = json!({ "name": tool, "arguments": "" });
                let begun = json!({ "index": calls, "id": id, "type": "function", "function": function });
                events.push(delta(json!({ "tool_calls": [begun] })));
                for piece in chunks(&folded(args)) {
                    let more = json!({ "index": calls, "function": { "arguments": piece } });
                    events.push(delta(json!({ "tool_calls": [more] })));
                }
                calls += 1;
            }
        }
    }
    events.push(chunk(json!([{ "index": 0, "delta": {}, "finish_reason": finish(reply) }])));
    if heard.raw["stream_options"]["include_usage"] == true {
        let mut last = chunk(json!([]));
        last["usage"] = usage(reply);
        events.push(last);
    }
    let mut pieces: Vec<String> = events.iter().map(sse::data).collect();
    pieces.push("data: [DONE]\n\n".to_owned());
    pieces
}

pub(super) fn whole(reply: &Reply<'_>) -> Value {
    let calls = reply.said.iter().filter_map(|said| match said {
        Said::Text(_) => None,
        Said::Call { id, tool, args } => {
            let function = json!({ "name": tool, "arguments": folded(args) });
            Some(json!({ "id": id, "type": "function", "function": function }))
        }
    });
    let mut message = json!({ "role": "assistant", "content": reply.text() });
    if reply.calls() {
        message["tool_calls"] = calls.collect();
    }
    json!({
        "id": format!("chatcmpl-{}", reply.mark), "object": "chat.completion", "created": 0,
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

fn finish<'a>(reply: &'a Reply<'_>) -> &'a str {
    let own = if reply.calls() { "tool_calls" } else { "stop" };
    reply.finish.as_deref().unwrap_or(own)
}

fn usage(reply: &Reply<'_>) -> Value {
    let usage = reply.usage;
    json!({
        "prompt_tokens": usage.input, "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{answer::Part, wire::Wire};

    fn heard() -> Heard {
        let call = json!({ "id": "c1", "type": "function",
            "function": { "name": "run_shell_command", "arguments": "{\"command\":\"ls\"}" } });
        Wire::Chat.hear(
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
    fn a_request_is_heard() {
        let heard = heard();
        assert_eq!((heard.model.as_str(), heard.system.as_str()), ("m", "be brief"));
        assert_eq!(heard.user_texts(), ["list it"]);
        assert_eq!(heard.tools, ["run_shell_command"]);
        let args = json!({ "command": "ls" });
        let call = ToolCall { id: "c1".to_owned(), tool: "run_shell_command".to_owned(), args };
        assert_eq!(heard.tool_calls(), [call]);
        assert_eq!(heard.returned(), [ToolResult { id: "c1".to_owned(), text: "a b".to_owned() }]);
    }

    #[test]
    fn a_stream_adds_up_to_the_answer() {
        let heard = heard();
        let parts = [Part::Say("one moment, please".to_owned()), Part::Shell("ls -l".to_owned())];
        let reply = Reply::new(&heard, 1, &parts, None);
        let mut events = sse::parsed(&stream(&reply, &heard).concat());
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
        let args = unfolded(&joined("/choices/0/delta/tool_calls/0/function/arguments"));
        assert_eq!(args["command"], "ls -l");
        assert_eq!(whole(&reply)["choices"][0]["message"]["tool_calls"][0]["id"], "call_1_0_1");
    }
}
