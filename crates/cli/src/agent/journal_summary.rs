//! Summary of an agent's journal for `abide show`. It complements the daemon's view of the run. The journal is read
//! without a lock, because the agent may be running.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use abide_agent::{
    agent_state::JOURNAL_FILE,
    ask_human,
    event::{ActionStatus, AgentEvent, EndStatus, SessionChange},
    journal::AgentJournal,
    model::TokenUsage,
    state_directory::StateDirectory,
};
use serde::Serialize;

use super::SESSIONS_FOLDER;

/// Totals of a journal.
#[derive(Debug, Default, Serialize)]
pub(crate) struct AgentAccount {
    /// Path of the state folder.
    pub(crate) state_dir: PathBuf,
    pub(crate) runs: u64,
    pub(crate) messages: u64,
    pub(crate) iterations: u64,
    pub(crate) usage: TokenUsage,
    /// Number of calls per tool.
    pub(crate) calls: BTreeMap<String, u64>,
    /// Calls with an unknown outcome.
    pub(crate) unknown_outcomes: u64,
    /// Sessions of stateful tools; the value is whether the session is open.
    pub(crate) sessions: BTreeMap<String, bool>,
    pub(crate) questions: u64,
    pub(crate) answers: u64,
    /// Outcome of the last run; `None` while it is in progress.
    pub(crate) outcome: Option<EndStatus>,
    /// Error that ended reading before the end of the journal.
    pub(crate) journal_error: Option<String>,
}

impl AgentAccount {
    /// Reads the journal of an agent session in this workspace; `None` if there is none.
    pub(crate) fn of(workspace: &str, session: &str) -> Option<Self> {
        let state =
            StateDirectory::open(Path::new(workspace), &Path::new(SESSIONS_FOLDER).join(session)).ok()?;
        if !state.has_journal() {
            return None;
        }
        let mut account = Self { state_dir: state.path().to_owned(), ..Self::default() };
        let mut question_ids = Vec::new();
        match AgentJournal::read(&state) {
            Ok(journal) => {
                journal.entries.iter().for_each(|entry| account.add_event(&entry.event, &mut question_ids))
            }
            Err(error) => account.journal_error = Some(error.to_string()),
        }
        Some(account)
    }

    fn add_event(&mut self, event: &AgentEvent, question_ids: &mut Vec<String>) {
        match event {
            AgentEvent::RunStart(_) => {
                self.runs += 1;
                self.outcome = None;
            }
            AgentEvent::RunEnd(end) => self.outcome = Some(end.status),
            AgentEvent::UserMessage(_) => self.messages += 1,
            AgentEvent::Thought(thought) => {
                self.iterations += 1;
                let usage = thought.usage.unwrap_or_default();
                self.usage.input_tokens += usage.input_tokens;
                self.usage.output_tokens += usage.output_tokens;
                self.usage.cached_tokens += usage.cached_tokens;
            }
            AgentEvent::ActionRequest(request) if request.tool_name == ask_human::TOOL_NAME => {
                self.questions += 1;
                question_ids.push(request.action_id.clone());
            }
            AgentEvent::ActionRequest(request) => {
                *self.calls.entry(request.tool_name.clone()).or_default() += 1
            }
            AgentEvent::ActionResult(result) => {
                let is_answer =
                    question_ids.contains(&result.action_id) && result.status == ActionStatus::Success;
                self.answers += u64::from(is_answer);
                self.unknown_outcomes += u64::from(result.status == ActionStatus::Unknown);
                self.session(result.session_id.as_deref(), result.session_event);
            }
            AgentEvent::SystemMessage(message) => {
                self.session(message.session_id.as_deref(), message.session_event);
            }
        }
    }

    fn session(&mut self, id: Option<&str>, event: Option<SessionChange>) {
        if let (Some(id), Some(event)) = (id, event) {
            self.sessions.insert(id.to_owned(), event == SessionChange::Started);
        }
    }

    /// Returns labels and values for printing.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let named = |(name, count): (&String, &u64)| format!("{name} {count}");
        let calls: Vec<String> = self.calls.iter().map(named).collect();
        let session = |(id, open): (&String, &bool)| format!("{id} {}", if *open { "open" } else { "ended" });
        let sessions: Vec<String> = self.sessions.iter().map(session).collect();
        let TokenUsage { input_tokens, output_tokens, .. } = self.usage;
        let mut rows = vec![
            ("journal", self.state_dir.join(JOURNAL_FILE).display().to_string()),
            ("model calls", format!("{}, {input_tokens} tokens in, {output_tokens} out", self.iterations)),
            ("tool calls", if calls.is_empty() { "none".to_owned() } else { calls.join(", ") }),
        ];
        if self.unknown_outcomes > 0 {
            rows.push(("unknown outcomes", self.unknown_outcomes.to_string()));
        }
        if !sessions.is_empty() {
            rows.push(("sessions", sessions.join(", ")));
        }
        if self.questions > 0 {
            rows.push(("questions", format!("{}, answered {}", self.questions, self.answers)));
        }
        if let Some(outcome) = self.outcome {
            let word = match outcome {
                EndStatus::Completed => "completed",
                EndStatus::Failed => "failed",
                EndStatus::BudgetExhausted => "budget exhausted",
            };
            rows.push(("outcome", word.to_owned()));
        }
        rows.extend(self.journal_error.clone().map(|error| ("journal error", error)));
        rows
    }
}
