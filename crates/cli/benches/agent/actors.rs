//! The fakes of the agent benchmark: a model without a server that writes journals, a tool runner that does nothing and
//! measures its calls, and an observer without output.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use abide_agent::{
    definition::ToolDefinition,
    event::{ActionStatus, AgentJournalEntry, SessionChange},
    hands::{AbandonedAction, ActionOutcome, AgentObserver, ChatModel, HumanReply, ToolRunner},
    human::HumanQuestion,
    model::{
        FinishReason, ModelClient, ModelError, ModelReply, ModelRequest, ModelToolCall, ReplyDelta,
        TokenUsage,
    },
    tool::RawArguments,
};
use serde_json::{Value, json};

use crate::words::TextGenerator;

/// Writes a journal: thinks, reads, works in sessions and ends them, until there are enough events.
pub(crate) struct ScriptedAuthor<'a> {
    pub(crate) words: TextGenerator,
    pub(crate) written: &'a WritingProgress,
    pub(crate) calls: u64,
}

/// The number of events written, and the open session.
#[derive(Default)]
pub(crate) struct WritingProgress {
    pub(crate) events: std::cell::Cell<u64>,
    pub(crate) enough: u64,
    session: std::cell::RefCell<Option<String>>,
}

impl WritingProgress {
    pub(crate) fn until(enough: u64) -> Self {
        Self { enough, ..Self::default() }
    }
}

impl ChatModel for ScriptedAuthor<'_> {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        _: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        if self.written.events.get() >= self.written.enough {
            return Err(ModelError::Interrupted);
        }
        let open = self.written.session.borrow().clone();
        let calls = match (self.words.below(40), open) {
            (0, Some(session)) => vec![self.call("session_end", &json!({ "session_id": session }))],
            (0..8, _) => {
                vec![self.call("shell", &json!({ "command": "cargo test -p store 2>&1 | tail -n 40" }))]
            }
            (8..12, _) => (0..3).map(|_| self.reading()).collect(),
            (_, _) => vec![self.reading()],
        };
        let length = 80 + self.words.below(500) as usize;
        let sent: usize = request.messages.iter().chain(request.tools).map(|json| json.len()).sum();
        let usage = TokenUsage {
            input_tokens: sent as u64 / 4,
            output_tokens: length as u64 / 4,
            ..TokenUsage::default()
        };
        Ok(ModelReply {
            text: Some(self.words.prose(length)),
            calls,
            finish: FinishReason::ToolCalls,
            usage: Some(usage),
        })
    }
}

impl ScriptedAuthor<'_> {
    fn reading(&mut self) -> ModelToolCall {
        let line = self.words.below(900);
        self.call("read", &json!({ "path": "crates/store/src/lib.rs", "from": line, "lines": 40 }))
    }

    fn call(&mut self, name: &str, arguments: &Value) -> ModelToolCall {
        self.calls += 1;
        ModelToolCall {
            id: format!("call_{:024}", self.calls),
            name: name.to_owned(),
            arguments: arguments.to_string(),
        }
    }
}

/// Uses the real model client for a limited number of requests, and then stops.
pub(crate) struct LimitedModel {
    pub(crate) client: ModelClient,
    pub(crate) left: usize,
}

impl ChatModel for LimitedModel {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        said: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        self.left = self.left.checked_sub(1).ok_or(ModelError::Interrupted)?;
        self.client.think(request, said)
    }
}

/// A tool runner whose calls return prepared output at once.
pub(crate) struct NoopToolRunner<'a> {
    /// The outputs of the next calls.
    pub(crate) outputs: VecDeque<String>,
    pub(crate) words: TextGenerator,
    /// The duration of each call.
    pub(crate) took: Vec<Duration>,
    pub(crate) written: &'a WritingProgress,
    pub(crate) sessions: u64,
}

impl<'a> NoopToolRunner<'a> {
    pub(crate) fn new(written: &'a WritingProgress, seed: u64) -> Self {
        let outputs = VecDeque::new();
        Self { outputs, words: TextGenerator::new(seed), took: Vec::new(), written, sessions: 0 }
    }
}

impl ToolRunner for NoopToolRunner<'_> {
    fn carry_out(&mut self, action_id: &str, tool: &ToolDefinition, _: &RawArguments) -> ActionOutcome {
        let began = Instant::now();
        let text = self.outputs.pop_front().unwrap_or_else(|| self.words.output());
        let mut done = ActionOutcome {
            status: ActionStatus::Success,
            exit_code: Some(0),
            execution_ref: Some(format!("executions/{action_id}")),
            ..ActionOutcome::refused(text)
        };
        if tool.stateful {
            let mut open = self.written.session.borrow_mut();
            if open.is_none() {
                self.sessions += 1;
                *open = Some(format!("shell_{:06}", self.sessions));
                done.session_event = Some(SessionChange::Started);
            }
            done.session_id.clone_from(&open);
        }
        self.took.push(began.elapsed());
        done
    }

    fn end_session(&mut self, session_id: &str) -> ActionOutcome {
        *self.written.session.borrow_mut() = None;
        ActionOutcome {
            status: ActionStatus::Success,
            ..ActionOutcome::refused(format!("Session {session_id} terminated."))
        }
    }

    fn end_sessions(&mut self, _: &[String]) {
        *self.written.session.borrow_mut() = None;
    }

    fn start_directory(&self, _: &ToolDefinition) -> String {
        "/".to_owned()
    }

    fn is_alive(&mut self, _: &str) -> bool {
        true
    }

    fn abandon(&mut self, _: &str) -> Option<AbandonedAction> {
        None
    }

    fn end_others(&mut self, _: &[&str]) {}

    fn keep_out(&mut self, _: Vec<String>) {}
}

/// An observer that only counts events.
pub(crate) struct CountingObserver<'a>(pub(crate) &'a WritingProgress);

impl AgentObserver for CountingObserver<'_> {
    fn happened(&mut self, entry: &AgentJournalEntry, _: &str) {
        self.0.events.set(entry.seq);
    }

    fn saying(&mut self, _: ReplyDelta<'_>) {}

    fn note(&mut self, _: &str) {}

    fn ask(&mut self, _: &HumanQuestion) -> HumanReply {
        HumanReply::Nobody
    }
}

/// Returns the interrupt flag, cleared.
pub(crate) fn undisturbed(interrupt: &AtomicBool) -> &AtomicBool {
    interrupt.store(false, Ordering::Relaxed);
    interrupt
}
