//! The agent loop with a scripted model and tools that only record their calls.

mod foreign;

use std::{
    cell::{Cell, RefCell},
    collections::{HashSet, VecDeque},
    path::Path,
};

use serde_json::{Value, json};

use super::*;
use crate::{
    definition::{AgentLimits, ModelConfig, ToolDefinition},
    event::{ActionStatus, AgentJournalEntry},
    hands::{AbandonedAction, ActionOutcome, HumanReply},
    model::{FinishReason, ModelError, ModelReply, ModelRequest, ModelToolCall, ReplyDelta, TokenUsage},
    provenance::{ForeignStatePolicy, ProvenanceRecord, StateFolder, StateOrigin},
    state::StateDirectory,
    tool::RawArguments,
};

/// A state folder, a script, and the recorded requests and calls.
struct AgentLoopFixture {
    folder: tempfile::TempDir,
    /// The home's records.
    records: tempfile::TempDir,
    origin: Cell<StateOrigin>,
    definition: AgentDefinition,
    replies: RefCell<VecDeque<Result<ModelReply, ModelError>>>,
    /// The messages of each request.
    heard: RefCell<Vec<Vec<Value>>>,
    /// The executed calls.
    done: RefCell<Vec<String>>,
    /// Numbers in executed calls, in their original spelling.
    exact: RefCell<Vec<String>>,
    living: RefCell<HashSet<String>>,
    /// The answer of the person at the terminal.
    person: RefCell<Option<String>>,
    interrupted: InterruptFlag,
    /// The number of the action at which the person interrupts the run.
    stop_at: Cell<usize>,
}

impl AgentLoopFixture {
    fn new() -> Self {
        let tool = |name: &str, stateful| ToolDefinition {
            name: name.to_owned(),
            description: String::new(),
            command: vec![name.to_owned()],
            parameters: Vec::new(),
            timeout_sec: None,
            stateful,
            pty: None,
            shell: false,
            env: Default::default(),
            cwd: None,
        };
        let definition = AgentDefinition {
            model: ModelConfig {
                base_url: String::new(),
                name: "m".to_owned(),
                api_key_env: None,
                context_tokens: 100_000,
                temperature: None,
                max_output_tokens: None,
                timeout_sec: 1,
                max_retries: 0,
            },
            limits: AgentLimits { max_iterations: 10, max_total_tokens: None, observation_bytes: 1000 },
            tools: vec![tool("look", false), tool("shell", true)],
            system_prompt: "be good".to_owned(),
            folder: "agent".into(),
            key_variable: None,
        };
        Self {
            folder: tempfile::tempdir().unwrap(),
            records: tempfile::tempdir().unwrap(),
            origin: Cell::new(StateOrigin::Unknown),
            definition,
            replies: RefCell::default(),
            heard: RefCell::default(),
            done: RefCell::default(),
            exact: RefCell::default(),
            living: RefCell::default(),
            person: RefCell::default(),
            interrupted: InterruptFlag::new(false),
            stop_at: Cell::new(usize::MAX),
        }
    }

    fn then(&self, reply: ModelReply) -> &Self {
        self.replies.borrow_mut().push_back(Ok(reply));
        self
    }

    fn state(&self) -> &Path {
        self.folder.path()
    }

    /// The open question in the state folder.
    fn question(&self) -> Option<HumanQuestion> {
        let state = self.state();
        let opened = StateDirectory::open(state.parent().unwrap(), Path::new(state.file_name().unwrap()));
        HumanQuestion::shown(&opened.unwrap())
    }

    fn order(&self, order: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        self.order_in(self.memory(ForeignStatePolicy::Refuse)?, order)
    }

    fn order_in(&self, memory: AgentState, order: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        let (mut mind, mut hands, mut voice) =
            (ScriptedModel(self), FakeToolRunner(self), SilentObserver(self));
        self.interrupted.store(false, Ordering::Relaxed);
        let around =
            AgentDeps { mind: &mut mind, hands: &mut hands, voice: &mut voice, interrupt: &self.interrupted };
        AgentRunner::new(&self.definition, memory, around).run(order)
    }

