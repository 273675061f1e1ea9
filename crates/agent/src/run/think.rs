//! Sends the conversation to the model, and journals its reply before any call is executed.

use std::collections::HashSet;

use serde_json::Value;

use super::{AgentRunError, AgentRunner, act, offers};
use crate::{
    clock,
    event::{ActionRequest, AgentEvent, EndStatus, ModelThought},
    model::{FinishReason, ModelError, ModelReply, ModelRequest, ModelToolCall, TokenUsage},
    tool::RawArguments,
};

impl AgentRunner<'_> {
    pub(super) fn think(&mut self) -> Result<(), AgentRunError> {
        let tools = offers(self.definition, self.company);
        let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
        self.memory.window.fit();
        loop {
            let messages = self.memory.window.messages();
            let request = ModelRequest { messages: &messages, tools: &tools };
            let voice = &mut *self.around.voice;
            let error = match self.around.mind.think(&request, &mut |piece| voice.saying(piece)) {
                Ok(reply) => return self.heard(reply),
                Err(error) => error,
            };
            match error {
                // The loop polls the flag.
                ModelError::Interrupted => {
                    self.around.interrupt.store(true, std::sync::atomic::Ordering::Relaxed);
                    return Ok(());
                }
                ModelError::ContextLength { .. } if self.memory.window.squeeze() => {
                    self.around
                        .voice
                        .note("the conversation is longer than the model's window: older parts are left out");
                }
                ModelError::ContextLength { .. } => {
                    let reason = self.too_long(&error);
                    return self.end(EndStatus::Failed, Some(reason), None);
                }
                ModelError::Config(_)
                | ModelError::Unauthorised { .. }
                | ModelError::UnknownModel { .. }
                | ModelError::NotFound { .. }
                | ModelError::Refused { .. }
                | ModelError::Quota { .. }
                | ModelError::RateLimited { .. }
                | ModelError::Unavailable { .. }
                | ModelError::TooLarge { .. } => {
                    return self.end(EndStatus::Failed, Some(error.to_string()), None);
                }
            }
        }
    }

    /// The error for a conversation that cannot be shortened further, with the remedy.
    fn too_long(&self, error: &ModelError) -> String {
        let (system, tools) = self.memory.window.fixed();
        let context = self.definition.model.context_tokens;
        format!(
            "{error}; everything that can be shortened has been. The system prompt takes about {system} tokens and the \
             tools' descriptions about {tools}, of model.context_tokens: {context}. Choose a model with a larger window, \
             or shorten system_prompt.md or the tools, then run the same command again"
        )
    }

    /// Journals a reply with all of its calls in one append (decision 0013).
    fn heard(&mut self, reply: ModelReply) -> Result<(), AgentRunError> {
        let ModelReply { text, calls, finish, usage } = reply;
        let is_estimated = usage.is_none();
        let usage = Some(usage.unwrap_or_else(|| self.guess(text.as_deref(), &calls)));
        let finish = Some(told(finish));
        let thought = ModelThought { text, calls: calls.len() as u64, finish, usage, is_estimated };
        let first = self.memory.next() + 1;
        let mut used = HashSet::new();
        let mut events = vec![AgentEvent::Thought(thought)];
        for (seq, call) in (first..).zip(calls) {
            let ModelToolCall { mut id, name, arguments: _ } = call.clone();
            // With a repeated id, a result would be attributed to the wrong call.
            if id.is_empty() || self.memory.story.knows_call(&id) || !used.insert(id.clone()) {
                id = format!("call_{seq}_{}", clock::fresh(6));
            }
            let (tool_args, tool_args_raw) = match RawArguments::parse(&call.arguments) {
                Ok(RawArguments { values, exact }) if exact.is_empty() => (Value::Object(values), None),
                Ok(RawArguments { values, .. }) => (Value::Object(values), Some(call.arguments)),
                Err(_) => (Value::Null, Some(call.arguments)),
            };
            events.push(AgentEvent::ActionRequest(ActionRequest {
                action_id: format!("act_{seq}_{}", clock::fresh(4)),
                call_id: id,
                tool_name: act::own_name(name),
                tool_args,
                tool_args_raw,
            }));
        }
        Ok(self.record(events)?)
    }

    /// Estimated token usage of a reply, if the server does not report it. The token budget applies there too.
    fn guess(&self, text: Option<&str>, calls: &[ModelToolCall]) -> TokenUsage {
        let said = text.map_or(0, str::len) + calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        TokenUsage {
            input_tokens: self.memory.window.tokens(),
            output_tokens: (said as u64).div_ceil(4),
            ..TokenUsage::default()
        }
    }
}

fn told(finish: FinishReason) -> String {
    match finish {
        FinishReason::Stop => "stop".to_owned(),
        FinishReason::ToolCalls => "tool_calls".to_owned(),
        FinishReason::Length => "length".to_owned(),
        FinishReason::ContentFilter => "content_filter".to_owned(),
        FinishReason::Other(reason) => reason,
    }
}
