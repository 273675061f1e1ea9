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
//! The request and its tools are in `model`, and the state of the run is in `story`.

mod excerpt;
mod shorten;

use std::collections::HashMap;

use crate::{
    event::{ActionRequest, ActionResult, AgentEvent, MessageLevel, ModelThought},
    memory::JOURNAL,
    model::{ChatMessage, ModelToolCall},
};

/// The messages of a conversation, ready to be sent.
#[derive(Debug)]
pub struct ContextWindow {
    pieces: Vec<ContextMessage>,
    /// Total size of all messages.
    bytes: usize,
    /// Size of the tool descriptions, which are part of each request, in bytes.
    overhead: usize,
    /// The model's context length, in tokens.
    most: u64,
    /// Tokens per byte, from the server's last count.
    rate: f64,
    /// The batch that still lacks results.
    batch: Option<CallBatch>,
    /// Number of batches so far.
    batches: u64,
    left_out: OmittedCounts,
    /// Path of the state folder, relative to the model's working directory.
    state: String,
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
    Said,
    /// A note about omitted messages.
    Gap,
    /// A reply of the model without calls.
    Spoken,
    /// A reply of the model with calls.
    Calls {
        batch: u64,
    },
    /// A result of a batch, its short form, and the path of the complete output.
    Result {
        batch: u64,
        short: Option<String>,
        place: String,
        size: usize,
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
    owed: u64,
    requests: Vec<ActionRequest>,
    results: HashMap<String, ActionResult>,
    /// Messages that arrived while the batch was open.
    held: Vec<String>,
}

impl ContextWindow {
    /// A conversation with only a system prompt, for a model with a context of `most` tokens. `overhead` is the size of
    /// the tool descriptions in bytes. `state` is the state folder's path, relative to the model's working directory.
    pub fn new(system_prompt: &str, most: u64, overhead: usize, state: &str) -> Self {
        let mut window = Self {
            pieces: Vec::new(),
            bytes: 0,
            overhead,
            most,
            rate: USUAL_RATE,
            batch: None,
            batches: 0,
            left_out: OmittedCounts::default(),
            state: state.to_owned(),
        };
        if !system_prompt.trim().is_empty() {
            window.push(ChatMessage::System(system_prompt.to_owned()).json(), ContextMessageKind::System);
        }
        window
    }

    /// The messages, each a JSON object.
    pub fn messages(&self) -> Vec<&str> {
        self.pieces.iter().map(|piece| piece.json.as_str()).collect()
    }

    /// Estimated number of tokens of a request with these messages.
    pub fn tokens(&self) -> u64 {
        self.tokens_of(self.bytes + self.overhead)
    }

    /// Estimated number of tokens of the system prompt and of the tool descriptions.
    pub fn fixed(&self) -> (u64, u64) {
        let system = self.pieces.iter().filter(|piece| piece.kind == ContextMessageKind::System);
        let system: usize = system.map(|piece| piece.json.len()).sum();
        (self.tokens_of(system), self.tokens_of(self.overhead))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate of something that is far smaller than 2^53"
    )]
    fn tokens_of(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.rate) as u64
    }

    /// Estimated size of the messages, in bytes, for a request of this many tokens.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate of something that is far smaller than 2^53"
    )]
    fn bytes_of(&self, tokens: u64) -> usize {
        ((tokens as f64 / self.rate) as usize).saturating_sub(self.overhead)
    }

    /// Applies the next event, with secrets revealed. Its texts are moved, not copied.
    pub fn apply(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::RunStart(_) | AgentEvent::RunEnd(_) => {}
            AgentEvent::UserMessage(message) => self.say(message.text),
            AgentEvent::SystemMessage(message) => match message.level {
                MessageLevel::Info => {}
                MessageLevel::Warn => self.say(format!("{NOTICE} {}", message.content)),
            },
            AgentEvent::Thought(thought) => self.thought(thought),
            AgentEvent::ActionRequest(request) => {
                if let Some(batch) = &mut self.batch {
                    batch.requests.push(request);
                }
            }
            AgentEvent::ActionResult(result) => self.result(result),
        }
    }

    fn say(&mut self, text: String) {
        match &mut self.batch {
            Some(batch) => batch.held.push(text),
            None => self.push(ChatMessage::User(text).json(), ContextMessageKind::Said),
        }
    }

    fn thought(&mut self, thought: ModelThought) {
        // A reply follows a request, before which the window was shortened. A replay of the journal has to shorten at
        // the same point.
        self.fit();
        self.learn(&thought);
        if thought.calls > 0 {
            let (owed, text) = (thought.calls, thought.text);
            self.batch = Some(CallBatch {
                text,
                owed,
                requests: Vec::new(),
                results: HashMap::new(),
                held: Vec::new(),
            });
        } else if !thought.is_empty() {
            let message = ChatMessage::Assistant { text: thought.text, calls: Vec::new() };
            self.push(message.json(), ContextMessageKind::Spoken);
        }
    }

    /// Updates the token rate from the server's count for the last request.
    fn learn(&mut self, thought: &ModelThought) {
        let counted = thought.usage.map_or(0, |usage| usage.input_tokens);
        if counted > 0 {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let rate = counted as f64 / (self.bytes + self.overhead).max(1) as f64;
            self.rate = rate.clamp(LOWEST_RATE, HIGHEST_RATE);
        }
    }

    fn result(&mut self, result: ActionResult) {
        let Some(mut batch) = self.batch.take() else { return };
        batch.results.insert(result.action_id.clone(), result);
        if (batch.results.len() as u64) < batch.owed {
            self.batch = Some(batch);
            return;
        }
        self.batches += 1;
        let number = self.batches;
        let CallBatch { text, owed: _, requests, mut results, held } = batch;
        let calls = requests.iter().map(call).collect();
        self.push(ChatMessage::Assistant { text, calls }.json(), ContextMessageKind::Calls { batch: number });
        for request in requests {
            let Some(result) = results.remove(&request.action_id) else { continue };
            let call_id = request.call_id;
            let short = shorten::pointer(&result, &self.state).map(|text| {
                let call_id = call_id.clone();
                ChatMessage::Tool { call_id, text }.json()
            });
            let place = result.execution_ref.as_deref().unwrap_or(JOURNAL);
            let (place, size) = (format!("{}/{place}", self.state), result.observation_content.len());
            let json = ChatMessage::Tool { call_id, text: result.observation_content }.json();
            let short = short.filter(|short| short.len() < json.len());
            self.push(json, ContextMessageKind::Result { batch: number, short, place, size });
        }
        for text in held {
            self.push(ChatMessage::User(text).json(), ContextMessageKind::Said);
        }
    }

    fn push(&mut self, json: String, kind: ContextMessageKind) {
        self.bytes += json.len() + 1;
        self.pieces.push(ContextMessage { json, kind });
    }
}

fn call(request: &ActionRequest) -> ModelToolCall {
    let arguments = match &request.tool_args_raw {
        Some(raw) => raw.clone(),
        None => request.tool_args.to_string(),
    };
    ModelToolCall { id: request.call_id.clone(), name: request.tool_name.clone(), arguments }
}

/// Prefix of Abide's notices.
pub const NOTICE: &str = "[notice from abide, not from the person]";

/// Tokens per byte before the first count of a server.
const USUAL_RATE: f64 = 0.25;
const LOWEST_RATE: f64 = 0.1;
const HIGHEST_RATE: f64 = 1.0;

#[cfg(test)]
mod tests;
