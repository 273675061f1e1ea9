//! What the loop needs of its surroundings: somebody who thinks, somebody who acts, and somebody to tell.
//!
//! The real ones are the model's client, the workbench and the command line; the loop's own tests have others.

use std::sync::atomic::AtomicBool;

use crate::{
    definition::ToolDefinition,
    event::{ActionStatus, AgentJournalEntry, SessionChange},
    human::HumanQuestion,
    model::{ModelClient, ModelError, ModelReply, ModelRequest, ReplyDelta},
    tool::RawArguments,
};

/// Whoever thinks.
pub trait ChatModel {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        said: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError>;
}

/// Whoever acts. What goes wrong with a tool is something that the model is told; there are no other errors.
pub trait ToolRunner {
    /// Carries out a call, and does not return before it is over.
    fn carry_out(
        &mut self,
        action_id: &str,
        tool: &ToolDefinition,
        arguments: &RawArguments,
    ) -> ActionOutcome;
    /// Ends a session and everything in it. One that is gone already counts as ended.
    fn end_session(&mut self, session_id: &str) -> ActionOutcome;
    /// Ends several sessions at once, so that stubborn ones take no longer together than one alone.
    fn end_sessions(&mut self, session_ids: &[String]);
    /// The directory in which a new session of a tool begins.
    fn start_directory(&self, tool: &ToolDefinition) -> String;
    /// Whether this very session lives, and not only something with its pid.
    fn is_alive(&mut self, session_id: &str) -> bool;
    /// Looks after an action that was being carried out when an earlier process died: what still runs of it is ended,
    /// except in an interpreter that stays. Nothing if the action left no trace.
    fn abandon(&mut self, action_id: &str) -> Option<AbandonedAction>;
    /// Ends the sessions of this state folder that the journal does not know: their start was never written down.
    fn end_others(&mut self, known: &[&str]);
    /// These texts are not to be written into what is kept about calls.
    fn keep_out(&mut self, secrets: Vec<String>);
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionOutcome {
    pub status: ActionStatus,
    /// What the model is shown.
    pub text: String,
    pub exit_code: Option<i32>,
    /// Where all of it lies, seen from the state folder.
    pub execution_ref: Option<String>,
    pub session_id: Option<String>,
    pub session_event: Option<SessionChange>,
}

/// What is known of an action whose end was not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbandonedAction {
    /// For the model, in sentences.
    pub told: String,
    pub exit_code: Option<i32>,
    /// Where its output lies, seen from the state folder.
    pub execution_ref: Option<String>,
    /// The living session that it spoke to.
    pub session_id: Option<String>,
}

/// Whoever is told what happens, as it happens.
pub trait AgentObserver {
    /// Something was written to the journal, with its line.
    fn happened(&mut self, entry: &AgentJournalEntry, line: &str);
    /// The model is speaking.
    fn saying(&mut self, piece: ReplyDelta<'_>);
    /// Something that is not in the journal.
    fn note(&mut self, text: &str);
    /// Asks the person, if one is there.
    fn ask(&mut self, question: &HumanQuestion) -> HumanReply;
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HumanReply {
    Answered(String),
    /// Nobody is there, or they left it open.
    Nobody,
    Interrupted,
}

/// Raised when a person wants the run to stop.
pub type InterruptFlag = AtomicBool;

impl ActionOutcome {
    /// Nothing was carried out, and why.
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
        said: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        self.ask(request, said)
    }
}