    fn memory(&self, on_foreign: ForeignStatePolicy) -> Result<AgentState, MemoryError> {
        let state = self.state();
        let folder = StateFolder {
            root: state.parent().unwrap().to_owned(),
            relative: state.file_name().unwrap().into(),
            records: self.records.path().to_owned(),
            record_id: None,
            origin: self.origin.get(),
            keeper_arguments: Vec::new(),
        };
        AgentState::open(&folder, on_foreign, window(&self.definition, ".abide"))
    }

    /// Replaces the journal with one that counts as Abide's own.
    fn leave_journal(&self, text: &str) {
        std::fs::write(self.state().join("journal.jsonl"), text).unwrap();
        match std::fs::read_to_string(self.state().join("id")) {
            Ok(id) => {
                let mut record = ProvenanceRecord::open(&self.records.path().join(id.trim())).unwrap();
                record.restart(text.as_bytes()).unwrap();
            }
            Err(_) => self.origin.set(StateOrigin::EarlierVersion),
        }
    }

    fn message(&self, text: &str) -> AgentOutcome {
        self.order(&AgentRunRequest { message: Some(text.to_owned()), ..AgentRunRequest::default() }).unwrap()
    }

    fn answer(&self, text: &str) -> Result<AgentOutcome, AgentRunError> {
        self.order(&AgentRunRequest { answer: Some(text.to_owned()), ..AgentRunRequest::default() })
    }

    fn journal(&self) -> String {
        std::fs::read_to_string(self.state().join("journal.jsonl")).unwrap()
    }

    /// The roles and texts of the last request.
    fn last_heard(&self) -> Vec<String> {
        let heard = self.heard.borrow();
        let tell = |message: &Value| {
            let text = message["content"].as_str().unwrap_or("-");
            format!("{}: {}", message["role"].as_str().unwrap(), text.split(". ").next().unwrap())
        };
        heard.last().unwrap().iter().map(tell).collect()
    }
}

struct ScriptedModel<'a>(&'a AgentLoopFixture);

impl ChatModel for ScriptedModel<'_> {
    fn think(
        &mut self,
        request: &ModelRequest<'_>,
        _: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        let messages = request.messages.iter().map(|json| serde_json::from_str(json).unwrap()).collect();
        self.0.heard.borrow_mut().push(messages);
        let next = self.0.replies.borrow_mut().pop_front();
        next.unwrap_or_else(|| Err(ModelError::Config("the script is over".to_owned())))
    }
}

struct FakeToolRunner<'a>(&'a AgentLoopFixture);

impl ToolRunner for FakeToolRunner<'_> {
    fn carry_out(&mut self, _: &str, tool: &ToolDefinition, arguments: &RawArguments) -> ActionOutcome {
        let told = format!("{} {}", tool.name, Value::Object(arguments.values.clone()));
        self.0.done.borrow_mut().push(told.clone());
        self.0.exact.borrow_mut().extend(arguments.exact.values().cloned());
        if self.0.done.borrow().len() == self.0.stop_at.get() {
            self.0.interrupted.store(true, Ordering::Relaxed);
            return ActionOutcome { status: ActionStatus::Interrupted, ..ActionOutcome::refused("stopped") };
        }
        let done =
            ActionOutcome { status: ActionStatus::Success, ..ActionOutcome::refused(format!("did {told}")) };
        if !tool.stateful || arguments.values.contains_key("session_id") {
            return done;
        }
        let id = format!("shell_{}", self.0.living.borrow().len() + 1);
        self.0.living.borrow_mut().insert(id.clone());
        ActionOutcome { session_id: Some(id), session_event: Some(SessionChange::Started), ..done }
    }

    fn end_session(&mut self, id: &str) -> ActionOutcome {
        self.0.living.borrow_mut().remove(id);
        ActionOutcome {
            status: ActionStatus::Success,
            ..ActionOutcome::refused(format!("Session {id} terminated."))
        }
    }

    fn end_sessions(&mut self, ids: &[String]) {
        self.0.living.borrow_mut().retain(|id| !ids.contains(id));
    }

    fn start_directory(&self, _: &ToolDefinition) -> String {
        "/somewhere".to_owned()
    }

    fn is_alive(&mut self, id: &str) -> bool {
        self.0.living.borrow().contains(id)
    }

    fn abandon(&mut self, _: &str) -> Option<AbandonedAction> {
        None
    }

    fn end_others(&mut self, known: &[&str]) {
        self.0.living.borrow_mut().retain(|id| known.contains(&id.as_str()));
    }

    fn keep_out(&mut self, _: Vec<String>) {}
}

