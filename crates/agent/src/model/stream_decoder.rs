//! Decodes a response incrementally: bytes in, a complete [`ModelReply`] or a fault out.
//!
//! It uses neither a connection nor a clock. The bytes are a stream of events or, from servers that ignore the request
//! for a stream, one JSON object. A reply is accepted only after the server has marked it as complete.

use abide_os::sse::SseParser;
use serde_json::Value;

use super::{
    json_depth::flatten,
    reply::{FinishReason, ModelReply, ReplyDelta, TokenUsage},
    tool_calls::ToolCallAssembler,
};

/// Decodes one response. Call [`Self::feed`] for each chunk, then [`Self::end`].
#[derive(Debug, Default)]
pub(super) struct StreamDecoder {
    format: BodyFormat,
    received_bytes: usize,
    text: String,
    calls: ToolCallAssembler,
    finish_reason: Option<String>,
    usage: Option<TokenUsage>,
    has_ended: bool,
}

/// The format of the body, detected from its first byte that is not white space.
#[derive(Debug, Default)]
enum BodyFormat {
    #[default]
    Unknown,
    EventStream(SseParser),
    Json(Vec<u8>),
}

/// The reason why a response is not a reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DecodeFault {
    /// The response is truncated or invalid; a retry may help.
    Broken(String),
    /// The server sent an error object instead of a reply.
    ErrorObject(Value),
    /// The response exceeds [`MAX_RESPONSE_BYTES`].
    TooLarge,
}

/// The progress of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeProgress {
    Open,
    /// The reply is complete, except perhaps for its token usage.
    Complete,
    /// The server has sent its end marker.
    Ended,
}

/// Deeper parts of a response are kept as text, because the parser refuses more than 128 levels. The limit is above the
/// one for arguments, so that arguments which a server sends as an object are refused for their depth.
const MAX_DEPTH: usize = 100;

/// Size limit of a response in bytes. A stream uses about 200 bytes per token.
pub(super) const MAX_RESPONSE_BYTES: usize = 64 << 20;

