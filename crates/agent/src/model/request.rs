//! A request to a model: messages and tools, already serialised.
//!
//! A conversation only grows at its end, so the caller keeps each message serialised. A request then costs one copy of
//! the bytes.

use serde_json::json;

use crate::definition::ModelConfig;

#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// The messages in order, each a JSON object as [`ChatMessage::to_json`](super::ChatMessage::to_json) writes it.
    pub messages: &'a [&'a str],
    /// The tools, each a JSON object as [`ToolDefinition::to_tool_json`](crate::definition::ToolDefinition::to_tool_json) writes it.
    pub tools: &'a [&'a str],
}

impl ModelRequest<'_> {
    /// The body of the HTTP request.
    pub(super) fn body(&self, model: &ModelConfig, fields: RequestFields) -> String {
        let messages: usize = self.messages.iter().map(|message| message.len() + 1).sum();
        let tools: usize = self.tools.iter().map(|tool| tool.len() + 1).sum();
        let mut body = String::with_capacity(messages + tools + BASE_BODY_BYTES);
        body.push_str(r#"{"model":"#);
        body.push_str(&json!(model.name).to_string());
        body.push_str(r#","stream":true"#);
        if fields.usage == UsageField::Requested {
            body.push_str(r#","stream_options":{"include_usage":true}"#);
        }
        if let Some(temperature) = model.temperature {
            body.push_str(&format!(r#","temperature":{}"#, json!(temperature)));
        }
        if let Some(max_output_tokens) = model.max_output_tokens {
            let name = match fields.max_tokens_field {
                MaxTokensField::MaxTokens => "max_tokens",
                MaxTokensField::MaxCompletionTokens => "max_completion_tokens",
            };
            body.push_str(&format!(r#","{name}":{max_output_tokens}"#));
        }
        push_list(&mut body, "messages", self.messages);
        // Several servers refuse an empty list of tools.
        if !self.tools.is_empty() {
            push_list(&mut body, "tools", self.tools);
        }
        body.push('}');
        body
    }
}

/// The fields on which servers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestFields {
    pub(super) usage: UsageField,
    pub(super) max_tokens_field: MaxTokensField,
}

/// The name of the field that limits the length of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaxTokensField {
    MaxTokens,
    /// Required by newer models of one provider, which refuse the other name.
    MaxCompletionTokens,
}

/// Whether token usage is requested. A few servers refuse the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageField {
    Requested,
    Omitted,
}

/// Approximate size of a body without messages and tools, in bytes.
const BASE_BODY_BYTES: usize = 256;

fn push_list(body: &mut String, name: &str, items: &[&str]) {
    body.push_str(",\"");
    body.push_str(name);
    body.push_str("\":[");
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        body.push_str(item);
    }
    body.push(']');
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn model() -> ModelConfig {
        ModelConfig {
            base_url: "http://127.0.0.1:1".to_owned(),
            name: "a \"b\"".to_owned(),
            api_key_env: None,
            context_tokens: 1000,
            temperature: Some(0.2),
            max_output_tokens: Some(50),
            timeout_sec: 1,
            max_retries: 0,
        }
    }

    fn request_fields(usage: UsageField) -> RequestFields {
        RequestFields { usage, max_tokens_field: MaxTokensField::MaxTokens }
    }

    #[test]
    fn a_body_is_json_with_what_was_given() {
        let request = ModelRequest { messages: &[r#"{"role":"user","content":"hi"}"#], tools: &["{}", "{}"] };
        let body: Value =
            serde_json::from_str(&request.body(&model(), request_fields(UsageField::Requested))).unwrap();
        let expected = json!({
            "model": "a \"b\"", "stream": true, "stream_options": { "include_usage": true },
            "temperature": 0.2, "max_tokens": 50,
            "messages": [{ "role": "user", "content": "hi" }], "tools": [{}, {}],
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn unset_fields_are_omitted() {
        let model = ModelConfig { temperature: None, max_output_tokens: None, ..model() };
        let body =
            ModelRequest { messages: &[], tools: &[] }.body(&model, request_fields(UsageField::Omitted));
        assert_eq!(body, r#"{"model":"a \"b\"","stream":true,"messages":[]}"#);
    }
}
