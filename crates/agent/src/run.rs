//! The agent loop: think, act, observe, until the model answers, a person is needed, or the budget is exhausted.
//!
//! Each step derives the next action from the journal's state, executes it and records it. There is no other state, so
//! a run that was killed at any point continues like one that was not.
//!
//! Recovery after a crash is in `recovery`, and the meaning of commands is in `intake`.

mod act;
mod think;

use std::sync::atomic::Ordering;

use crate::{
    clock,
    context::ContextWindow,
    definition::AgentDefinition,
    event::{
        ActionRequest, AgentEvent, EndStatus, MessageLevel, ModelThought, RunEnd, RunStart, SessionChange,
        SystemMessage, UserMessage,
    },
    hands::{AgentObserver, ChatModel, InterruptFlag, ToolRunner},
    human::{self, HumanQuestion},
    intake::{
        self, AgentRunPlan, AgentRunRequest, AgentStartMode, HumanAvailability, LastAnswer, SessionPolicy,
    },
    journal::JournalError,
    memory::{AgentState, MemoryError},
    outcome::AgentOutcome,
    story::{AnsweredQuestion, NextStep},
};

/// An agent with its state and dependencies. [`AgentRunner::run`] executes one command.
#[expect(missing_debug_implementations, reason = "its parts are traits")]
pub struct AgentRunner<'a> {
    pub definition: &'a AgentDefinition,
    pub memory: AgentState,
    pub around: AgentDeps<'a>,
    /// Whether this process has compared the sessions with those that run.
    is_reconciled: bool,
    company: HumanAvailability,
    at_end: SessionPolicy,
}

