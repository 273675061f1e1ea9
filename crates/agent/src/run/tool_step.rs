//! Executes a batch of calls: tools in the order of their requests, then questions to the person.

use abide_os::suggestion;
use serde_json::{Map, Value, json};

use super::{AgentRunError, AgentRunner};
use crate::{
    ask_human::{self, HumanQuestion},
    definition,
    environment::{ActionOutcome, HumanReply},
    event::{ActionRequest, ActionResult, ActionStatus, AgentEvent, SessionChange},
    outcome::AgentOutcome,
    run_plan::HumanAvailability,
    tool::RawArguments,
};

impl AgentRunner<'_> {
    /// Executes the first request without a result. Returns an outcome if the run has to wait for a person.
    pub(super) fn execute_next_call(&mut self) -> Result<Option<AgentOutcome>, AgentRunError> {
        let open: Vec<&ActionRequest> = self.state.journal_state.open_requests().collect();
        let tools = open.iter().find(|request| request.tool_name != ask_human::TOOL_NAME);
        let Some(request) = tools.or(open.first()).copied().cloned() else { return Ok(None) };
        if request.tool_name == ask_human::TOOL_NAME {
            return self.ask(&request);
        }
        let outcome = self.execute_call(&request);
        let folder = outcome.execution_ref.clone();
        self.record_result(&request, outcome)?;
        self.state.check_call_folder(folder.as_deref())?;
        Ok(None)
    }

    fn execute_call(&mut self, request: &ActionRequest) -> ActionOutcome {
        // The recorded request is executed, with secrets revealed. After a crash the same one would be executed.
        let request = self.reveal_request(request);
        let arguments = match parse_arguments(&request) {
            Ok(arguments) => arguments,
            Err(refusal) => return ActionOutcome::refused(refusal),
        };
        if request.tool_name == SESSION_END {
            return self.end_session(&arguments.values);
        }
        let Some(tool) = self.definition.tools.iter().find(|tool| tool.name == request.tool_name) else {
            return ActionOutcome::refused(self.unknown_tool_text(&request.tool_name));
        };
        self.deps.tools.execute(&request.action_id, tool, &arguments)
    }

    fn end_session(&mut self, arguments: &Map<String, Value>) -> ActionOutcome {
        let Some(id) = arguments.get(definition::SESSION_ID_PARAMETER).and_then(Value::as_str) else {
            return ActionOutcome::refused("session_end needs {\"session_id\": \"…\"}");
        };
        if !self.state.journal_state.sessions().any(|(open, _)| open == id) {
            let open: Vec<&str> = self.state.journal_state.sessions().map(|(open, _)| open).collect();
            let open = if open.is_empty() { "none is open".to_owned() } else { open.join(", ") };
            return ActionOutcome::refused(format!("there is no open session {id}; open sessions: {open}"));
        }
        let done = self.deps.tools.end_session(id);
        ActionOutcome { session_id: Some(id.to_owned()), session_event: Some(SessionChange::Ended), ..done }
    }

    fn unknown_tool_text(&self, name: &str) -> String {
        let mut names: Vec<&str> = self.definition.tools.iter().map(|tool| tool.name.as_str()).collect();
        names.extend(
            (self.human_availability == HumanAvailability::Available).then_some(ask_human::TOOL_NAME),
        );
        let suggestion = suggestion::nearest(name, names.iter().copied());
        let suggestion =
            suggestion.map(|suggestion| format!(" (did you mean {suggestion}?)")).unwrap_or_default();
        format!("there is no tool {name}{suggestion}; the tools are {}", names.join(", "))
    }

    /// Asks the person. Returns an outcome if there is no answer now.
    fn ask(&mut self, request: &ActionRequest) -> Result<Option<AgentOutcome>, AgentRunError> {
        let revealed_request = self.reveal_request(request);
        let question = match parse_arguments(&revealed_request)
            .and_then(|_| HumanQuestion::from_request(&revealed_request))
        {
            Ok(question) => question,
            Err(refusal) => {
                self.record_result(request, ActionOutcome::refused(refusal))?;
                return Ok(None);
            }
        };
        if self.human_availability == HumanAvailability::Unavailable {
            self.record_result(request, ActionOutcome::refused(NO_PERSON_RESULT))?;
            return Ok(None);
        }
        self.state.write_question(&question)?;
        match self.deps.observer.ask_person(&question) {
            HumanReply::Answered(answer) => {
                self.record_answer(&question, &answer)?;
                Ok(None)
            }
            HumanReply::NoAnswer => Ok(Some(AgentOutcome::Waiting { question })),
            HumanReply::Interrupted => Ok(Some(AgentOutcome::Interrupted)),
        }
    }

    /// Records the answer of a person.
    pub(crate) fn record_answer(
        &mut self,
        question: &HumanQuestion,
        answer: &str,
    ) -> Result<(), AgentRunError> {
        if question.sensitive {
            // Must precede the record: from here on, a token replaces the answer in all records.
            self.state.store_secret(&question.interaction_id, answer)?;
            self.deps.tools.redact(self.state.secrets.all_spellings());
        }
        let result = ActionResult {
            action_id: question.interaction_id.clone(),
            status: ActionStatus::Success,
            observation_content: answer.to_owned(),
            exit_code: None,
            execution_ref: None,
            session_id: None,
            session_event: None,
        };
        self.record(vec![AgentEvent::ActionResult(result)])?;
        Ok(self.state.remove_question()?)
    }

    /// Gives each request that has not started an interrupted result. Questions to the person remain open.
    pub(super) fn interrupt_open_calls(&mut self) -> Result<(), AgentRunError> {
        let open: Vec<ActionRequest> = self
            .state
            .journal_state
            .open_requests()
            .filter(|request| request.tool_name != ask_human::TOOL_NAME)
            .cloned()
            .collect();
        for request in open {
            let text = "not carried out: the person stopped the run before this call was started";
            self.record_result(
                &request,
                ActionOutcome { status: ActionStatus::Interrupted, ..ActionOutcome::refused(text) },
            )?;
        }
        Ok(())
    }

    pub(crate) fn record_result(
        &mut self,
        request: &ActionRequest,
        outcome: ActionOutcome,
    ) -> Result<(), AgentRunError> {
        let ActionOutcome { status, text, exit_code, execution_ref, session_id, session_event } = outcome;
        let result = ActionResult {
            action_id: request.action_id.clone(),
            status,
            observation_content: text,
            exit_code,
            execution_ref,
            session_id,
            session_event,
        };
        Ok(self.record(vec![AgentEvent::ActionResult(result)])?)
    }
}

