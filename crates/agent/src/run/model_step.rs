//! Sends the conversation to the model, and journals its reply before any call is executed.

use std::collections::HashSet;

use abide_os::random;
use serde_json::Value;

use super::{AgentRunError, AgentRunner, tool_descriptions, tool_step};
use crate::{
    event::{ActionRequest, AgentEvent, EndStatus, ModelThought},
    model::{FinishReason, ModelError, ModelReply, ModelRequest, ModelToolCall, TokenUsage},
    tool::RawArguments,
};

impl AgentRunner<'_> {
    pub(super) fn think(&mut self) -> Result<(), AgentRunError> {
        let tools = tool_descriptions(self.definition, self.human_availability);
        let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
        self.state.context.shorten_if_full();
        loop {
            let messages = self.state.context.messages();
            let request = ModelRequest { messages: &messages, tools: &tools };
            let observer = &mut *self.deps.observer;
            let error = match self.deps.model.think(&request, &mut |piece| observer.on_reply_delta(piece)) {
                Ok(reply) => return self.record_reply(reply),
                Err(error) => error,
            };
            match error {
                // The loop polls the flag.
                ModelError::Interrupted => {
                    self.deps.interrupt.store(true, std::sync::atomic::Ordering::Relaxed);
                    return Ok(());
                }
                ModelError::ContextLength { .. } if self.state.context.shorten_after_refusal() => {
                    self.deps.observer.on_notice(
                        "the conversation is longer than the model's context window; older parts are omitted",
                    );
                }
                ModelError::ContextLength { .. } => {
                    let reason = self.context_too_long_reason(&error);
                    return self.end_run(EndStatus::Failed, Some(reason), None);
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
                    return self.end_run(EndStatus::Failed, Some(error.to_string()), None);
                }
            }
        }
    }

    /// The error for a conversation that cannot be shortened further, with the remedy.
    fn context_too_long_reason(&self, error: &ModelError) -> String {
        let (system, tools) = self.state.context.fixed_tokens();
        let context = self.definition.model.context_tokens;
        format!(
            "{error}; everything that can be shortened has been. The system prompt takes about {system} tokens and the \
             tools' descriptions about {tools}, of model.context_tokens: {context}. Choose a model with a larger window, \
             or shorten system_prompt.md or the tools, then run the same command again"
        )
    }

    /// Journals a reply with all of its calls in one append (decision 0013).
    fn record_reply(&mut self, reply: ModelReply) -> Result<(), AgentRunError> {
        let ModelReply { text, calls, finish_reason: finish, usage } = reply;
        let usage_estimated = usage.is_none();
        let usage = Some(usage.unwrap_or_else(|| self.estimate_usage(text.as_deref(), &calls)));
        let finish = Some(finish_reason_name(finish));
        let thought = ModelThought { text, calls: calls.len() as u64, finish, usage, usage_estimated };
        let first = self.state.next_seq() + 1;
        let mut used = HashSet::new();
        let mut events = vec![AgentEvent::Thought(thought)];
        for (seq, call) in (first..).zip(calls) {
            let ModelToolCall { mut id, name, arguments: _ } = call.clone();
            // With a repeated id, a result would be attributed to the wrong call.
            if id.is_empty() || self.state.journal_state.has_call_id(&id) || !used.insert(id.clone()) {
                id = format!("call_{seq}_{}", random::name(6));
            }
            let (tool_args, tool_args_raw) = match RawArguments::parse(&call.arguments) {
                Ok(RawArguments { values, exact_numbers: exact }) if exact.is_empty() => {
                    (Value::Object(values), None)
                }
                Ok(RawArguments { values, .. }) => (Value::Object(values), Some(call.arguments)),
                Err(_) => (Value::Null, Some(call.arguments)),
            };
            events.push(AgentEvent::ActionRequest(ActionRequest {
                action_id: format!("act_{seq}_{}", random::name(4)),
                call_id: id,
                tool_name: tool_step::journal_name(name),
                tool_args,
                tool_args_raw,
            }));
        }
        Ok(self.record(events)?)
    }

    /// Estimated token usage of a reply, if the server does not report it. The token budget applies there too.
    fn estimate_usage(&self, text: Option<&str>, calls: &[ModelToolCall]) -> TokenUsage {
        let output_bytes =
            text.map_or(0, str::len) + calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        TokenUsage {
            input_tokens: self.state.context.tokens(),
            output_tokens: (output_bytes as u64).div_ceil(4),
            ..TokenUsage::default()
        }
    }
}

fn finish_reason_name(finish: FinishReason) -> String {
    match finish {
        FinishReason::Stop => "stop".to_owned(),
        FinishReason::ToolCalls => "tool_calls".to_owned(),
        FinishReason::Length => "length".to_owned(),
        FinishReason::ContentFilter => "content_filter".to_owned(),
        FinishReason::Other(reason) => reason,
    }
}