impl StreamDecoder {
    /// Consumes bytes and reports the pieces in them.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<DecodeProgress, DecodeFault> {
        self.received_bytes = self.received_bytes.saturating_add(bytes.len());
        if self.received_bytes > MAX_RESPONSE_BYTES {
            return Err(DecodeFault::TooLarge);
        }
        let bytes = match self.format {
            BodyFormat::Unknown => {
                let blank = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                match bytes.get(blank) {
                    None => return Ok(DecodeProgress::Open),
                    Some(b'{' | b'[') => self.format = BodyFormat::Json(Vec::new()),
                    Some(_) => self.format = BodyFormat::EventStream(SseParser::default()),
                }
                &bytes[blank..]
            }
            BodyFormat::EventStream(_) | BodyFormat::Json(_) => bytes,
        };
        let events = match &mut self.format {
            BodyFormat::Json(body) => {
                body.extend_from_slice(bytes);
                Vec::new()
            }
            BodyFormat::EventStream(events) => events.feed(bytes),
            BodyFormat::Unknown => Vec::new(),
        };
        for data in events {
            self.handle_event(&data, on_delta)?;
        }
        Ok(match (self.has_ended, &self.finish_reason) {
            (true, _) => DecodeProgress::Ended,
            (false, Some(_)) => DecodeProgress::Complete,
            (false, None) => DecodeProgress::Open,
        })
    }

    /// Ends the response and returns the reply, if it is complete.
    pub(super) fn end(
        mut self,
        new_call_id: impl FnMut() -> String,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, DecodeFault> {
        match std::mem::take(&mut self.format) {
            BodyFormat::Unknown => {}
            BodyFormat::EventStream(events) => {
                if let Some(data) = events.end() {
                    self.handle_event(&data, on_delta)?;
                }
            }
            BodyFormat::Json(body) => {
                let broken = |error: &dyn std::fmt::Display| {
                    DecodeFault::Broken(format!("the answer is not complete JSON: {error}"))
                };
                let body = std::str::from_utf8(&body).map_err(|error| broken(&error))?;
                let value: Value =
                    serde_json::from_str(&flatten(body, MAX_DEPTH)).map_err(|error| broken(&error))?;
                self.handle_chunk(&value, on_delta)?;
                self.has_ended = true;
            }
        }
        self.into_reply(new_call_id)
    }

    fn handle_event(
        &mut self,
        data: &str,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<(), DecodeFault> {
        if self.has_ended || data.trim().is_empty() {
            return Ok(());
        }
        if data.trim() == "[DONE]" {
            self.has_ended = true;
            return Ok(());
        }
        match serde_json::from_str::<Value>(&flatten(data, MAX_DEPTH)) {
            Ok(value) => self.handle_chunk(&value, on_delta),
            // Some servers omit the empty line between events.
            Err(_) if data.contains('\n') => {
                data.lines().try_for_each(|line| self.handle_event(line, on_delta))
            }
            Err(error) => Err(DecodeFault::Broken(format!("an event of the answer is not JSON: {error}"))),
        }
    }

    fn handle_chunk(
        &mut self,
        chunk: &Value,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<(), DecodeFault> {
        if !chunk["error"].is_null() {
            return Err(DecodeFault::ErrorObject(chunk.clone()));
        }
        let choices = chunk["choices"].as_array().map_or(&[][..], Vec::as_slice);
        let first = choices.iter().find(|choice| choice["index"].as_u64().unwrap_or(0) == 0);
        let choice = first.unwrap_or(&Value::Null);
        self.usage = parse_usage(&chunk["usage"]).or_else(|| parse_usage(&choice["usage"])).or(self.usage);
        let is_empty_so_far = self.text.is_empty() && self.calls.is_empty();
        let message = match (&choice["delta"], &choice["message"]) {
            (delta @ Value::Object(_), _) => delta,
            // A `message` instead of a `delta` repeats the complete text, so it is used only if nothing was received
            // before.
            (_, message) if is_empty_so_far => message,
            (_, _) => &Value::Null,
        };
        self.handle_message(message, on_delta);
        if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
            self.finish_reason = Some(reason.to_owned());
        }
        Ok(())
    }

    fn handle_message(&mut self, message: &Value, on_delta: &mut dyn FnMut(ReplyDelta<'_>)) {
        for name in ["reasoning_content", "reasoning"] {
            if let Some(thought) = message[name].as_str().filter(|thought| !thought.is_empty()) {
                on_delta(ReplyDelta::Reasoning(thought));
                break;
            }
        }
        let parts = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        let parts = parts.iter().filter_map(|part| part["text"].as_str());
        let whole = message["content"].as_str().into_iter().chain(message["refusal"].as_str());
        for text in whole.chain(parts).filter(|text| !text.is_empty()) {
            self.text.push_str(text);
            on_delta(ReplyDelta::Text(text));
        }
        for piece in message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice) {
            if let Some(name) = self.calls.push_delta(piece) {
                on_delta(ReplyDelta::Call(name));
            }
        }
    }

    fn into_reply(self, new_call_id: impl FnMut() -> String) -> Result<ModelReply, DecodeFault> {
        if !self.has_ended && self.finish_reason.is_none() {
            return Err(DecodeFault::Broken("the connection ended before the answer did".to_owned()));
        }
        let mut calls = self.calls.finish(new_call_id);
        let text = Some(self.text).filter(|text| !text.trim().is_empty());
        let finish = match self.finish_reason.as_deref() {
            Some("length" | "max_tokens") => FinishReason::Length,
            Some("content_filter") => FinishReason::ContentFilter,
            Some("error") => {
                return Err(DecodeFault::Broken("the server stopped in the middle of the answer".to_owned()));
            }
            // Servers report `stop` or `tool_calls` inconsistently, so the presence of calls decides.
            _ if !calls.is_empty() => FinishReason::ToolCalls,
            Some("stop" | "tool_calls" | "function_call") | None => FinishReason::Stop,
            Some(other) => FinishReason::Other(other.to_owned()),
        };
        match finish {
            FinishReason::Length | FinishReason::ContentFilter => {
                // A truncated call must not be executed, and empty arguments may be truncated ones.
                calls.retain(|call| !call.arguments.trim().is_empty() && call.parsed_arguments().is_ok());
            }
            FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Other(_) => {
                if text.is_none() && calls.is_empty() {
                    return Err(DecodeFault::Broken("the answer is empty".to_owned()));
                }
            }
        }
        if calls.iter().any(|call| call.name.is_empty()) {
            return Err(DecodeFault::Broken("the answer calls a tool without a name".to_owned()));
        }
        Ok(ModelReply { text, calls, finish_reason: finish, usage: self.usage })
    }
}

fn parse_usage(usage: &Value) -> Option<TokenUsage> {
    let number = |value: &Value| value.as_u64();
    let cached = number(&usage["prompt_tokens_details"]["cached_tokens"]);
    Some(TokenUsage {
        input_tokens: number(&usage["prompt_tokens"])?,
        output_tokens: number(&usage["completion_tokens"]).unwrap_or(0),
        cached_tokens: cached.or_else(|| number(&usage["prompt_cache_hit_tokens"])).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests;