/// The arguments of a call, or an error text for the model.
fn parse_arguments(request: &ActionRequest) -> Result<RawArguments, String> {
    let raw = request.tool_args_raw.as_deref();
    match (raw.map(RawArguments::parse), &request.tool_args) {
        (None, Value::Object(arguments)) => Ok(arguments.clone().into()),
        (Some(Ok(sent)), Value::Object(_)) => Ok(sent),
        (parsed, _) => {
            let raw = raw.unwrap_or_default();
            let reason = match parsed {
                Some(Ok(_)) | None => String::new(),
                Some(Err(error)) => format!(" ({error})"),
            };
            let shown: String = raw.chars().take(MAX_SHOWN_ARGUMENT_CHARS).collect();
            Err(format!("not carried out: the arguments are not a JSON object{reason}. They were: {shown}"))
        }
    }
}

/// The result of `ask_human` if no person is available.
const NO_PERSON_RESULT: &str = "No person is available to answer. Decide yourself: choose the option that changes the least and can be undone, \
                      continue, and say in your final answer what you decided and why.";

/// Maximum number of bytes of invalid arguments in the error text for the model.
const MAX_SHOWN_ARGUMENT_CHARS: usize = 500;

/// The built-in tool that ends a session, as it is named in the journal (B5).
const SESSION_END: &str = "session.end";
/// The name of the same tool in requests, because services refuse names with a dot.
const SESSION_END_WIRE_NAME: &str = "session_end";

/// The journal's name of a tool.
pub(super) fn journal_name(name: String) -> String {
    if name == SESSION_END_WIRE_NAME { SESSION_END.to_owned() } else { name }
}

pub(super) fn session_end_tool_json() -> String {
    let about = "End a session of a stateful tool and everything that runs in it. Sessions that are not ended stay \
                 until the run is over.";
    let parameters = json!({
        "type": "object",
        "properties": { "session_id": { "type": "string", "description": "The id of the session, from the result that started it" } },
        "required": ["session_id"],
        "additionalProperties": false,
    });
    definition::tool_json(SESSION_END_WIRE_NAME, about, &parameters)
}
