//! The context window: messages as a pure function of the journal, stored as the JSON that is sent.
//!
//! A batch of calls is added when its last result has arrived, and messages that arrived meanwhile follow it. Services
//! require the order "call, exactly its results, other messages", which therefore holds in each state. Notices of Abide
//! are sent in the user's role with a prefix. Several servers refuse a system message inside a conversation, others
//! move it to the beginning, and all refuse unknown roles.
//!
//! The cost of an event is proportional to its size. The window is shortened only when it is nearly full, and then far
//! enough that this is rare.
//!
//! The request and its tools are in `model`, and the state of the run is in `journal_state`.

mod excerpt;
mod shorten;

use std::collections::HashMap;

use crate::{
    agent_state::JOURNAL_FILE,
    event::{ActionRequest, ActionResult, AgentEvent, MessageLevel, ModelThought},
    model::{ChatMessage, ModelToolCall},
};

/// The messages of a conversation, ready to be sent.
#[derive(Debug)]
pub struct ContextWindow {
    messages: Vec<ContextMessage>,
    /// Total size of all messages.
    message_bytes: usize,
    /// Size of the tool descriptions, which are part of each request, in bytes.
    tool_bytes: usize,
    /// The model's context length, in tokens.
    max_tokens: u64,
    /// Tokens per byte, from the server's last count.
    tokens_per_byte: f64,
    /// The batch that still lacks results.
    open_batch: Option<CallBatch>,
    /// Number of batches so far.
    batch_count: u64,
    omitted: OmittedCounts,
    /// Path of the state folder, relative to the model's working directory.
    state_path: String,
}

#[derive(Debug)]
struct ContextMessage {
    json: String,
    kind: ContextMessageKind,
}

#[derive(Debug, PartialEq, Eq)]
enum ContextMessageKind {
    System,
    /// A message of a person or a notice of Abide.
    User,
    /// A note about omitted messages.
    OmissionNote,
    /// A reply of the model without calls.
    AssistantText,
    /// A reply of the model with calls.
    AssistantCalls {
        batch: u64,
    },
    /// A result of a batch, its short form, and the path of the complete output.
    ToolResult {
        batch: u64,
        pointer: Option<String>,
        output_path: String,
        output_bytes: usize,
    },
}

/// Counts of omitted messages.
#[derive(Debug, Default)]
struct OmittedCounts {
    exchanges: u64,
    messages: u64,
    /// Omitted calls of batches that are partly shown.
    calls: u64,
}

#[derive(Debug)]
struct CallBatch {
    text: Option<String>,
    expected_results: u64,
    requests: Vec<ActionRequest>,
    results: HashMap<String, ActionResult>,
    /// Messages that arrived while the batch was open.
    deferred_messages: Vec<String>,
}

impl ContextWindow {
    /// A conversation with only a system prompt, for a model with a context of `max_tokens` tokens. `tool_bytes` is the
    /// size of the tool descriptions. `state` is the state folder's path, relative to the model's working directory.
    pub fn new(system_prompt: &str, max_tokens: u64, tool_bytes: usize, state: &str) -> Self {
        let mut window = Self {
            messages: Vec::new(),
            message_bytes: 0,
            tool_bytes,
            max_tokens,
            tokens_per_byte: DEFAULT_TOKENS_PER_BYTE,
            open_batch: None,
            batch_count: 0,
            omitted: OmittedCounts::default(),
            state_path: state.to_owned(),
        };
        if !system_prompt.trim().is_empty() {
            window.push(ChatMessage::System(system_prompt.to_owned()).to_json(), ContextMessageKind::System);
        }
        window
    }

    /// The messages, each a JSON object.
    pub fn messages(&self) -> Vec<&str> {
        self.messages.iter().map(|piece| piece.json.as_str()).collect()
    }

    /// Estimated number of tokens of a request with these messages.
    pub fn tokens(&self) -> u64 {
        self.tokens_of(self.message_bytes + self.tool_bytes)
    }

