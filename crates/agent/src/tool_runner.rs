//! Implements [`ToolRunner`] for the workbench: converts results of tools to the types of the journal.
//!
//! This file starts and ends no processes.

use crate::{
    definition::ToolDefinition,
    environment::{AbandonedAction, ActionOutcome, ToolRunner},
    event::{ActionStatus, SessionChange},
    tool::{self, ProgramState, RawArguments, RecoveredCall, ToolCallResult, ToolWorkbench},
};

impl ToolRunner for ToolWorkbench {
    fn execute(&mut self, action_id: &str, tool: &ToolDefinition, arguments: &RawArguments) -> ActionOutcome {
        match self.run(action_id, tool, arguments) {
            Ok(observation) => action_outcome(observation),
            // The model did not cause the error, but it may find another way to reach its goal.
            Err(error) => ActionOutcome::refused(format!("the tool could not be used: {error}")),
        }
    }

    fn end_session(&mut self, session_id: &str) -> ActionOutcome {
        action_outcome(ToolWorkbench::end_session(self, session_id))
    }

    fn end_sessions(&mut self, session_ids: &[String]) {
        self.end_existing_sessions(session_ids);
    }

    fn start_directory(&self, tool: &ToolDefinition) -> String {
        ToolWorkbench::start_directory(self, tool)
    }

    fn is_session_alive(&mut self, session_id: &str) -> bool {
        ToolWorkbench::is_alive(self, session_id)
    }

    fn recover_action(&mut self, action_id: &str) -> Option<AbandonedAction> {
        match self.recover(action_id) {
            Ok(recovered) if !recovered.was_started => None,
            Ok(recovered) => Some(AbandonedAction {
                description: describe_recovered_call(&recovered),
                exit_code: recovered.exit_code,
                execution_ref: recovered.execution_ref,
                session_id: recovered.session,
            }),
            Err(error) => Some(AbandonedAction {
                description: format!("Its remains could not be examined: {error}."),
                ..AbandonedAction::default()
            }),
        }
    }

    fn end_sessions_except(&mut self, journalled_ids: &[&str]) {
        let others: Vec<String> = self
            .sessions()
            .into_iter()
            .map(|session| session.id)
            .filter(|id| !journalled_ids.contains(&id.as_str()))
            .collect();
        self.end_existing_sessions(&others);
    }

    fn redact(&mut self, secrets: Vec<String>) {
        self.setup_mut().secrets = secrets;
    }
}

fn action_outcome(observation: ToolCallResult) -> ActionOutcome {
    let ToolCallResult {
        text,
        status,
        exit_code,
        timed_out: _,
        interrupted,
        execution_ref,
        session_id,
        session_event,
    } = observation;
    let status = match status {
        _ if interrupted => ActionStatus::Interrupted,
        tool::ToolStatus::Success => ActionStatus::Success,
        tool::ToolStatus::Error => ActionStatus::Error,
        tool::ToolStatus::TimedOut => ActionStatus::TimedOut,
    };
    let session_event = session_event.map(|event| match event {
        tool::ToolSessionChange::Started => SessionChange::Started,
        tool::ToolSessionChange::Ended => SessionChange::Ended,
    });
    ActionOutcome { status, text, exit_code, execution_ref, session_id, session_event }
}

/// Describes to the model a call whose end was not recorded.
fn describe_recovered_call(recovered: &RecoveredCall) -> String {
    let session = recovered.session.as_deref().unwrap_or_default();
    let mut text = match (recovered.program_state, recovered.was_running, recovered.exit_code) {
        (Some(ProgramState::Busy), ..) => format!(
            "Session {session} is alive and its program is still working on this call. It was not stopped. Call the tool \
             again without text to see newer output, or end the session."
        ),
        (Some(ProgramState::WaitingForInput), ..) => {
            format!("Session {session} is alive; its program has processed the call and waits for input.")
        }
        (Some(ProgramState::Unknown), ..) => format!(
            "Session {session} is alive; it is unknown whether its program is still working on this call. Call the tool \
             again without text to see newer output."
        ),
        (Some(ProgramState::Ended), ..) => format!("The program of session {session} has ended."),
        (None, true, _) => "It was still running and was ended now.".to_owned(),
        (None, false, Some(code)) => format!("Its program had ended with exit code {code}."),
        (None, false, None) => "It had been started, and none of its processes runs any more.".to_owned(),
    };
    if let Some(session) = &recovered.ended_session {
        text.push_str(&format!(" The session {session} that it started was ended."));
    }
    if !recovered.output.is_empty() {
        text.push_str(&format!(" Output so far:\n{}", recovered.output));
    }
    text
}
