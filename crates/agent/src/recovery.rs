//! What is found when a run goes on: calls that nobody saw end, and sessions that did not survive (B8).
//!
//! The order matters. First every call gets its result, then the person's answer is taken, and only then is the model told
//! what was lost: a notice between a call and its result would break the conversation. Each is journalled once; a process
//! that dies here leaves the rest to the next.

use crate::{
    event::{
        ActionRequest, ActionStatus, AgentEvent, MessageLevel, SessionChange, SystemMessage, UserMessage,
    },
    hands::{AbandonedAction, ActionOutcome},
    human::{self, HumanQuestion},
    run::{AgentRunError, AgentRunner},
};

impl AgentRunner<'_> {
    /// Brings the story and the world together, and takes in what the person says now.
    pub(crate) fn recover(
        &mut self,
        answer: Option<String>,
        message: Option<String>,
    ) -> Result<(), AgentRunError> {
        self.settle_open_calls(|request| request.tool_name != human::TOOL)?;
        let question = self.memory.story.open().find(|request| request.tool_name == human::TOOL);
        if let Some(answer) = answer
            && let Some(request) = &question.cloned()
        {
            match HumanQuestion::of(request) {
                Ok(question) => self.answer(&question, &answer)?,
                Err(refusal) => self.result(request, ActionOutcome::refused(refusal))?,
            }
        }
        if self.memory.story.open().next().is_none() {
            // Whoever took the answer may have died before the question was taken away.
            self.memory.withdraw_question()?;
        }
        if let Some(text) = message {
            self.record(vec![AgentEvent::UserMessage(UserMessage { text })])?;
        }
        Ok(())
    }

    /// Gives an unknown result to each open call that is chosen. Nothing is carried out.
    pub(crate) fn settle_open_calls(
        &mut self,
        is_chosen: impl Fn(&ActionRequest) -> bool,
    ) -> Result<(), AgentRunError> {
        let open: Vec<ActionRequest> =
            self.memory.story.open().filter(|request| is_chosen(request)).cloned().collect();
        for request in open {
            let done = self.unknown(&request);
            self.result(&request, done)?;
        }
        Ok(())
    }

    /// Makes a foreign journal history: its open calls and questions get an unknown result and its sessions are ended,
    /// without looking at what it says about either.
    pub(crate) fn settle_adopted(&mut self) -> Result<(), AgentRunError> {
        let open: Vec<ActionRequest> = self.memory.story.open().cloned().collect();
        for request in open {
            let text = "The outcome of this call is unknown: it is in a journal that abide did not write here. It may have \
                        been carried out wholly, partly or not at all; look before you do it again.";
            self.result(
                &request,
                ActionOutcome { status: ActionStatus::Unknown, ..ActionOutcome::refused(text) },
            )?;
        }
        // Sessions in the home are this state folder's own. They end, because the model cannot know what they hold.
        self.around.hands.end_others(&[]);
        let sessions: Vec<String> = self.memory.story.sessions().map(|(id, _)| id.to_owned()).collect();
        for id in sessions {
            let content =
                format!("Session '{id}' is in a journal that abide did not write here. It cannot be used.");
            let (session_id, session_event) = (Some(id), Some(SessionChange::Ended));
            let message = SystemMessage { level: MessageLevel::Warn, content, session_id, session_event };
            self.record(vec![AgentEvent::SystemMessage(message)])?;
        }
        Ok(self.memory.withdraw_question()?)
    }

    /// A call that was begun, perhaps, and whose end nobody saw.
    fn unknown(&mut self, request: &ActionRequest) -> ActionOutcome {
        let found = self.around.hands.abandon(&request.action_id).unwrap_or_else(|| AbandonedAction {
            told: "It left no trace, so it was probably not begun.".to_owned(),
            ..AbandonedAction::default()
        });
        let AbandonedAction { told, exit_code, execution_ref, session_id } = found;
        let text = format!(
            "The outcome of this call is unknown: abide was stopped while it ran. It may have been carried out wholly, \
             partly or not at all; look before you do it again. {told}"
        );
        ActionOutcome {
            status: ActionStatus::Unknown,
            exit_code,
            execution_ref,
            session_id,
            ..ActionOutcome::refused(text)
        }
    }

    /// Compares the sessions that should be there with those that are.
    pub(crate) fn reconcile(&mut self) -> Result<(), AgentRunError> {
        let sessions: Vec<(String, String)> =
            self.memory.story.sessions().map(|(id, tool)| (id.to_owned(), tool.to_owned())).collect();
        let known: Vec<&str> = sessions.iter().map(|(id, _)| id.as_str()).collect();
        self.around.hands.end_others(&known);
        for (id, tool) in &sessions {
            if self.around.hands.is_alive(id) {
                continue;
            }
            // What is left of it goes; it cannot be reached any more.
            self.around.hands.end_session(id);
            let message = SystemMessage {
                level: MessageLevel::Warn,
                content: format!(
                    "Recovery notice: session '{id}' of tool {tool} was found inactive and could not be reconnected. \
                     Its process has ended, and what it held (variables, directory, connections) is lost. Start a new \
                     session if you need one."
                ),
                session_id: Some(id.clone()),
                session_event: Some(SessionChange::Ended),
            };
            self.record(vec![AgentEvent::SystemMessage(message)])?;
        }
        // Normally told when the run began; a process may have died in between.
        let notices = self.ended_session_notices();
        if !notices.is_empty() {
            self.record(notices)?;
        }
        Ok(())
    }

    /// What tells the model which of its sessions were ended with an earlier part of the story. It would go on as if they
    /// held its directory and variables.
    pub(crate) fn ended_session_notices(&self) -> Vec<AgentEvent> {
        let untold = self.memory.story.untold_ends();
        let untold: Vec<(String, String)> =
            untold.map(|(id, tool)| (id.to_owned(), tool.to_owned())).collect();
        let notice = |(id, tool): (String, String)| {
            let known = self.definition.tools.iter().find(|known| known.name == tool);
            let next = known.map(|known| {
                let directory = self.around.hands.start_directory(known);
                format!(" The next call of {tool} starts a new session in {directory}.")
            });
            let content = format!(
                "Session '{id}' of tool {tool} was ended when the run stopped. Its process has ended, and what it held \
                 (variables, directory, connections) is lost.{}",
                next.unwrap_or_default()
            );
            let session_event = Some(SessionChange::Ended);
            AgentEvent::SystemMessage(SystemMessage {
                level: MessageLevel::Warn,
                content,
                session_id: Some(id),
                session_event,
            })
        };
        untold.into_iter().map(notice).collect()
    }
}
