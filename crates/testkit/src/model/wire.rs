//! The protocols between agent programs and models, and their paths.
//!
//! The formats of requests and answers are in the module of each protocol.

use serde_json::Value;

use super::{
    anthropic, chat, gemini,
    received::{MessageRole, ReceivedMessage, ReceivedRequest},
    reply::PreparedReply,
    responses,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelProtocol {
    /// OpenAI's responses API.
    Responses,
    /// OpenAI's chat completions API, which many services imitate.
    Chat,
    /// Google's `generateContent` API.
    Gemini,
    /// Anthropic's messages API.
    Anthropic,
}

/// The kind of response that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerMode {
    Stream,
    /// An answer in one piece.
    Unstreamed,
    /// Only the number of tokens of the request.
    Count,
}

/// The parts of a request whose format depends on the protocol.
#[derive(Debug, Default)]
pub(super) struct ParsedRequest {
    pub model: String,
    /// Instructions outside the messages.
    pub system: Vec<String>,
    pub messages: Vec<ReceivedMessage>,
    pub tools: Vec<String>,
    pub schema: Option<Value>,
}

impl ModelProtocol {
    /// Returns the protocol and the kind of response for a POST to `path` with this body.
    pub(super) fn of(path: &str, body: &Value) -> Option<(Self, AnswerMode)> {
        let path = path.trim_end_matches('/');
        let flagged = if body["stream"] == true { AnswerMode::Stream } else { AnswerMode::Unstreamed };
        if path.ends_with("/messages/count_tokens") {
            return Some((Self::Anthropic, AnswerMode::Count));
        }
        if path.ends_with("/messages") {
            return Some((Self::Anthropic, flagged));
        }
        if path.ends_with("/chat/completions") {
            return Some((Self::Chat, flagged));
        }
        if path.ends_with("/responses") {
            return Some((Self::Responses, flagged));
        }
        let (_, method) = path.rsplit_once(':').filter(|(model, _)| model.contains("/models/"))?;
        match method {
            "streamGenerateContent" => Some((Self::Gemini, AnswerMode::Stream)),
            "generateContent" => Some((Self::Gemini, AnswerMode::Unstreamed)),
            "countTokens" => Some((Self::Gemini, AnswerMode::Count)),
            _ => None,
        }
    }

    /// Parses a request. The result has index 0 and no API key.
    pub(super) fn parse_request(self, path: &str, raw: Value) -> ReceivedRequest {
        let ParsedRequest { model, mut system, messages, tools, schema } = self.read(path, &raw);
        let among = messages.iter().filter(|message| message.role == MessageRole::System);
        system.extend(among.map(ReceivedMessage::text));
        let system = system.join("\n\n");
        ReceivedRequest {
            index: 0,
            protocol: self,
            streaming: false,
            key: None,
            model,
            system,
            messages,
            tools,
            schema,
            raw,
        }
    }

    fn read(self, path: &str, body: &Value) -> ParsedRequest {
        match self {
            Self::Responses => responses::read(body),
            Self::Chat => chat::read(body),
            Self::Gemini => gemini::read(path, body),
            Self::Anthropic => anthropic::read(body),
        }
    }

    /// Formats a streamed answer; each element is one event.
    pub(super) fn stream(self, reply: &PreparedReply<'_>, request: &ReceivedRequest) -> Vec<String> {
        match self {
            Self::Responses => responses::stream(reply, request),
            Self::Chat => chat::stream(reply, request),
            Self::Gemini => gemini::stream(reply),
            Self::Anthropic => anthropic::stream(reply),
        }
    }

    /// Formats an answer in one piece.
    pub(super) fn unstreamed(self, reply: &PreparedReply<'_>, request: &ReceivedRequest) -> Value {
        match self {
            Self::Responses => responses::unstreamed(reply, request),
            Self::Chat => chat::unstreamed(reply),
            Self::Gemini => gemini::unstreamed(reply),
            Self::Anthropic => anthropic::unstreamed(reply),
        }
    }

    /// Formats a token count.
    pub(super) fn count(self, tokens: u64) -> Value {
        match self {
            Self::Gemini => gemini::count(tokens),
            Self::Responses | Self::Chat | Self::Anthropic => anthropic::count(tokens),
        }
    }

    pub(super) fn error(self, code: u16, message: &str) -> Value {
        match self {
            Self::Responses | Self::Chat => chat::error(code, message),
            Self::Gemini => gemini::error(code, message),
            Self::Anthropic => anthropic::error(code, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_tells_the_wire() {
        let stream = json!({ "stream": true });
        let of = |path: &str| ModelProtocol::of(path, &stream);
        assert_eq!(of("/v1/responses"), Some((ModelProtocol::Responses, AnswerMode::Stream)));
        assert_eq!(of("/v1/chat/completions"), Some((ModelProtocol::Chat, AnswerMode::Stream)));
        assert_eq!(of("/v1/messages"), Some((ModelProtocol::Anthropic, AnswerMode::Stream)));
        assert_eq!(of("/v1/messages/count_tokens"), Some((ModelProtocol::Anthropic, AnswerMode::Count)));
        assert_eq!(
            of("/v1beta/models/g:streamGenerateContent"),
            Some((ModelProtocol::Gemini, AnswerMode::Stream))
        );
        assert_eq!(
            of("/v1beta/models/g:generateContent"),
            Some((ModelProtocol::Gemini, AnswerMode::Unstreamed))
        );
        assert_eq!(of("/v1beta/models/g:countTokens"), Some((ModelProtocol::Gemini, AnswerMode::Count)));
        assert_eq!(of("/telemetry"), None);
        assert_eq!(
            ModelProtocol::of("/v1/responses", &json!({})),
            Some((ModelProtocol::Responses, AnswerMode::Unstreamed))
        );
    }
}