/// The model, the tools and the observer of an agent.
#[expect(missing_debug_implementations, reason = "its parts are traits")]
pub struct AgentDeps<'a> {
    pub mind: &'a mut dyn ChatModel,
    pub hands: &'a mut dyn ToolRunner,
    pub voice: &'a mut dyn AgentObserver,
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
    pub fn new(definition: &'a AgentDefinition, memory: AgentState, around: AgentDeps<'a>) -> Self {
        Self {
            definition,
            memory,
            around,
            is_reconciled: false,
            company: HumanAvailability::default(),
            at_end: SessionPolicy::default(),
        }
    }

    /// Executes a command as far as possible now. If the state folder is deleted, nothing can be recorded any more, so
    /// the sessions are ended to leave no process behind.
    pub fn run(&mut self, order: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        let ran = self.carry_out_order(order);
        if let Err(AgentRunError::Memory(MemoryError::Journal(JournalError::Gone { .. }))) = &ran {
            self.around.hands.end_others(&[]);
            self.memory.forget_secrets()?;
        }
        ran
    }

    fn carry_out_order(&mut self, order: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        (self.company, self.at_end) = (order.company, order.at_end);
        if self.memory.is_adopted() {
            self.settle_adopted()?;
        }
        if order.message.is_none() {
            self.memory.check_predecessor()?;
        }
        let shown = HumanQuestion::shown(self.memory.state());
        let last = self.last_answer();
        let order = &self.resolved(order, shown.as_ref(), last.as_ref());
        let plan = intake::plan(&self.memory.story, order, shown.as_ref(), last.as_ref());
        let AgentRunPlan { begin, answer, message } = plan.map_err(AgentRunError::Usage)?;
        let message = message.map(|text| self.memory.secrets.revealed(&text));
        if let Some(torn) = &self.memory.torn {
            let torn = torn.display();
            self.around
                .voice
                .note(&format!("the journal's last event was cut by a crash; it was put aside as {torn}"));
        }
        self.around.hands.keep_out(self.memory.secrets.texts());
        match begin {
            AgentStartMode::Recorded => {
                self.memory.tidy()?;
                return Ok(self.ended().unwrap_or(AgentOutcome::Interrupted));
            }
            AgentStartMode::Fresh => {
                // The previous run may have crashed during its cleanup.
                self.memory.tidy()?;
                self.settle_open_calls(|_| true)?;
                self.start(format!("run_{}", clock::fresh(12)), message)?;
            }
            AgentStartMode::Resume { run_id } => {
                // A run ends without open calls. A journal that has one here is damaged or forged.
                self.settle_open_calls(|_| true)?;
                self.start(run_id, message)?;
            }
            AgentStartMode::GoOn => self.recover(answer, message)?,
        }
        self.work(order)
    }

    fn work(&mut self, order: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        loop {
            match self.memory.story.next() {
                NextStep::Nothing => return Err(AgentRunError::Usage("there is no run".to_owned())),
                NextStep::Ended(_) => {
                    self.memory.tidy()?;
                    return Ok(self.ended().unwrap_or(AgentOutcome::Interrupted));
                }
                // No further action is started; the running one is ended by its tool runner.
                _ if self.around.interrupt.load(Ordering::Relaxed) => {
                    self.give_up_open()?;
                    return Ok(AgentOutcome::Interrupted);
                }
                NextStep::Finish(answer) => self.end(EndStatus::Completed, None, Some(answer))?,
                NextStep::Nudge(thought) if thought.is_withheld() => {
                    self.end(EndStatus::Failed, Some(WITHHELD.to_owned()), None)?;
                }
                NextStep::Nudge(thought) => {
                    let content = nudge(thought);
                    self.nudge(content)?;
                }
                NextStep::Act(_) => {
                    if let Some(outcome) = self.act()? {
                        return Ok(outcome);
                    }
                }
                // Before the first request to the model, and after each result that it waits for (B8).
                NextStep::Think if !self.is_reconciled => {
                    self.reconcile()?;
                    self.is_reconciled = true;
                }
                NextStep::Think => match self.exhausted(order) {
                    Some(reason) => self.end(EndStatus::BudgetExhausted, Some(reason), None)?,
                    None => self.think()?,
                },
            }
        }
    }

    fn start(&mut self, run_id: String, message: Option<String>) -> Result<(), AgentRunError> {
        let agent = self.definition.folder.display().to_string();
        let model = self.definition.model.name.clone();
        let mut events = vec![AgentEvent::RunStart(RunStart { run_id, agent, model })];
        events.extend(self.ended_session_notices());
        events.extend(message.map(|text| AgentEvent::UserMessage(UserMessage { text })));
        Ok(self.record(events)?)
    }

    /// Ends the run. Sessions are ended first, so that no process of a run remains after its end is recorded (B6).
    fn end(
        &mut self,
        status: EndStatus,
        reason: Option<String>,
        answer: Option<String>,
    ) -> Result<(), AgentRunError> {
        let mut sessions: Vec<String> = self.memory.story.sessions().map(|(id, _)| id.to_owned()).collect();
        let kept = match self.at_end {
            SessionPolicy::EndSessions => Vec::new(),
            SessionPolicy::KeepSessions => std::mem::take(&mut sessions),
        };
        self.around.hands.end_sessions(&sessions);
        let ended = |session: String| {
            AgentEvent::SystemMessage(SystemMessage {
                level: MessageLevel::Info,
                content: format!("session {session} was ended with the run"),
                session_id: Some(session),
                session_event: Some(SessionChange::Ended),
            })
        };
        let ended: Vec<AgentEvent> = sessions.into_iter().map(ended).collect();
        if !ended.is_empty() {
            self.record(ended)?;
        }
        let kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        self.around.hands.end_others(&kept);
        let Some(run) = self.memory.story.run() else { return Ok(()) };
        let (run_id, iterations, usage) = (run.id.clone(), run.iterations, run.usage);
        // The state holds the answer with tokens. It is revealed here, because recording hides the secrets again.
        let answer = answer.map(|answer| self.memory.secrets.revealed(&answer));
        let end = RunEnd { run_id, status, reason, answer, iterations, usage };
        Ok(self.record(vec![AgentEvent::RunEnd(end)])?)
    }

    /// The budget that is exhausted, if one is.
    fn exhausted(&self, order: &AgentRunRequest) -> Option<String> {
        let run = self.memory.story.run()?;
        let limits = &self.definition.limits;
        let iterations = order.max_iterations.unwrap_or(limits.max_iterations);
        if run.iterations >= iterations {
            return Some(format!(
                "{iterations} iterations are used up; run the same command again to go on with as many"
            ));
        }
        let tokens = limits.max_total_tokens.filter(|most| run.usage.total() >= *most)?;
        let used = run.usage.total();
        Some(format!("{used} of {tokens} tokens are used; run the same command again to go on with as many"))
    }

    fn nudge(&mut self, content: String) -> Result<(), AgentRunError> {
        let empty = self.memory.story.run().map_or(0, |run| run.empty);
        if empty >= MOST_EMPTY {
            let reason = format!("the model said nothing {empty} times, one after the other");
            return self.end(EndStatus::Failed, Some(reason), None);
        }
        let message =
            SystemMessage { level: MessageLevel::Warn, content, session_id: None, session_event: None };
        Ok(self.record(vec![AgentEvent::SystemMessage(message)])?)
    }

    /// The recorded outcome of the run, with secrets revealed.
    fn ended(&self) -> Option<AgentOutcome> {
        self.memory.story.run()?.end.as_ref().map(AgentOutcome::of)
    }

    fn last_answer(&self) -> Option<LastAnswer> {
        let AnsweredQuestion { request, text } = self.memory.story.run()?.answered.as_ref()?;
        let is_sensitive = HumanQuestion::of(request).is_ok_and(|question| question.sensitive);
        Some(if is_sensitive && !self.memory.secrets.holds(&request.action_id) {
            LastAnswer::Forgotten
        } else {
            LastAnswer::Known(self.memory.secrets.revealed(text))
        })
    }

    /// The request in the form in which the journal is compared with it: the message with secrets hidden, and the
    /// number of an option replaced by its text. A number refers to the open question, unless it repeats the last
    /// answer and the open question has not been shown yet.
    fn resolved(
        &self,
        order: &AgentRunRequest,
        shown: Option<&HumanQuestion>,
        last: Option<&LastAnswer>,
    ) -> AgentRunRequest {
        let mut order = order.clone();
        order.message = order.message.map(|text| self.memory.secrets.hidden(&text));
        let Some(typed) = &order.answer else { return order };
        let question = |request: &ActionRequest| HumanQuestion::of(&self.revealed(request)).ok();
        let story = &self.memory.story;
        let open = story.open().find(|request| request.tool_name == human::TOOL).and_then(question);
        let answered = story.run().and_then(|run| question(&run.answered.as_ref()?.request));
        let repeated = answered.map(|answered| answered.resolve(typed));
        let is_repeated = match (last, &repeated) {
            (Some(LastAnswer::Known(last)), Some(repeated)) => last == repeated,
            (Some(LastAnswer::Forgotten) | None, _) | (_, None) => false,
        };
        let is_shown =
            |open: &HumanQuestion| shown.is_some_and(|shown| shown.interaction_id == open.interaction_id);
        let answer = match open {
            Some(open) if is_shown(&open) || !is_repeated => open.resolve(typed),
            Some(_) | None => repeated.unwrap_or_else(|| typed.clone()),
        };
        AgentRunRequest { answer: Some(answer), ..order }
    }

    /// The request with sensitive answers in place of their tokens.
    fn revealed(&self, request: &ActionRequest) -> ActionRequest {
        let mut request = request.clone();
        self.memory.secrets.reveal_request(&mut request);
        request
    }

    pub(crate) fn record(&mut self, events: Vec<AgentEvent>) -> Result<(), MemoryError> {
        self.memory.record(events, self.around.voice)
    }
}

