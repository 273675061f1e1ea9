//! Google's `generateContent` API, as used by the Gemini CLI.

use serde_json::{Value, json};

use super::{
    json::{list, text, texts},
    received::{MessageRole, ReceivedMessage, ReceivedToolCall, ReceivedToolResult},
    reply::{PreparedReply, ReplyPart, chunks},
    sse,
    wire::ParsedRequest,
};

pub(super) fn read(path: &str, body: &Value) -> ParsedRequest {
    let model = path.rsplit_once("/models/").and_then(|(_, call)| call.split_once(':'));
    let config = &body["generationConfig"];
    let schema = ["responseJsonSchema", "responseSchema"].iter().map(|name| config[*name].clone());
    let declared = list(body, "tools").iter().flat_map(|tool| list(tool, "functionDeclarations"));
    ParsedRequest {
        model: model.map_or("", |(model, _)| model).to_owned(),
        system: texts(&body["systemInstruction"]["parts"]),
        messages: list(body, "contents").iter().map(message).collect(),
        tools: declared.map(|tool| text(tool, "name")).collect(),
        schema: schema.into_iter().find(Value::is_object),
    }
}

fn message(content: &Value) -> ReceivedMessage {
    let role = if content["role"] == "model" { MessageRole::Assistant } else { MessageRole::User };
    let mut message = ReceivedMessage::new(role);
    for part in list(content, "parts").iter().filter(|part| part["thought"] != true) {
        message.blocks.extend(part["text"].as_str().map(str::to_owned));
        let (call, response) = (&part["functionCall"], &part["functionResponse"]);
        if call.is_object() {
            message.tool_calls.push(ReceivedToolCall {
                id: id(call),
                tool: text(call, "name"),
                args: call["args"].clone(),
            });
        }
        if response.is_object() {
            let output = &response["response"];
            let output_text = ["output", "error"].iter().find_map(|name| output[*name].as_str());
            let text = output_text.map_or_else(|| output.to_string(), str::to_owned);
            message.tool_results.push(ReceivedToolResult { id: id(response), text });
        }
    }
    message
}

/// The service identifies calls by name alone; ids are an addition of some programs.
fn id(part: &Value) -> String {
    part["id"].as_str().map_or_else(|| text(part, "name"), str::to_owned)
}

pub(super) fn stream(reply: &PreparedReply<'_>) -> Vec<String> {
    let mut parts = Vec::new();
    for reply_part in &reply.parts {
        match reply_part {
            ReplyPart::Text(text) => {
                parts.extend(chunks(text).into_iter().map(|chunk| json!({ "text": chunk })))
            }
            ReplyPart::Call { .. } => parts.push(part(reply_part)),
        }
    }
    let mut events: Vec<Value> = parts.into_iter().map(|part| candidate(reply, json!([part]))).collect();
    let mut last = candidate(reply, json!([{ "text": "" }]));
    last["candidates"][0]["finishReason"] = json!("STOP");
    events.push(last);
    events.iter().map(sse::data).collect()
}

pub(super) fn unstreamed(reply: &PreparedReply<'_>) -> Value {
    let mut answer = candidate(reply, reply.parts.iter().map(part).collect());
    answer["candidates"][0]["finishReason"] = json!("STOP");
    answer
}

fn part(reply_part: &ReplyPart) -> Value {
    match reply_part {
        ReplyPart::Text(reply_part) => json!({ "text": reply_part }),
        ReplyPart::Call { id, tool, args } => {
            json!({ "functionCall": { "id": id, "name": tool, "args": args } })
        }
    }
}

fn candidate(reply: &PreparedReply<'_>, parts: Value) -> Value {
    let usage = reply.usage;
    json!({
        "candidates": [{ "index": 0, "content": { "role": "model", "parts": parts } }],
        "responseId": reply.id_suffix, "modelVersion": reply.model,
        "usageMetadata": {
            "promptTokenCount": usage.input, "candidatesTokenCount": usage.output,
            "totalTokenCount": usage.input + usage.output,
        },
    })
}

pub(super) fn count(tokens: u64) -> Value {
    json!({ "totalTokens": tokens })
}

pub(super) fn error(code: u16, message: &str) -> Value {
    let status = match code {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        429 => "RESOURCE_EXHAUSTED",
        500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    };
    json!({ "error": { "code": code, "message": message, "status": status } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{answer::AnswerPart, received::ReceivedRequest, wire::ModelProtocol};

    fn parsed_request() -> ReceivedRequest {
        ModelProtocol::Gemini.parse_request(
            "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
            json!({
                "systemInstruction": { "role": "user", "parts": [{ "text": "be brief" }] },
                "contents": [
                    { "role": "user", "parts": [{ "text": "<session_context>\nx\n</session_context>" }] },
                    { "role": "user", "parts": [{ "text": "go" }] },
                    { "role": "model", "parts": [
                        { "text": "hm", "thought": true },
                        { "functionCall": { "name": "run_shell_command", "args": { "command": "ls" } } },
                    ]},
                    { "role": "user", "parts": [{ "functionResponse":
                        { "name": "run_shell_command", "response": { "output": "a b" } } }] },
                ],
                "tools": [{ "functionDeclarations": [{ "name": "run_shell_command" }, { "name": "glob" }] }],
                "generationConfig": { "responseJsonSchema": { "type": "object" } },
            }),
        )
    }

    #[test]
    fn a_request_is_parsed() {
        let request = parsed_request();
        assert_eq!((request.model.as_str(), request.system.as_str()), ("gemini-2.5-flash", "be brief"));
        assert_eq!(request.user_texts(), ["go"]);
        assert_eq!(request.tools, ["run_shell_command", "glob"]);
        assert_eq!(request.assistant_texts(), [""; 0]);
        assert_eq!(request.tool_calls()[0].args, json!({ "command": "ls" }));
        assert_eq!(request.new_tool_results()[0].text, "a b");
        assert_eq!(request.schema, Some(json!({ "type": "object" })));
    }

    #[test]
    fn a_stream_adds_up_to_the_answer() {
        let request = parsed_request();
        let parts = [AnswerPart::Say("one moment, please".to_owned()), AnswerPart::Shell("ls".to_owned())];
        let reply = PreparedReply::new(&request, 1, &parts, None);
        let events = sse::parse_data(&stream(&reply).concat());
        let parts = || events.iter().flat_map(|event| list(&event["candidates"][0]["content"], "parts"));
        let text: String = parts().filter_map(|part| part["text"].as_str()).collect();
        assert_eq!(text, "one moment, please");
        let calls: Vec<&Value> =
            parts().map(|part| &part["functionCall"]).filter(|call| call.is_object()).collect();
        assert_eq!((calls.len(), &calls[0]["args"]["command"]), (1, &json!("ls")));
        let reasons = events.iter().map(|event| &event["candidates"][0]["finishReason"]);
        assert_eq!(reasons.filter(|reason| **reason == "STOP").count(), 1);
        assert_eq!(list(&unstreamed(&reply)["candidates"][0]["content"], "parts").len(), 2);
    }
}
