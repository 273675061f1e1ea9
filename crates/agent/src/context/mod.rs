//! What the model is shown: messages that are a pure function of the journal, kept as the JSON that is sent.
//!
//! A batch of calls appears when its last result is there, and whatever was said meanwhile follows it, so the order that
//! services demand (a call, exactly its results, then anything else) holds in every state. Notices of ours are sent in the
//! user's role with a mark in front: a system message in the middle of a conversation is refused by several servers and
//! moved to its head by others, and a role of our own by all.
//!
//! An event costs what it adds. The window is shortened only when it has grown past most of what the model can take, and
//! then far enough that it does not happen again soon.
//!
//! Not here: the request and its tools (`model`), and what the events mean for the run (`story`).

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
    /// What all pieces take.
    bytes: usize,
    /// What is sent with every request beside the messages.
    overhead: usize,
    /// What the model can take, in tokens.
    most: u64,
    /// Tokens for each byte, as the server last counted them.
    rate: f64,
    /// A batch whose results are not all there.
    batch: Option<CallBatch>,
    /// How many batches there were.
    batches: u64,
    /// What was left out.
    left_out: OmittedCounts,
    /// The state folder, as the model can reach it from its working directory.
    state: String,
}

/// One message.
#[derive(Debug)]
struct ContextMessage {
    json: String,
    kind: ContextMessageKind,
}

#[derive(Debug, PartialEq, Eq)]
enum ContextMessageKind {
    System,
    /// Something that a person or Abide said.
    Said,
    /// Where something was left out.
    Gap,
    /// What the model said when it called nothing.
    Spoken,
    /// Calls of a batch.
    Calls {
        batch: u64,
    },
    /// A result of a batch, what is left of it when it is old, and where all of it lies.
    Result {
        batch: u64,
        short: Option<String>,
        place: String,
        size: usize,
    },
}

/// What is no longer shown.
#[derive(Debug, Default)]
struct OmittedCounts {
    exchanges: u64,
    messages: u64,
    /// Calls of a batch of which others are shown.
    calls: u64,
}

#[derive(Debug)]
struct CallBatch {
    text: Option<String>,
    owed: u64,
    requests: Vec<ActionRequest>,
    results: HashMap<String, ActionResult>,
    /// What was said while it was open.
    held: Vec<String>,
}

impl ContextWindow {
    /// A conversation with nothing but a system prompt, for a model that can take so many tokens. The overhead is what
    /// the description of the tools takes, in bytes; the state folder is told as the model can reach it.
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

    /// About how many tokens a request with these messages has.
    pub fn tokens(&self) -> u64 {
        self.tokens_of(self.bytes + self.overhead)
    }

    /// About how many tokens the system prompt has, and how many the description of the tools.
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

    /// About how many bytes of messages make a request of so many tokens.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate of something that is far smaller than 2^53"
    )]
    fn bytes_of(&self, tokens: u64) -> usize {
        ((tokens as f64 / self.rate) as usize).saturating_sub(self.overhead)
    }

    /// Takes in the next event, as it may be shown. Its texts are moved, not copied.
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
        // The model was asked: what was shortened before that is shortened when the journal is read again.
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

    /// The server's own count of what was just sent is better than any guess.
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

/// What stands in front of what Abide says.
pub const NOTICE: &str = "[notice from abide, not from the person]";

/// Tokens for each byte before a server has counted any.
const USUAL_RATE: f64 = 0.25;
const LOWEST_RATE: f64 = 0.1;
const HIGHEST_RATE: f64 = 1.0;

#[cfg(test)]
mod tests;