/// The conversation is in the journal, so an unchanged request would be withheld again.
const WITHHELD: &str =
    "the model's service withheld its answer (content_filter); ask otherwise, or choose another model";

/// Number of consecutive empty replies after which a run fails.
const MOST_EMPTY: u64 = 3;

/// The notice to a model whose reply had neither an answer nor a call.
fn nudge(thought: &ModelThought) -> String {
    if thought.is_empty() {
        return "Your last answer was empty. Call a tool, or give your final answer in words.".to_owned();
    }
    "Your last answer was cut off at the limit of its length. Go on exactly where it ended and repeat nothing: what you \
     say now is appended to it."
        .to_owned()
}

/// The empty context window of an agent. `state` is the path under which the model reaches the state folder.
pub fn window(definition: &AgentDefinition, state: &str) -> ContextWindow {
    let overhead = offers(definition, HumanAvailability::Somebody).iter().map(String::len).sum();
    ContextWindow::new(&definition.system_prompt, definition.model.context_tokens, overhead, state)
}

fn offers(definition: &AgentDefinition, company: HumanAvailability) -> Vec<String> {
    let mut offers: Vec<String> = definition.tools.iter().map(|tool| tool.offer()).collect();
    if definition.tools.iter().any(|tool| tool.stateful) {
        offers.push(act::offer_session_end());
    }
    if company == HumanAvailability::Somebody {
        offers.push(human::offer());
    }
    offers
}

#[cfg(test)]
mod tests;