struct SilentObserver<'a>(&'a AgentLoopFixture);

impl AgentObserver for SilentObserver<'_> {
    fn happened(&mut self, _: &AgentJournalEntry, _: &str) {}
    fn saying(&mut self, _: ReplyDelta<'_>) {}
    fn note(&mut self, _: &str) {}
    fn ask(&mut self, _: &HumanQuestion) -> HumanReply {
        self.0.person.borrow_mut().take().map_or(HumanReply::Nobody, HumanReply::Answered)
    }
}

fn says(text: &str) -> ModelReply {
    let usage = Some(TokenUsage { input_tokens: 10, output_tokens: 5, ..TokenUsage::default() });
    ModelReply { text: Some(text.to_owned()), calls: Vec::new(), finish: FinishReason::Stop, usage }
}

fn calls(calls: &[(&str, Value)]) -> ModelReply {
    let call = |(index, (name, args)): (usize, &(&str, Value))| ModelToolCall {
        id: format!("c{index}"),
        name: (*name).to_owned(),
        arguments: args.as_str().map_or_else(|| args.to_string(), str::to_owned),
    };
    ModelReply {
        text: None,
        calls: calls.iter().enumerate().map(call).collect(),
        finish: FinishReason::ToolCalls,
        ..says("")
    }
}

fn completed(answer: &str) -> AgentOutcome {
    AgentOutcome::Completed { answer: answer.to_owned() }
}

#[test]
fn a_run_thinks_acts_and_ends_and_the_same_command_tells_its_answer_again() {
    let stage = AgentLoopFixture::new();
    stage.then(calls(&[("look", json!({ "at": "x" }))])).then(says("seen"));
    assert_eq!(stage.message("go"), completed("seen"));
    assert_eq!(stage.message("go"), completed("seen"));
    assert_eq!(stage.heard.borrow().len(), 2);
    assert_eq!(stage.order(&AgentRunRequest::default()).unwrap(), completed("seen"));
    stage.then(says("seen anew"));
    let again = AgentRunRequest { message: Some("go".to_owned()), again: true, ..AgentRunRequest::default() };
    assert_eq!(stage.order(&again).unwrap(), completed("seen anew"));
    stage.then(says("more"));
    assert_eq!(stage.message("and now?"), completed("more"));
    assert_eq!(stage.last_heard().last().unwrap(), "user: and now?");
}

#[test]
fn a_question_in_a_batch_waits_until_the_rest_of_it_is_done_and_sessions_stay() {
    let stage = AgentLoopFixture::new();
    let ask = json!({ "question": "which?", "options": ["a", "b"] });
    stage.then(calls(&[
        ("ask_human", ask),
        ("shell", json!({})),
        ("nothing", json!({})),
        ("look", json!("{")),
    ]));
    let AgentOutcome::Waiting { question } = stage.message("go") else { panic!("nobody is asked") };
    assert_eq!((question.question.as_str(), question.options.len()), ("which?", 2));
    assert_eq!(stage.question(), Some(question));
    assert_eq!(stage.living.borrow().len(), 1);
    // Repeated without an answer, the run still waits and the model gets no request.
    assert!(matches!(stage.message("go"), AgentOutcome::Waiting { .. }));
    assert_eq!(stage.heard.borrow().len(), 1);
    stage.then(says("b it is"));
    assert_eq!(stage.answer("b").unwrap(), completed("b it is"));
    let heard = stage.last_heard();
    assert_eq!(heard[..4], ["system: be good", "user: go", "assistant: -", "tool: b"]);
    assert_eq!(heard[4], "tool: did shell {}");
    assert!(heard[5].starts_with("tool: there is no tool nothing"), "{heard:?}");
    assert!(heard[6].starts_with("tool: not carried out: the arguments are no JSON object"), "{heard:?}");
    assert_eq!(stage.living.borrow().len(), 0);
    assert!(stage.question().is_none());
    // The same command again: the answer was already recorded.
    assert_eq!(stage.answer("b").unwrap(), completed("b it is"));
    assert!(matches!(stage.answer("a"), Err(AgentRunError::Usage(_))));
}

