//! The interfaces between the agent loop and its environment: model, tools and observer.
//!
//! The implementations are the model client, the workbench and the command line. The tests of the loop have their own.

use std::sync::atomic::AtomicBool;

use crate::{
    ask_human::HumanQuestion,
    definition::ToolDefinition,
    event::{ActionStatus, AgentJournalEntry, SessionChange},
    model::{ModelClient, ModelError, ModelReply, ModelRequest, ReplyDelta},
    tool::RawArguments,
};

/// Sends a conversation to a language model and returns its reply.
pub trait ChatModel {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError>;
}

/// Executes tool calls and manages sessions. A failure of a tool is part of the outcome that the model receives, so the
/// methods return no errors.
pub trait ToolRunner {
    /// Executes a call and returns after it has ended.
    fn execute(&mut self, action_id: &str, tool: &ToolDefinition, arguments: &RawArguments) -> ActionOutcome;
    /// Ends a session and all of its processes. A session that is already gone counts as ended.
    fn end_session(&mut self, session_id: &str) -> ActionOutcome;
    /// Ends several sessions concurrently, so that slow ones together take no longer than one.
    fn end_sessions(&mut self, session_ids: &[String]);
    /// The directory in which a new session of the tool starts.
    fn start_directory(&self, tool: &ToolDefinition) -> String;
    /// Whether the program of this session runs. A different process with the same pid does not count.
    fn is_session_alive(&mut self, session_id: &str) -> bool;
    /// Cleans up an action that was running when an earlier process died. Its processes are ended, except a session
    /// that existed before. `None` if the action left no trace.
    fn recover_action(&mut self, action_id: &str) -> Option<AbandonedAction>;
    /// Ends sessions of this state folder that the journal does not contain, because a crash prevented the record of
    /// their start.
    fn end_sessions_except(&mut self, kept_ids: &[&str]);
    /// Keeps these texts out of the records of later calls.
    fn redact(&mut self, secrets: Vec<String>);
}

/// The outcome of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionOutcome {
    pub status: ActionStatus,
    /// The text that the model receives.
    pub text: String,
    pub exit_code: Option<i32>,
    /// Folder with the complete output, relative to the state folder.
    pub execution_ref: Option<String>,
    pub session_id: Option<String>,
    pub session_event: Option<SessionChange>,
}

/// Describes an action whose end was not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbandonedAction {
    /// Sentences for the model.
    pub description: String,
    pub exit_code: Option<i32>,
    /// Folder with the output, relative to the state folder.
    pub execution_ref: Option<String>,
    /// The running session to which the call sent input.
    pub session_id: Option<String>,
}

/// Receives journal entries and pieces of replies as they arrive.
pub trait AgentObserver {
    /// Called after an entry was written to the journal; `line` is its text.
    fn on_entry(&mut self, entry: &AgentJournalEntry, line: &str);
    /// Called for each piece of a reply.
    fn on_reply_delta(&mut self, piece: ReplyDelta<'_>);
    /// Called for a notice that is not journalled.
    fn on_notice(&mut self, text: &str);
    /// Asks the person, if one is present.
    fn ask_person(&mut self, question: &HumanQuestion) -> HumanReply;
}

/// The result of asking a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HumanReply {
    Answered(String),
    /// No person is present, or the person gave no answer.
    NoAnswer,
    Interrupted,
}

/// Set when a person wants the run to stop.
pub type InterruptFlag = AtomicBool;

impl ActionOutcome {
    /// The outcome of a call that was not executed, with the reason.
    pub fn refused(text: impl Into<String>) -> Self {
        Self {
            status: ActionStatus::Error,
            text: text.into(),
            exit_code: None,
            execution_ref: None,
            session_id: None,
            session_event: None,
        }
    }
}

impl ChatModel for ModelClient {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        self.complete(request, on_delta)
    }
}
