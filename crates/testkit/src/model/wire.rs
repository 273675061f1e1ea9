//! The wires that agent programs speak to models, and where each is heard.
//!
//! What a wire's requests and answers look like is said in the module of its name.

use serde_json::Value;

use super::{
    anthropic, chat, gemini,
    heard::{MessageRole, ReceivedMessage, ReceivedRequest},
    reply::PreparedReply,
    responses,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelProtocol {
    /// OpenAI's responses.
    Responses,
    /// OpenAI's chat completions, which many services imitate.
    Chat,
    /// Google's generated content.
    Gemini,
    /// Anthropic's messages.
    Anthropic,
}

/// What a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerMode {
    /// An answer in pieces.
    Stream,
    /// An answer in one piece.
    Whole,
    /// Only how long the request is.
    Count,
}

/// The parts of a request that each wire spells in its own way.
#[derive(Debug, Default)]
pub(super) struct ParsedRequest {
    pub model: String,
    /// Instructions that stand apart from the messages.
    pub system: Vec<String>,
    pub messages: Vec<ReceivedMessage>,
    pub tools: Vec<String>,
    pub schema: Option<Value>,
}

impl ModelProtocol {
    /// What a POST to `path` with this body wants, and on which wire.
    pub(super) fn of(path: &str, body: &Value) -> Option<(Self, AnswerMode)> {
        let path = path.trim_end_matches('/');
        let flagged = if body["stream"] == true { AnswerMode::Stream } else { AnswerMode::Whole };
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
            "generateContent" => Some((Self::Gemini, AnswerMode::Whole)),
            "countTokens" => Some((Self::Gemini, AnswerMode::Count)),
            _ => None,
        }
    }

    /// A request as it was meant, the first of its server and without a key.
    pub(super) fn hear(self, path: &str, raw: Value) -> ReceivedRequest {
        let ParsedRequest { model, mut system, messages, tools, schema } = self.read(path, &raw);
        let among = messages.iter().filter(|message| message.role == MessageRole::System);
        system.extend(among.map(ReceivedMessage::text));
        let system = system.join("\n\n");
        ReceivedRequest {
            at: 0,
            wire: self,
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

    /// An answer in pieces, each of which is one event on the wire.
    pub(super) fn stream(self, reply: &PreparedReply<'_>, heard: &ReceivedRequest) -> Vec<String> {
        match self {
            Self::Responses => responses::stream(reply, heard),
            Self::Chat => chat::stream(reply, heard),
            Self::Gemini => gemini::stream(reply),
            Self::Anthropic => anthropic::stream(reply),
        }
    }

    /// An answer in one piece.
    pub(super) fn whole(self, reply: &PreparedReply<'_>, heard: &ReceivedRequest) -> Value {
        match self {
            Self::Responses => responses::whole(reply, heard),
            Self::Chat => chat::whole(reply),
            Self::Gemini => gemini::whole(reply),
            Self::Anthropic => anthropic::whole(reply),
        }
    }

    /// How the length of a request is told.
    pub(super) fn count(self, tokens: u64) -> Value {
        match self {
            Self::Gemini => gemini::count(tokens),
            Self::Responses | Self::Chat | Self::Anthropic => anthropic::count(tokens),
        }
    }

    /// How this wire says that something went wrong.
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
        assert_eq!(of("/v1beta/models/g:generateContent"), Some((ModelProtocol::Gemini, AnswerMode::Whole)));
        assert_eq!(of("/v1beta/models/g:countTokens"), Some((ModelProtocol::Gemini, AnswerMode::Count)));
        assert_eq!(of("/telemetry"), None);
        assert_eq!(
            ModelProtocol::of("/v1/responses", &json!({})),
            Some((ModelProtocol::Responses, AnswerMode::Whole))
        );
    }
}
