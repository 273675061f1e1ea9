//! A pure fold of the journal's events, from which each decision is derived.
//!
//! There is no other state, so a run decides in the same way whether or not it was killed before.
//!
//! Files are in `journal`, the model's messages in `context`, and the actions in `run`.

use std::collections::{BTreeMap, HashSet};

use crate::{
    ask_human,
    event::{
        ActionRequest, ActionResult, ActionStatus, AgentEvent, EndStatus, MessageLevel, ModelThought, RunEnd,
        RunStart, SessionChange, SystemMessage, UserMessage,
    },
    model::TokenUsage,
};

/// The state that results from the events of a journal.
#[derive(Debug, Default)]
pub struct JournalState {
    run: Option<AgentRunState>,
    /// The requests of the last batch; empty once each has a result.
    batch: Vec<OpenRequest>,
    /// Started sessions that have not ended, with the tool of each.
    sessions: BTreeMap<String, String>,
    /// Sessions that were ended with a run and of which the model has not been told, with the tool of each.
    unreported_ends: BTreeMap<String, String>,
    /// All call ids that models have used.
    used_call_ids: HashSet<String>,
}

/// The present run, or the last one.
#[derive(Debug)]
pub struct AgentRunState {
    pub id: String,
    /// The first message and all later ones.
    pub messages: Vec<String>,
    /// Number of replies of the model since the start of the present budget.
    pub iterations: u64,
    pub usage: TokenUsage,
    /// The last question that a person answered.
    pub last_answered: Option<AnsweredQuestion>,
    pub end: Option<RunEnd>,
    /// Text of the answer so far, while replies are truncated at their length limit.
    partial_answer: String,
    /// The last reply of the model; `None` after a later message or warning.
    last_reply: Option<ModelThought>,
    /// Number of consecutive empty replies.
    pub empty_replies: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AnsweredQuestion {
    pub request: ActionRequest,
    /// The answer as journalled, with secrets hidden.
    pub text: String,
}

#[derive(Debug)]
struct OpenRequest {
    request: ActionRequest,
    has_result: bool,
}

/// The next step of the loop.
#[derive(Debug, PartialEq)]
pub enum NextStep<'a> {
    /// There is no run.
    NoRun,
    /// Send the conversation to the model.
    Think,
    /// Execute these requests, which have no result yet.
    Act(Vec<&'a ActionRequest>),
    /// Tell the model that its reply had neither an answer nor a call.
    Remind(&'a ModelThought),
    /// End the run with this answer. It includes earlier replies that were truncated at their length limit.
    Finish(String),
    /// The run has ended.
    Ended(&'a RunEnd),
}

impl JournalState {
    /// Applies the next event, or returns the reason why it is invalid after the previous ones.
    pub fn apply(&mut self, event: &AgentEvent) -> Result<(), String> {
        match event {
            AgentEvent::RunStart(start) => self.apply_start(start),
            AgentEvent::RunEnd(end) => self.run_mut()?.end = Some(end.clone()),
            AgentEvent::UserMessage(UserMessage { text }) => {
                let run = self.run_mut()?;
                run.messages.push(text.clone());
                run.last_reply = None;
                // The next reply answers this message, so a partial answer is discarded.
                run.partial_answer.clear();
            }
            AgentEvent::Thought(thought) => self.apply_thought(thought)?,
            AgentEvent::ActionRequest(request) => {
                self.used_call_ids.insert(request.call_id.clone());
                self.batch.push(OpenRequest { request: request.clone(), has_result: false });
            }
            AgentEvent::ActionResult(result) => self.apply_result(result)?,
            AgentEvent::SystemMessage(message) => self.apply_notice(message),
        }
        Ok(())
    }

    /// The present run, or the last one.
    pub fn run(&self) -> Option<&AgentRunState> {
        self.run.as_ref()
    }

    pub fn next_step(&self) -> NextStep<'_> {
        let Some(run) = &self.run else { return NextStep::NoRun };
        let open: Vec<&ActionRequest> = self.open_requests().collect();
        match (&run.end, &run.last_reply) {
            (Some(end), _) => NextStep::Ended(end),
            (None, _) if !open.is_empty() => NextStep::Act(open),
            (None, Some(thought)) if thought.is_answer() => NextStep::Finish(format!(
                "{}{}",
                run.partial_answer,
                thought.text.as_deref().unwrap_or_default()
            )),
            (None, Some(thought)) if thought.calls == 0 => NextStep::Remind(thought),
            (None, Some(_) | None) => NextStep::Think,
        }
    }

    /// The requests without a result.
    pub fn open_requests(&self) -> impl Iterator<Item = &ActionRequest> {
        self.batch.iter().filter(|open| !open.has_result).map(|open| &open.request)
    }

    /// The question to the person, if it is the only open request.
    pub fn question(&self) -> Option<&ActionRequest> {
        let mut open = self.open_requests();
        let first = open.next().filter(|request| request.tool_name == ask_human::TOOL_NAME)?;
        open.all(|request| request.tool_name == ask_human::TOOL_NAME).then_some(first)
    }

    /// Started sessions that have not ended, each with its tool.
    pub fn sessions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sessions.iter().map(|(id, tool)| (id.as_str(), tool.as_str()))
    }

    /// Sessions that were ended with a run and of which the model has not been told, each with its tool.
    pub fn unreported_session_ends(&self) -> impl Iterator<Item = (&str, &str)> {
        self.unreported_ends.iter().map(|(id, tool)| (id.as_str(), tool.as_str()))
    }

    /// Whether a model has used this id for a call.
    pub fn has_call_id(&self, id: &str) -> bool {
        self.used_call_ids.contains(id)
    }

    fn apply_start(&mut self, start: &RunStart) {
        let fresh = AgentRunState {
            id: start.run_id.clone(),
            messages: Vec::new(),
            iterations: 0,
            usage: TokenUsage::default(),
            last_answered: None,
            end: None,
            partial_answer: String::new(),
            last_reply: None,
            empty_replies: 0,
        };
        self.run = Some(match self.run.take() {
            // The same run continues with a fresh budget.
            Some(run) if run.id == start.run_id => AgentRunState {
                messages: run.messages,
                last_answered: run.last_answered,
                partial_answer: run.partial_answer,
                ..fresh
            },
            Some(_) | None => fresh,
        });
    }

    fn apply_thought(&mut self, thought: &ModelThought) -> Result<(), String> {
        if let Some(open) = self.open_requests().next() {
            return Err(format!("a thought while {} has no result", open.action_id));
        }
        self.batch.clear();
        let run = self.run_mut()?;
        run.iterations += 1;
        run.usage = add_usage(run.usage, thought.usage.unwrap_or_default());
        run.empty_replies = if thought.is_empty() { run.empty_replies + 1 } else { 0 };
        if thought.calls > 0 {
            run.partial_answer.clear();
        } else if thought.is_truncated() {
            run.partial_answer.push_str(thought.text.as_deref().unwrap_or_default());
        }
        run.last_reply = Some(thought.clone());
        Ok(())
    }

    fn apply_result(&mut self, result: &ActionResult) -> Result<(), String> {
        let open = self.batch.iter_mut().find(|open| open.request.action_id == result.action_id);
        let Some(open) = open.filter(|open| !open.has_result) else {
            return Err(format!("a result of {}, which is not an open request", result.action_id));
        };
        open.has_result = true;
        let request = open.request.clone();
        let tool = request.tool_name.clone();
        if tool == ask_human::TOOL_NAME
            && result.status == ActionStatus::Success
            && let Some(run) = &mut self.run
        {
            run.last_answered = Some(AnsweredQuestion { request, text: result.observation_content.clone() });
        }
        self.apply_session_change(result.session_id.as_deref(), result.session_event, &tool);
        Ok(())
    }

    fn apply_notice(&mut self, message: &SystemMessage) {
        // A warning is sent to the model, so the model has to reply again.
        if message.level == MessageLevel::Warn
            && let Some(run) = &mut self.run
        {
            run.last_reply = None;
        }
        if let (Some(id), Some(SessionChange::Ended)) = (&message.session_id, message.session_event) {
            match (message.level, self.sessions.get(id)) {
                (MessageLevel::Info, Some(tool)) => {
                    drop(self.unreported_ends.insert(id.clone(), tool.clone()))
                }
                (MessageLevel::Info, None) => {}
                (MessageLevel::Warn, _) => drop(self.unreported_ends.remove(id)),
            }
        }
        self.apply_session_change(message.session_id.as_deref(), message.session_event, "");
    }

    fn apply_session_change(&mut self, id: Option<&str>, event: Option<SessionChange>, tool: &str) {
        match (id, event) {
            (Some(id), Some(SessionChange::Started)) => {
                self.sessions.insert(id.to_owned(), tool.to_owned());
            }
            (Some(id), Some(SessionChange::Ended)) => {
                self.sessions.remove(id);
            }
            (_, None) | (None, Some(_)) => {}
        }
    }

    fn run_mut(&mut self) -> Result<&mut AgentRunState, String> {
        self.run.as_mut().ok_or_else(|| "an event precedes the start of the run".to_owned())
    }
}

impl AgentRunState {
    /// Whether the run has received this message.
    pub fn has_message(&self, text: &str) -> bool {
        self.messages.iter().any(|message| message == text)
    }

    /// Whether the run ended with an answer.
    pub fn is_completed(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.status == EndStatus::Completed)
    }
}

fn add_usage(one: TokenUsage, other: TokenUsage) -> TokenUsage {
    TokenUsage {
        input_tokens: one.input_tokens.saturating_add(other.input_tokens),
        output_tokens: one.output_tokens.saturating_add(other.output_tokens),
        cached_tokens: one.cached_tokens.saturating_add(other.cached_tokens),
    }
}