#[test]
fn an_answer_without_any_question_is_refused() {
    let stage = AgentLoopFixture::new();
    assert!(matches!(stage.answer("x"), Err(AgentRunError::Usage(_))));
    assert!(matches!(stage.order(&AgentRunRequest::default()), Err(AgentRunError::Usage(_))));
    stage.then(says("done"));
    stage.message("go");
    let before = stage.journal();
    assert!(matches!(stage.answer("x"), Err(AgentRunError::Usage(_))));
    assert_eq!(stage.journal(), before);
}

#[test]
fn a_question_at_a_terminal_is_answered_there() {
    let stage = AgentLoopFixture::new();
    *stage.person.borrow_mut() = Some("blue".to_owned());
    stage.then(calls(&[("ask_human", json!({ "question": "colour?" }))])).then(says("ok"));
    assert_eq!(stage.message("go"), completed("ok"));
    assert_eq!(stage.last_heard().last().unwrap(), "tool: blue");
}

#[test]
fn a_sensitive_answer_reaches_model_and_tools_and_never_the_journal() {
    let stage = AgentLoopFixture::new();
    let ask = json!({ "question": "password?", "sensitive": true });
    stage.then(calls(&[("ask_human", ask)]));
    stage.message("go");
    stage.then(calls(&[("look", json!({ "with": "hunter2" }))])).then(says("in with hunter2"));
    let AgentOutcome::Completed { answer } = stage.answer("hunter2").unwrap() else {
        panic!("it is not completed")
    };
    let (_, token) = answer.split_once("in with ").unwrap();
    assert!(token.starts_with('⟦') && token.ends_with('⟧'), "{answer}");
    assert!(stage.journal().contains(&format!("\"observation_content\":\"{token}\"")), "{}", stage.journal());
    assert_eq!(stage.done.borrow().as_slice(), [r#"look {"with":"hunter2"}"#]);
    assert!(stage.last_heard().contains(&"tool: hunter2".to_owned()));
    assert!(!stage.journal().contains("hunter2"), "{}", stage.journal());
    let id = std::fs::read_to_string(stage.state().join("id")).unwrap();
    let record = stage.records.path().join(id.trim());
    assert!(record.join("written").exists() && !record.join("secrets").exists());
    // The answer was deleted, so it cannot be compared; any answer is accepted.
    assert!(matches!(stage.answer("hunter2").unwrap(), AgentOutcome::Completed { .. }));
}

/// Truncates the journal before its first event of this kind, like a crash at that point.
fn die_before(stage: &AgentLoopFixture, kind: &str, skip: usize) {
    let journal = stage.journal();
    let lines: Vec<&str> = journal.split_inclusive('\n').collect();
    let mut found = lines.iter().enumerate().filter(|(_, line)| line.contains(&format!("\"{kind}\"")));
    let (index, _) = found.nth(skip).unwrap();
    stage.leave_journal(&lines[..index].concat());
}

#[test]
fn a_call_without_a_result_is_told_to_be_unknown_before_a_lost_session_is() {
    let stage = AgentLoopFixture::new();
    let batch = [("shell", json!({ "session_id": "shell_1" })), ("look", json!({}))];
    stage.then(calls(&[("shell", json!({}))])).then(calls(&batch)).then(says("done"));
    stage.message("go");
    // Both results of the second batch and the session are lost.
    die_before(&stage, "ACTION_RESULT", 1);
    stage.living.borrow_mut().clear();
    stage.then(says("recovered"));
    assert_eq!(stage.message("go"), completed("recovered"));
    let heard = stage.last_heard();
    let unknown = "tool: The outcome of this call is unknown: abide was stopped while it ran";
    assert_eq!(heard[5..7], [unknown, unknown]);
    let notice = format!(
        "user: {} Recovery notice: session 'shell_1' of tool shell was found inactive and could \
                          not be reconnected",
        crate::context::NOTICE
    );
    assert_eq!(heard[7], notice);
    assert_eq!(heard.len(), 8);
    assert_eq!(stage.journal().matches("Recovery notice").count(), 1);
}

#[test]
fn a_run_that_died_after_its_answer_is_ended_without_asking_again() {
    let stage = AgentLoopFixture::new();
    stage.then(calls(&[("shell", json!({}))])).then(says("done"));
    stage.message("go");
    die_before(&stage, "SYSTEM_MESSAGE", 0);
    stage.living.borrow_mut().insert("shell_1".to_owned());
    assert_eq!(stage.message("go"), completed("done"));
    assert_eq!((stage.heard.borrow().len(), stage.living.borrow().len()), (2, 0));
    assert!(!stage.journal().contains("Recovery"));
}

#[test]
fn a_used_up_budget_is_no_success_and_the_same_command_goes_on_with_a_fresh_one() {
    let stage = AgentLoopFixture::new();
    for _ in 0..3 {
        stage.then(calls(&[("look", json!({}))]));
    }
    let order = AgentRunRequest {
        message: Some("go".to_owned()),
        max_iterations: Some(2),
        ..AgentRunRequest::default()
    };
    assert!(matches!(stage.order(&order).unwrap(), AgentOutcome::BudgetExhausted { .. }));
    assert_eq!(stage.heard.borrow().len(), 2);
    stage.then(says("done"));
    assert_eq!(stage.order(&order).unwrap(), completed("done"));
    assert_eq!(stage.journal().matches("USER_MESSAGE").count(), 1);
    let mut stage = AgentLoopFixture::new();
    stage.definition.limits.max_total_tokens = Some(20);
    stage.then(calls(&[("look", json!({}))])).then(calls(&[("look", json!({}))])).then(says("done"));
    assert!(matches!(stage.message("go"), AgentOutcome::BudgetExhausted { .. }));
    assert_eq!(stage.heard.borrow().len(), 2);
}

#[test]
fn a_model_that_fails_fails_the_run_and_another_message_goes_on_with_it() {
    let stage = AgentLoopFixture::new();
    assert!(matches!(stage.message("go"), AgentOutcome::Failed { .. }));
    stage.then(says("done"));
    assert_eq!(stage.message("try again"), completed("done"));
    assert_eq!(stage.last_heard(), ["system: be good", "user: go", "user: try again"]);
}

#[test]
fn sessions_that_ended_with_a_run_are_told_to_the_model_before_it_goes_on() {
    // The model fails, and afterwards the run is completed: in both cases the session of the earlier part is ended.
    for (last, next) in [(None, "more"), (Some(says("done")), "more"), (None, "go")] {
        let stage = AgentLoopFixture::new();
        stage.then(calls(&[("shell", json!({}))]));
        if let Some(last) = last {
            stage.then(last);
        }
        stage.message("go");
        assert!(stage.living.borrow().is_empty());
        stage.then(says("I see"));
        assert_eq!(stage.message(next), completed("I see"));
        let heard = stage.heard.borrow().last().unwrap().clone();
        let texts: Vec<&str> =
            heard.iter().map(|message| message["content"].as_str().unwrap_or("-")).collect();
        let notices: Vec<&&str> =
            texts.iter().filter(|text| text.starts_with(crate::context::NOTICE)).collect();
        let expected = format!(
            "{} Session 'shell_1' of tool shell was ended when the run stopped. Its process has ended, and what it held \
             (variables, directory, connections) is lost. The next call of shell starts a new session in /somewhere.",
            crate::context::NOTICE
        );
        assert_eq!(notices, [&expected], "{texts:#?}");
        // After the result of the call, and before the new message of the person.
        let last = if next == "more" { "more" } else { expected.as_str() };
        assert_eq!(texts.last(), Some(&last), "{texts:#?}");
        // The notice is sent only once.
        stage.then(says("again"));
        assert_eq!(stage.message("and more"), completed("again"));
        assert_eq!(stage.journal().matches("was ended when the run stopped").count(), 1);
    }
}

#[test]
fn a_process_that_dies_before_it_told_of_an_ended_session_leaves_that_to_the_next() {
    let stage = AgentLoopFixture::new();
    stage.then(calls(&[("shell", json!({}))]));
    stage.message("go");
    stage.then(says("I see"));
    stage.message("more");
    // Only the start of the second part was written.
    die_before(&stage, "SYSTEM_MESSAGE", 1);
    stage.then(says("I see"));
    assert_eq!(stage.message("more"), completed("I see"));
    assert!(stage.heard.borrow().last().unwrap().iter().any(|message| {
        message["content"].as_str().is_some_and(|text| text.contains("was ended when the run stopped"))
    }));
}

#[test]
fn a_number_that_no_machine_word_holds_is_journalled_carried_out_and_shown_as_it_was_written() {
    let stage = AgentLoopFixture::new();
    let mut call = calls(&[("look", json!({}))]);
    call.calls[0].arguments = r#"{"count": 123456789012345678901234567890}"#.to_owned();
    stage.then(call).then(says("done"));
    stage.message("go");
    assert_eq!(*stage.exact.borrow(), ["123456789012345678901234567890"]);
    // The next process reads the same values from the journal.
    stage.then(says("again"));
    stage.message("more");
    let heard = stage.heard.borrow();
    let shown = heard
        .last()
        .unwrap()
        .iter()
        .find_map(|message| message["tool_calls"][0]["function"]["arguments"].as_str());
    assert_eq!(shown, Some(r#"{"count": 123456789012345678901234567890}"#));
}

#[test]
fn a_model_that_says_nothing_is_told_so_and_not_for_ever() {
    let stage = AgentLoopFixture::new();
    let cut = ModelReply { finish: FinishReason::Length, ..says("once upon") };
    stage.then(says("")).then(cut).then(says(" ")).then(says("")).then(says(""));
    let AgentOutcome::Failed { reason } = stage.message("go") else { panic!("it went on") };
    assert_eq!(reason, "the model said nothing 3 times, one after the other");
    assert_eq!(stage.heard.borrow().len(), 5);
}

#[test]
fn an_answer_that_is_withheld_is_a_failure_and_no_answer() {
    let stage = AgentLoopFixture::new();
    stage.then(ModelReply { finish: FinishReason::ContentFilter, ..says("it is well known that") });
    let AgentOutcome::Failed { reason } = stage.message("go") else { panic!("it went on") };
    assert!(reason.contains("withheld"), "{reason}");
    stage.then(says("done"));
    assert_eq!(stage.message("go"), completed("done"));
}

#[test]
fn an_interrupted_batch_leaves_no_call_without_a_result_and_goes_on() {
    let stage = AgentLoopFixture::new();
    stage.stop_at.set(2);
    stage.then(calls(&[
        ("look", json!({ "n": 1 })),
        ("look", json!({ "n": 2 })),
        ("look", json!({ "n": 3 })),
    ]));
    assert_eq!(stage.message("go"), AgentOutcome::Interrupted);
    assert_eq!(stage.done.borrow().len(), 2);
    stage.then(says("I see"));
    assert_eq!(stage.message("go"), completed("I see"));
    let heard = stage.last_heard();
    assert_eq!(heard[4], "tool: stopped");
    assert_eq!(heard[5], "tool: not carried out: the person stopped the run before it was begun");
    assert_eq!(stage.done.borrow().len(), 2);
}

#[test]
fn two_at_once_are_refused() {
    let stage = AgentLoopFixture::new();
    let _first = stage.memory(ForeignStatePolicy::Refuse).unwrap();
    let error = stage.order(&AgentRunRequest::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("another process (pid {})", std::process::id())), "{error}");
}

#[test]
fn ids_that_a_model_uses_twice_are_made_different() {
    let stage = AgentLoopFixture::new();
    for _ in 0..2 {
        stage.then(calls(&[("look", json!({}))]));
    }
    stage.then(says("done"));
    stage.message("go");
    let heard = stage.heard.borrow();
    let ids: HashSet<&str> = heard[2].iter().filter_map(|message| message["tool_call_id"].as_str()).collect();
    assert_eq!(ids.len(), 2);
}
