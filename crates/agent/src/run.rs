//! The agent loop: think, act, observe, until the model answers, a person is needed, or the budget is exhausted.
//!
//! Each step derives the next action from the journal's state, executes it and records it. There is no other state, so
//! a run that was killed at any point continues like one that was not.
//!
//! Recovery after a crash is in `recovery`, and the meaning of commands is in `run_plan`.

mod model_step;
mod tool_step;

use std::sync::atomic::Ordering;

use crate::{
    agent_state::{AgentState, MemoryError},
    ask_human::{self, HumanQuestion},
    context::ContextWindow,
    definition::AgentDefinition,
    environment::{AgentObserver, ChatModel, InterruptFlag, ToolRunner},
    event::{
        ActionRequest, AgentEvent, EndStatus, MessageLevel, ModelThought, RunEnd, RunStart, SessionChange,
        SystemMessage, UserMessage,
    },
    journal::JournalError,
    journal_state::{AnsweredQuestion, NextStep},
    outcome::AgentOutcome,
    run_plan::{
        self, AgentRunPlan, AgentRunRequest, AgentStartMode, HumanAvailability, LastAnswer, SessionPolicy,
    },
};
use abide_os::random;

/// An agent with its state and dependencies. [`AgentRunner::run`] executes one command.
#[expect(missing_debug_implementations, reason = "its parts are traits")]
pub struct AgentRunner<'a> {
    pub definition: &'a AgentDefinition,
    pub state: AgentState,
    pub deps: AgentDeps<'a>,
    /// Whether this process has compared the sessions with those that run.
    is_reconciled: bool,
    human_availability: HumanAvailability,
    session_policy: SessionPolicy,
}

