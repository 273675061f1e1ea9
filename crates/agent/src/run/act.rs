//! Executes a batch of calls: tools in the order of their requests, then questions to the person.

use serde_json::{Map, Value, json};

use super::{AgentRunError, AgentRunner};
use crate::{
    definition,
    event::{ActionRequest, ActionResult, ActionStatus, AgentEvent, SessionChange},
    hands::{ActionOutcome, HumanReply},
    human::{self, HumanQuestion},
    intake::HumanAvailability,
    outcome::AgentOutcome,
    tool::RawArguments,
};

impl AgentRunner<'_> {
    /// Executes the first request without a result. Returns an outcome if the run has to wait for a person.
    pub(super) fn act(&mut self) -> Result<Option<AgentOutcome>, AgentRunError> {
        let open: Vec<&ActionRequest> = self.memory.story.open().collect();
        let tools = open.iter().find(|request| request.tool_name != human::TOOL);
        let Some(request) = tools.or(open.first()).copied().cloned() else { return Ok(None) };
        if request.tool_name == human::TOOL {
            return self.ask(&request);
        }
        let done = self.carry_out(&request);
        let folder = done.execution_ref.clone();
        self.result(&request, done)?;
        self.memory.check_call_folder(folder.as_deref())?;
        Ok(None)
    }

    fn carry_out(&mut self, request: &ActionRequest) -> ActionOutcome {
        // The recorded request is executed, with secrets revealed. After a crash the same one would be executed.
        let request = self.revealed(request);
        let arguments = match arguments(&request) {
            Ok(arguments) => arguments,
            Err(refusal) => return ActionOutcome::refused(refusal),
        };
        if request.tool_name == SESSION_END {
            return self.end_session(&arguments.values);
        }
        let Some(tool) = self.definition.tools.iter().find(|tool| tool.name == request.tool_name) else {
            return ActionOutcome::refused(self.no_such_tool(&request.tool_name));
        };
        self.around.hands.carry_out(&request.action_id, tool, &arguments)
    }

    fn end_session(&mut self, arguments: &Map<String, Value>) -> ActionOutcome {
        let Some(id) = arguments.get(definition::SESSION_ID).and_then(Value::as_str) else {
            return ActionOutcome::refused("session_end needs {\"session_id\": \"…\"}");
        };
        if !self.memory.story.sessions().any(|(open, _)| open == id) {
            let open: Vec<&str> = self.memory.story.sessions().map(|(open, _)| open).collect();
            let open = if open.is_empty() { "none is open".to_owned() } else { open.join(", ") };
            return ActionOutcome::refused(format!("there is no open session {id}; open sessions: {open}"));
        }
        let done = self.around.hands.end_session(id);
        ActionOutcome { session_id: Some(id.to_owned()), session_event: Some(SessionChange::Ended), ..done }
    }

    fn no_such_tool(&self, name: &str) -> String {
        let mut names: Vec<&str> = self.definition.tools.iter().map(|tool| tool.name.as_str()).collect();
        names.extend((self.company == HumanAvailability::Somebody).then_some(human::TOOL));
        let meant = definition::nearest(name, names.iter().copied());
        let meant = meant.map(|meant| format!(" (did you mean {meant}?)")).unwrap_or_default();
        format!("there is no tool {name}{meant}; the tools are {}", names.join(", "))
    }

    /// Asks the person. Returns an outcome if there is no answer now.
    fn ask(&mut self, request: &ActionRequest) -> Result<Option<AgentOutcome>, AgentRunError> {
        let meant = self.revealed(request);
        let question = match arguments(&meant).and_then(|_| HumanQuestion::of(&meant)) {
            Ok(question) => question,
            Err(refusal) => {
                self.result(request, ActionOutcome::refused(refusal))?;
                return Ok(None);
            }
        };
        if self.company == HumanAvailability::Nobody {
            self.result(request, ActionOutcome::refused(NOBODY))?;
            return Ok(None);
        }
        self.memory.show(&question)?;
        match self.around.voice.ask(&question) {
            HumanReply::Answered(answer) => {
                self.answer(&question, &answer)?;
                Ok(None)
            }
            HumanReply::Nobody => Ok(Some(AgentOutcome::Waiting { question })),
            HumanReply::Interrupted => Ok(Some(AgentOutcome::Interrupted)),
        }
    }

    /// Records the answer of a person.
    pub(crate) fn answer(&mut self, question: &HumanQuestion, answer: &str) -> Result<(), AgentRunError> {
        if question.sensitive {
            // Must precede the record: from here on, a token replaces the answer in all records.
            self.memory.keep_secret(&question.interaction_id, answer)?;
            self.around.hands.keep_out(self.memory.secrets.texts());
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
        Ok(self.memory.withdraw_question()?)
    }

    /// Gives each request that has not started an interrupted result. Questions to the person remain open.
    pub(super) fn give_up_open(&mut self) -> Result<(), AgentRunError> {
        let open: Vec<ActionRequest> =
            self.memory.story.open().filter(|request| request.tool_name != human::TOOL).cloned().collect();
        for request in open {
            let text = "not carried out: the person stopped the run before it was begun";
            self.result(
                &request,
                ActionOutcome { status: ActionStatus::Interrupted, ..ActionOutcome::refused(text) },
            )?;
        }
        Ok(())
    }

    pub(crate) fn result(
        &mut self,
        request: &ActionRequest,
        done: ActionOutcome,
    ) -> Result<(), AgentRunError> {
        let ActionOutcome { status, text, exit_code, execution_ref, session_id, session_event } = done;
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
fn arguments(request: &ActionRequest) -> Result<RawArguments, String> {
    let raw = request.tool_args_raw.as_deref();
    match (raw.map(RawArguments::parse), &request.tool_args) {
        (None, Value::Object(arguments)) => Ok(arguments.clone().into()),
        (Some(Ok(sent)), Value::Object(_)) => Ok(sent),
        (parsed, _) => {
            let raw = raw.unwrap_or_default();
            let why = match parsed {
                Some(Ok(_)) | None => String::new(),
                Some(Err(error)) => format!(" ({error})"),
            };
            let shown: String = raw.chars().take(LONGEST_SHOWN).collect();
            Err(format!("not carried out: the arguments are no JSON object{why}. They were: {shown}"))
        }
    }
}

/// The result of `ask_human` if no person is available.
const NOBODY: &str = "Nobody is there to answer. Decide for yourself: choose what changes the least and can be undone, \
                      go on, and say in your final answer what you decided and why.";

/// Maximum number of bytes of invalid arguments in the error text for the model.
const LONGEST_SHOWN: usize = 500;

/// The built-in tool that ends a session, as it is named in the journal (B5).
const SESSION_END: &str = "session.end";
/// The name of the same tool in requests, because services refuse names with a dot.
const SESSION_END_OFFERED: &str = "session_end";

/// The journal's name of a tool.
pub(super) fn own_name(name: String) -> String {
    if name == SESSION_END_OFFERED { SESSION_END.to_owned() } else { name }
}

pub(super) fn offer_session_end() -> String {
    let about = "End a session of a stateful tool and everything that runs in it. Sessions that are not ended stay \
                 until the run is over.";
    let parameters = json!({
        "type": "object",
        "properties": { "session_id": { "type": "string", "description": "The session, as a result named it" } },
        "required": ["session_id"],
        "additionalProperties": false,
    });
    definition::offer(SESSION_END_OFFERED, about, &parameters)
}
