//! Recovery when a run continues: calls whose end was not recorded, and sessions that did not survive (B8).
//!
//! The order matters. Each call gets its result first, then the person's answer is taken, and then the model is told
//! about lost sessions. A notice between a call and its result would break the conversation. Each step is journalled
//! once, so that recovery can itself be interrupted and repeated.

use crate::{
    ask_human::{self, HumanQuestion},
    environment::{AbandonedAction, ActionOutcome},
    event::{
        ActionRequest, ActionStatus, AgentEvent, MessageLevel, SessionChange, SystemMessage, UserMessage,
    },
    run::{AgentRunError, AgentRunner},
};

impl AgentRunner<'_> {
    /// Reconciles the journal with the processes that exist, and takes the new answer and message.
    pub(crate) fn recover_and_take_input(
        &mut self,
        answer: Option<String>,
        message: Option<String>,
    ) -> Result<(), AgentRunError> {
        self.settle_open_calls(|request| request.tool_name != ask_human::TOOL_NAME)?;
        let open_question = self
            .state
            .journal_state
            .open_requests()
            .find(|request| request.tool_name == ask_human::TOOL_NAME);
        if let Some(answer) = answer
            && let Some(request) = &open_question.cloned()
        {
            match HumanQuestion::from_request(request) {
                Ok(open_question) => self.record_answer(&open_question, &answer)?,
                Err(refusal) => self.record_result(request, ActionOutcome::refused(refusal))?,
            }
        }
        if self.state.journal_state.open_requests().next().is_none() {
            // A process may have crashed between recording the answer and removing the question.
            self.state.remove_question()?;
        }
        if let Some(text) = message {
            self.record(vec![AgentEvent::UserMessage(UserMessage { text })])?;
        }
        Ok(())
    }

    /// Records an unknown result for each open call that `is_chosen` selects. Nothing is executed.
    pub(crate) fn settle_open_calls(
        &mut self,
        is_chosen: impl Fn(&ActionRequest) -> bool,
    ) -> Result<(), AgentRunError> {
        let open: Vec<ActionRequest> =
            self.state.journal_state.open_requests().filter(|request| is_chosen(request)).cloned().collect();
        for request in open {
            let outcome = self.unknown_outcome(&request);
            self.record_result(&request, outcome)?;
        }
        Ok(())
    }

    /// Turns an adopted journal into history: its open calls and questions get an unknown result and its sessions are
    /// ended. Nothing that it names is looked up or executed.
    pub(crate) fn settle_adopted(&mut self) -> Result<(), AgentRunError> {
        let open: Vec<ActionRequest> = self.state.journal_state.open_requests().cloned().collect();
        for request in open {
            let text = "The outcome of this call is unknown: it is in a journal that abide did not write here. It may have \
                        been carried out wholly, partly or not at all; look before you do it again.";
            self.record_result(
                &request,
                ActionOutcome { status: ActionStatus::Unknown, ..ActionOutcome::refused(text) },
            )?;
        }
        // Sessions in the home belong to this state folder. They are ended, because the model does not know their
        // state.
        self.deps.tools.end_sessions_except(&[]);
        let sessions: Vec<String> =
            self.state.journal_state.sessions().map(|(id, _)| id.to_owned()).collect();
        for id in sessions {
            let content =
                format!("Session '{id}' is in a journal that abide did not write here. It cannot be used.");
            let (session_id, session_event) = (Some(id), Some(SessionChange::Ended));
            let message = SystemMessage { level: MessageLevel::Warn, content, session_id, session_event };
            self.record(vec![AgentEvent::SystemMessage(message)])?;
        }
        Ok(self.state.remove_question()?)
    }

    /// The outcome of a call that may have started and whose end was not recorded.
    fn unknown_outcome(&mut self, request: &ActionRequest) -> ActionOutcome {
        let action = self.deps.tools.recover_action(&request.action_id).unwrap_or_else(|| AbandonedAction {
            description: "It left no trace, so it was probably not begun.".to_owned(),
            ..AbandonedAction::default()
        });
        let AbandonedAction { description, exit_code, execution_ref, session_id } = action;
        let text = format!(
            "The outcome of this call is unknown: abide was stopped while it ran. It may have been carried out wholly, \
             partly or not at all; look before you do it again. {description}"
        );
        ActionOutcome {
            status: ActionStatus::Unknown,
            exit_code,
            execution_ref,
            session_id,
            ..ActionOutcome::refused(text)
        }
    }

    /// Compares the sessions in the journal with those that run.
    pub(crate) fn reconcile(&mut self) -> Result<(), AgentRunError> {
        let sessions: Vec<(String, String)> =
            self.state.journal_state.sessions().map(|(id, tool)| (id.to_owned(), tool.to_owned())).collect();
        let session_ids: Vec<&str> = sessions.iter().map(|(id, _)| id.as_str()).collect();
        self.deps.tools.end_sessions_except(&session_ids);
        for (id, tool) in &sessions {
            if self.deps.tools.is_session_alive(id) {
                continue;
            }
            // Remains of the session are removed, because they cannot be reached any more.
            self.deps.tools.end_session(id);
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
        // The notice is usually recorded at the start of the run, unless a process crashed in between.
        let notices = self.ended_session_notices();
        if !notices.is_empty() {
            self.record(notices)?;
        }
        Ok(())
    }

    /// Notices about sessions that were ended with an earlier part of the run. Without them the model would rely on
    /// their directory and variables.
    pub(crate) fn ended_session_notices(&self) -> Vec<AgentEvent> {
        let unreported = self.state.journal_state.unreported_session_ends();
        let unreported: Vec<(String, String)> =
            unreported.map(|(id, tool)| (id.to_owned(), tool.to_owned())).collect();
        let notice = |(id, tool): (String, String)| {
            let definition = self.definition.tools.iter().find(|definition| definition.name == tool);
            let next = definition.map(|definition| {
                let directory = self.deps.tools.start_directory(definition);
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
        unreported.into_iter().map(notice).collect()
    }
}