/// The model, the tools and the observer of an agent.
#[expect(missing_debug_implementations, reason = "its parts are traits")]
pub struct AgentDeps<'a> {
    pub model: &'a mut dyn ChatModel,
    pub tools: &'a mut dyn ToolRunner,
    pub observer: &'a mut dyn AgentObserver,
    pub interrupt: &'a InterruptFlag,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentRunError {
    /// The command is invalid in the present state of the run.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl<'a> AgentRunner<'a> {
    pub fn new(definition: &'a AgentDefinition, state: AgentState, deps: AgentDeps<'a>) -> Self {
        Self {
            definition,
            state,
            deps,
            is_reconciled: false,
            human_availability: HumanAvailability::default(),
            session_policy: SessionPolicy::default(),
        }
    }

    /// Executes a command as far as possible now. If the state folder is deleted, nothing can be recorded any more, so
    /// the sessions are ended to leave no process behind.
    pub fn run(&mut self, run_request: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        let result = self.run_request(run_request);
        if let Err(AgentRunError::Memory(MemoryError::Journal(JournalError::Gone { .. }))) = &result {
            self.deps.tools.end_sessions_except(&[]);
            self.state.delete_secrets()?;
        }
        result
    }

    fn run_request(&mut self, run_request: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        (self.human_availability, self.session_policy) =
            (run_request.human_availability, run_request.session_policy);
        if self.state.is_adopted() {
            self.settle_adopted()?;
        }
        if run_request.message.is_none() {
            self.state.check_run_not_deleted()?;
        }
        let shown_question = HumanQuestion::read_file(self.state.state());
        let last_answer = self.last_answer();
        let run_request = &self.resolve_request(run_request, shown_question.as_ref(), last_answer.as_ref());
        let plan = run_plan::plan_run(
            &self.state.journal_state,
            run_request,
            shown_question.as_ref(),
            last_answer.as_ref(),
        );
        let AgentRunPlan { start_mode: begin, answer, message } = plan.map_err(AgentRunError::Usage)?;
        let message = message.map(|text| self.state.secrets.reveal_text(&text));
        if let Some(torn) = &self.state.torn_tail_path {
            let torn = torn.display();
            self.deps.observer.on_notice(&format!(
                "a crash truncated the last event of the journal; the incomplete event was moved to {torn}"
            ));
        }
        self.deps.tools.redact(self.state.secrets.all_spellings());
        match begin {
            AgentStartMode::ReturnRecorded => {
                self.state.delete_run_files()?;
                return Ok(self.recorded_outcome().unwrap_or(AgentOutcome::Interrupted));
            }
            AgentStartMode::Fresh => {
                // The previous run may have crashed during its cleanup.
                self.state.delete_run_files()?;
                self.settle_open_calls(|_| true)?;
                self.record_start(format!("run_{}", random::name(12)), message)?;
            }
            AgentStartMode::Resume { run_id } => {
                // A run ends without open calls. A journal that has one here is damaged or forged.
                self.settle_open_calls(|_| true)?;
                self.record_start(run_id, message)?;
            }
            AgentStartMode::Continue => self.recover_and_take_input(answer, message)?,
        }
        self.run_steps(run_request)
    }

    fn run_steps(&mut self, run_request: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        loop {
            match self.state.journal_state.next_step() {
                NextStep::NoRun => return Err(AgentRunError::Usage("there is no run".to_owned())),
                NextStep::Ended(_) => {
                    self.state.delete_run_files()?;
                    return Ok(self.recorded_outcome().unwrap_or(AgentOutcome::Interrupted));
                }
                // No further action is started; the running one is ended by its tool runner.
                _ if self.deps.interrupt.load(Ordering::Relaxed) => {
                    self.interrupt_open_calls()?;
                    return Ok(AgentOutcome::Interrupted);
                }
                NextStep::Finish(answer) => self.end_run(EndStatus::Completed, None, Some(answer))?,
                NextStep::Remind(thought) if thought.is_filtered() => {
                    self.end_run(EndStatus::Failed, Some(FILTERED_REASON.to_owned()), None)?;
                }
                NextStep::Remind(thought) => {
                    let content = reminder_text(thought);
                    self.record_reminder(content)?;
                }
                NextStep::Act(_) => {
                    if let Some(outcome) = self.execute_next_call()? {
                        return Ok(outcome);
                    }
                }
                // Before the first request to the model, and after each result that it waits for (B8).
                NextStep::Think if !self.is_reconciled => {
                    self.reconcile()?;
                    self.is_reconciled = true;
                }
                NextStep::Think => match self.exhausted_budget(run_request) {
                    Some(reason) => self.end_run(EndStatus::BudgetExhausted, Some(reason), None)?,
                    None => self.think()?,
                },
            }
        }
    }

    fn record_start(&mut self, run_id: String, message: Option<String>) -> Result<(), AgentRunError> {
        let agent = self.definition.folder.display().to_string();
        let model = self.definition.model.name.clone();
        let mut events = vec![AgentEvent::RunStart(RunStart { run_id, agent, model })];
        events.extend(self.ended_session_notices());
        events.extend(message.map(|text| AgentEvent::UserMessage(UserMessage { text })));
        Ok(self.record(events)?)
    }

    /// Ends the run. Sessions are ended first, so that no process of a run remains after its end is recorded (B6).
    fn end_run(
        &mut self,
        status: EndStatus,
        reason: Option<String>,
        answer: Option<String>,
    ) -> Result<(), AgentRunError> {
        let mut sessions: Vec<String> =
            self.state.journal_state.sessions().map(|(id, _)| id.to_owned()).collect();
        let kept_ids = match self.session_policy {
            SessionPolicy::EndSessions => Vec::new(),
            SessionPolicy::KeepSessions => std::mem::take(&mut sessions),
        };
        self.deps.tools.end_sessions(&sessions);
        let end_notices = |session: String| {
            AgentEvent::SystemMessage(SystemMessage {
                level: MessageLevel::Info,
                content: format!("session {session} was ended with the run"),
                session_id: Some(session),
                session_event: Some(SessionChange::Ended),
            })
        };
        let end_notices: Vec<AgentEvent> = sessions.into_iter().map(end_notices).collect();
        if !end_notices.is_empty() {
            self.record(end_notices)?;
        }
        let kept_ids: Vec<&str> = kept_ids.iter().map(String::as_str).collect();
        self.deps.tools.end_sessions_except(&kept_ids);
        let Some(run) = self.state.journal_state.run() else { return Ok(()) };
        let (run_id, iterations, usage) = (run.id.clone(), run.iterations, run.usage);
        // The state holds the answer with tokens. It is revealed here, because recording hides the secrets again.
        let answer = answer.map(|answer| self.state.secrets.reveal_text(&answer));
        let end = RunEnd { run_id, status, reason, answer, iterations, usage };
        Ok(self.record(vec![AgentEvent::RunEnd(end)])?)
    }

    /// The budget that is exhausted, if one is.
    fn exhausted_budget(&self, run_request: &AgentRunRequest) -> Option<String> {
        let run = self.state.journal_state.run()?;
        let limits = &self.definition.limits;
        let iterations = run_request.max_iterations.unwrap_or(limits.max_iterations);
        if run.iterations >= iterations {
            return Some(format!(
                "all {iterations} iterations are used; run the same command again to continue with a fresh budget"
            ));
        }
        let tokens = limits.max_total_tokens.filter(|max_tokens| run.usage.total() >= *max_tokens)?;
        let used = run.usage.total();
        Some(format!(
            "{used} of {tokens} tokens are used; run the same command again to continue with a fresh budget"
        ))
    }

    fn record_reminder(&mut self, content: String) -> Result<(), AgentRunError> {
        let empty = self.state.journal_state.run().map_or(0, |run| run.empty_replies);
        if empty >= MAX_EMPTY_REPLIES {
            let reason = format!("the model returned {empty} empty answers in a row");
            return self.end_run(EndStatus::Failed, Some(reason), None);
        }
        let message =
            SystemMessage { level: MessageLevel::Warn, content, session_id: None, session_event: None };
        Ok(self.record(vec![AgentEvent::SystemMessage(message)])?)
    }

    /// The recorded outcome of the run, with secrets revealed.
    fn recorded_outcome(&self) -> Option<AgentOutcome> {
        self.state.journal_state.run()?.end.as_ref().map(AgentOutcome::of)
    }

    fn last_answer(&self) -> Option<LastAnswer> {
        let AnsweredQuestion { request, text } = self.state.journal_state.run()?.last_answered.as_ref()?;
        let is_sensitive = HumanQuestion::from_request(request).is_ok_and(|question| question.sensitive);
        Some(if is_sensitive && !self.state.secrets.contains(&request.action_id) {
            LastAnswer::Deleted
        } else {
            LastAnswer::Known(self.state.secrets.reveal_text(text))
        })
    }

    /// The request in the form in which the journal is compared with it: the message with secrets hidden, and the
    /// number of an option replaced by its text. A number refers to the open question, unless it repeats the last
    /// answer and the open question has not been shown yet.
    fn resolve_request(
        &self,
        run_request: &AgentRunRequest,
        shown_question: Option<&HumanQuestion>,
        last_answer: Option<&LastAnswer>,
    ) -> AgentRunRequest {
        let mut run_request = run_request.clone();
        run_request.message = run_request.message.map(|text| self.state.secrets.hide_text(&text));
        let Some(typed) = &run_request.answer else { return run_request };
        let question =
            |request: &ActionRequest| HumanQuestion::from_request(&self.reveal_request(request)).ok();
        let journal = &self.state.journal_state;
        let open = journal
            .open_requests()
            .find(|request| request.tool_name == ask_human::TOOL_NAME)
            .and_then(question);
        let answered = journal.run().and_then(|run| question(&run.last_answered.as_ref()?.request));
        let repeated = answered.map(|answered| answered.resolve(typed));
        let is_repeated = match (last_answer, &repeated) {
            (Some(LastAnswer::Known(last_answer)), Some(repeated)) => last_answer == repeated,
            (Some(LastAnswer::Deleted) | None, _) | (_, None) => false,
        };
        let is_shown = |open: &HumanQuestion| {
            shown_question.is_some_and(|shown_question| shown_question.interaction_id == open.interaction_id)
        };
        let answer = match open {
            Some(open) if is_shown(&open) || !is_repeated => open.resolve(typed),
            Some(_) | None => repeated.unwrap_or_else(|| typed.clone()),
        };
        AgentRunRequest { answer: Some(answer), ..run_request }
    }

    /// The request with sensitive answers in place of their tokens.
    fn reveal_request(&self, request: &ActionRequest) -> ActionRequest {
        let mut request = request.clone();
        self.state.secrets.reveal_request(&mut request);
        request
    }

    pub(crate) fn record(&mut self, events: Vec<AgentEvent>) -> Result<(), MemoryError> {
        self.state.record(events, self.deps.observer)
    }
}