    /// Estimated number of tokens of the system prompt and of the tool descriptions.
    pub fn fixed_tokens(&self) -> (u64, u64) {
        let system = self.messages.iter().filter(|piece| piece.kind == ContextMessageKind::System);
        let system: usize = system.map(|piece| piece.json.len()).sum();
        (self.tokens_of(system), self.tokens_of(self.tool_bytes))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate of something that is far smaller than 2^53"
    )]
    fn tokens_of(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.tokens_per_byte) as u64
    }

    /// Estimated size of the messages, in bytes, for a request of this many tokens.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate of something that is far smaller than 2^53"
    )]
    fn bytes_of(&self, tokens: u64) -> usize {
        ((tokens as f64 / self.tokens_per_byte) as usize).saturating_sub(self.tool_bytes)
    }

    /// Applies the next event, with secrets revealed. Its texts are moved, not copied.
    pub fn apply(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::RunStart(_) | AgentEvent::RunEnd(_) => {}
            AgentEvent::UserMessage(message) => self.add_user_text(message.text),
            AgentEvent::SystemMessage(message) => match message.level {
                MessageLevel::Info => {}
                MessageLevel::Warn => self.add_user_text(format!("{NOTICE_PREFIX} {}", message.content)),
            },
            AgentEvent::Thought(thought) => self.add_thought(thought),
            AgentEvent::ActionRequest(request) => {
                if let Some(batch) = &mut self.open_batch {
                    batch.requests.push(request);
                }
            }
            AgentEvent::ActionResult(result) => self.add_result(result),
        }
    }

    fn add_user_text(&mut self, text: String) {
        match &mut self.open_batch {
            Some(batch) => batch.deferred_messages.push(text),
            None => self.push(ChatMessage::User(text).to_json(), ContextMessageKind::User),
        }
    }

    fn add_thought(&mut self, thought: ModelThought) {
        // A reply follows a request, before which the window was shortened. A replay of the journal has to shorten at
        // the same point.
        self.shorten_if_full();
        self.update_token_rate(&thought);
        if thought.calls > 0 {
            let (owed, text) = (thought.calls, thought.text);
            self.open_batch = Some(CallBatch {
                text,
                expected_results: owed,
                requests: Vec::new(),
                results: HashMap::new(),
                deferred_messages: Vec::new(),
            });
        } else if !thought.is_empty() {
            let message = ChatMessage::Assistant { text: thought.text, calls: Vec::new() };
            self.push(message.to_json(), ContextMessageKind::AssistantText);
        }
    }

    /// Updates the token rate from the server's count for the last request.
    fn update_token_rate(&mut self, thought: &ModelThought) {
        let input_tokens = thought.usage.map_or(0, |usage| usage.input_tokens);
        if input_tokens > 0 {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let rate = input_tokens as f64 / (self.message_bytes + self.tool_bytes).max(1) as f64;
            self.tokens_per_byte = rate.clamp(MIN_TOKENS_PER_BYTE, MAX_TOKENS_PER_BYTE);
        }
    }

    fn add_result(&mut self, result: ActionResult) {
        let Some(mut batch) = self.open_batch.take() else { return };
        batch.results.insert(result.action_id.clone(), result);
        if (batch.results.len() as u64) < batch.expected_results {
            self.open_batch = Some(batch);
            return;
        }
        self.batch_count += 1;
        let number = self.batch_count;
        let CallBatch { text, expected_results: _, requests, mut results, deferred_messages: held } = batch;
        let calls = requests.iter().map(to_model_call).collect();
        self.push(
            ChatMessage::Assistant { text, calls }.to_json(),
            ContextMessageKind::AssistantCalls { batch: number },
        );
        for request in requests {
            let Some(result) = results.remove(&request.action_id) else { continue };
            let call_id = request.call_id;
            let short = shorten::pointer(&result, &self.state_path).map(|text| {
                let call_id = call_id.clone();
                ChatMessage::Tool { call_id, text }.to_json()
            });
            let output_path = result.execution_ref.as_deref().unwrap_or(JOURNAL_FILE);
            let (output_path, size) =
                (format!("{}/{output_path}", self.state_path), result.observation_content.len());
            let json = ChatMessage::Tool { call_id, text: result.observation_content }.to_json();
            let short = short.filter(|short| short.len() < json.len());
            self.push(
                json,
                ContextMessageKind::ToolResult {
                    batch: number,
                    pointer: short,
                    output_path,
                    output_bytes: size,
                },
            );
        }
        for text in held {
            self.push(ChatMessage::User(text).to_json(), ContextMessageKind::User);
        }
    }

    fn push(&mut self, json: String, kind: ContextMessageKind) {
        self.message_bytes += json.len() + 1;
        self.messages.push(ContextMessage { json, kind });
    }
}

fn to_model_call(request: &ActionRequest) -> ModelToolCall {
    let arguments = match &request.tool_args_raw {
        Some(raw) => raw.clone(),
        None => request.tool_args.to_string(),
    };
    ModelToolCall { id: request.call_id.clone(), name: request.tool_name.clone(), arguments }
}

/// Prefix of Abide's notices.
pub const NOTICE_PREFIX: &str = "[notice from abide, not from the person]";

/// Tokens per byte before the first count of a server.
const DEFAULT_TOKENS_PER_BYTE: f64 = 0.25;
const MIN_TOKENS_PER_BYTE: f64 = 0.1;
const MAX_TOKENS_PER_BYTE: f64 = 1.0;

#[cfg(test)]
mod tests;
