//! What is found when a run goes on: calls that nobody saw end, and sessions that did not survive (B8).
//!
//! The order matters. First every call gets its result, then the person's answer is taken, and only then is the model told
//! what was lost: a notice between a call and its result would break the conversation. Each is journalled once; a process
//! that dies here leaves the rest to the next.

use crate::{
    event::{ActionRequest, Event, Level, SessionEvent, Status, SystemMessage, UserMessage},
    hands::{Abandoned, Done},
    human::{self, Question},
    run::{Agent, RunError},
};

impl Agent<'_> {
    /// Brings the story and the world together, and takes in what the person says now.
    pub(crate) fn recover(
        &mut self,
        answer: Option<String>,
        message: Option<String>,
    ) -> Result<(), RunError> {
        let open: Vec<ActionRequest> = self.memory.story.open().cloned().collect();
        for request in open.iter().filter(|request| request.tool_name != human::TOOL) {
            let done = self.unknown(request);
            self.result(request, done)?;
        }
        if let Some(answer) = answer
            && let Some(request) = open.iter().find(|request| request.tool_name == human::TOOL)
        {
            match Question::of(request) {
                Ok(question) => self.answer(&question, &answer)?,
                Err(refusal) => self.result(request, Done::refused(refusal))?,
            }
        }
        if self.memory.story.open().next().is_none() {
            // Whoever took the answer may have died before the question was taken away.
            self.memory.withdraw_question()?;
        }
        if let Some(text) = message {
            self.record(vec![Event::UserMessage(UserMessage { text })])?;
        }
        Ok(())
    }

    /// A call that was begun, perhaps, and whose end nobody saw.
    fn unknown(&mut self, request: &ActionRequest) -> Done {
        let found = self.around.hands.abandon(&request.action_id).unwrap_or_else(|| Abandoned {
            told: "It left no trace, so it was probably not begun.".to_owned(),
            ..Abandoned::default()
        });
        let Abandoned { told, exit_code, execution_ref, session_id } = found;
        let text = format!(
            "The outcome of this call is unknown: abide was stopped while it ran. It may have been carried out wholly, \
             partly or not at all; look before you do it again. {told}"
        );
        Done { status: Status::Unknown, exit_code, execution_ref, session_id, ..Done::refused(text) }
    }

    /// Compares the sessions that should be there with those that are.
    pub(crate) fn reconcile(&mut self) -> Result<(), RunError> {
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
                level: Level::Warn,
                content: format!(
                    "Recovery notice: session '{id}' of tool {tool} was found inactive and could not be reconnected. \
                     Its process has ended, and what it held (variables, directory, connections) is lost. Start a new \
                     session if you need one."
                ),
                session_id: Some(id.clone()),
                session_event: Some(SessionEvent::Ended),
            };
            self.record(vec![Event::SystemMessage(message)])?;
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
    pub(crate) fn ended_session_notices(&self) -> Vec<Event> {
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
            let session_event = Some(SessionEvent::Ended);
            Event::SystemMessage(SystemMessage {
                level: Level::Warn,
                content,
                session_id: Some(id),
                session_event,
            })
        };
        untold.into_iter().map(notice).collect()
    }
}