/// The conversation is in the journal, so an unchanged request would be withheld again.
const FILTERED_REASON: &str =
    "the model's service withheld its answer (content_filter); change the prompt, or choose another model";

/// Number of consecutive empty replies after which a run fails.
const MAX_EMPTY_REPLIES: u64 = 3;

/// The notice to a model whose reply had neither an answer nor a call.
fn reminder_text(thought: &ModelThought) -> String {
    if thought.is_empty() {
        return "Your last answer was empty. Call a tool, or give your final answer in words.".to_owned();
    }
    "Your last answer was cut off at the limit of its length. Continue exactly where it ended and do not repeat anything: your \
     next answer is appended to it."
        .to_owned()
}

/// The empty context window of an agent. `state` is the path under which the model reaches the state folder.
pub fn empty_context(definition: &AgentDefinition, state: &str) -> ContextWindow {
    let overhead = tool_descriptions(definition, HumanAvailability::Available).iter().map(String::len).sum();
    ContextWindow::new(&definition.system_prompt, definition.model.context_tokens, overhead, state)
}

fn tool_descriptions(definition: &AgentDefinition, human_availability: HumanAvailability) -> Vec<String> {
    let mut descriptions: Vec<String> = definition.tools.iter().map(|tool| tool.to_tool_json()).collect();
    if definition.tools.iter().any(|tool| tool.stateful) {
        descriptions.push(tool_step::session_end_tool_json());
    }
    if human_availability == HumanAvailability::Available {
        descriptions.push(ask_human::tool_json());
    }
    descriptions
}

#[cfg(test)]
mod tests;
