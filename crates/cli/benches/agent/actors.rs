//! The fakes of the agent benchmark: a model without a server that writes journals, a tool runner that does nothing and
//! measures its calls, and an observer without output.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use abide_agent::{
    ask_human::HumanQuestion,
    definition::ToolDefinition,
    environment::{AbandonedAction, ActionOutcome, AgentObserver, ChatModel, HumanReply, ToolRunner},
    event::{ActionStatus, AgentJournalEntry, SessionChange},
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
    pub(crate) progress: &'a WritingProgress,
    pub(crate) calls: u64,
}

/// The number of events written, and the open session.
#[derive(Default)]
pub(crate) struct WritingProgress {
    pub(crate) events: std::cell::Cell<u64>,
    pub(crate) target_events: u64,
    session: std::cell::RefCell<Option<String>>,
}

impl WritingProgress {
    pub(crate) fn until(enough: u64) -> Self {
        Self { target_events: enough, ..Self::default() }
    }
}

impl ChatModel for ScriptedAuthor<'_> {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        _: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        if self.progress.events.get() >= self.progress.target_events {
            return Err(ModelError::Interrupted);
        }
        let open = self.progress.session.borrow().clone();
        let calls = match (self.words.below(40), open) {
            (0, Some(session)) => vec![self.call("session_end", &json!({ "session_id": session }))],
            (0..8, _) => {
                vec![self.call("shell", &json!({ "command": "cargo test -p store 2>&1 | tail -n 40" }))]
            }
            (8..12, _) => (0..3).map(|_| self.read_call()).collect(),
            (_, _) => vec![self.read_call()],
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
            finish_reason: FinishReason::ToolCalls,
            usage: Some(usage),
        })
    }
}

impl ScriptedAuthor<'_> {
    fn read_call(&mut self) -> ModelToolCall {
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
    pub(crate) requests_left: usize,
}

impl ChatModel for LimitedModel {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        self.requests_left = self.requests_left.checked_sub(1).ok_or(ModelError::Interrupted)?;
        self.client.think(request, on_delta)
    }
}

/// A tool runner whose calls return prepared output at once.
pub(crate) struct NoopToolRunner<'a> {
    /// The outputs of the next calls.
    pub(crate) outputs: VecDeque<String>,
    pub(crate) words: TextGenerator,
    /// The duration of each call.
    pub(crate) durations: Vec<Duration>,
    pub(crate) progress: &'a WritingProgress,
    pub(crate) sessions: u64,
}

impl<'a> NoopToolRunner<'a> {
    pub(crate) fn new(written: &'a WritingProgress, seed: u64) -> Self {
        let outputs = VecDeque::new();
        Self {
            outputs,
            words: TextGenerator::new(seed),
            durations: Vec::new(),
            progress: written,
            sessions: 0,
        }
    }
}

impl ToolRunner for NoopToolRunner<'_> {
    fn execute(&mut self, action_id: &str, tool: &ToolDefinition, _: &RawArguments) -> ActionOutcome {
        let began = Instant::now();
        let text = self.outputs.pop_front().unwrap_or_else(|| self.words.output());
        let mut done = ActionOutcome {
            status: ActionStatus::Success,
            exit_code: Some(0),
            execution_ref: Some(format!("executions/{action_id}")),
            ..ActionOutcome::refused(text)
        };
        if tool.stateful {
            let mut open = self.progress.session.borrow_mut();
            if open.is_none() {
                self.sessions += 1;
                *open = Some(format!("shell_{:06}", self.sessions));
                done.session_event = Some(SessionChange::Started);
            }
            done.session_id.clone_from(&open);
        }
        self.durations.push(began.elapsed());
        done
    }

    fn end_session(&mut self, session_id: &str) -> ActionOutcome {
        *self.progress.session.borrow_mut() = None;
        ActionOutcome {
            status: ActionStatus::Success,
            ..ActionOutcome::refused(format!("Session {session_id} terminated."))
        }
    }

    fn end_sessions(&mut self, _: &[String]) {
        *self.progress.session.borrow_mut() = None;
    }

    fn start_directory(&self, _: &ToolDefinition) -> String {
        "/".to_owned()
    }

    fn is_session_alive(&mut self, _: &str) -> bool {
        true
    }

    fn recover_action(&mut self, _: &str) -> Option<AbandonedAction> {
        None
    }

    fn end_sessions_except(&mut self, _: &[&str]) {}

    fn redact(&mut self, _: Vec<String>) {}
}

/// An observer that only counts events.
pub(crate) struct CountingObserver<'a>(pub(crate) &'a WritingProgress);

impl AgentObserver for CountingObserver<'_> {
    fn on_entry(&mut self, entry: &AgentJournalEntry, _: &str) {
        self.0.events.set(entry.seq);
    }

    fn on_reply_delta(&mut self, _: ReplyDelta<'_>) {}

    fn on_notice(&mut self, _: &str) {}

    fn ask_person(&mut self, _: &HumanQuestion) -> HumanReply {
        HumanReply::NoAnswer
    }
}

/// Returns the interrupt flag, cleared.
pub(crate) fn clear_interrupt(interrupt: &AtomicBool) -> &AtomicBool {
    interrupt.store(false, Ordering::Relaxed);
    interrupt
}
