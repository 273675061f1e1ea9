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
    environment::{AbandonedAction, ActionOutcome, HumanReply},
    event::{ActionStatus, AgentJournalEntry},
    model::{FinishReason, ModelError, ModelReply, ModelRequest, ModelToolCall, ReplyDelta, TokenUsage},
    provenance::{ForeignStatePolicy, ProvenanceRecord, StateFolder, StateOrigin},
    state_directory::StateDirectory,
    tool::RawArguments,
};

/// A state folder, a script, and the recorded requests and calls.
struct AgentLoopFixture {
    folder: tempfile::TempDir,
    records: tempfile::TempDir,
    origin: Cell<StateOrigin>,
    definition: AgentDefinition,
    replies: RefCell<VecDeque<Result<ModelReply, ModelError>>>,
    /// The messages of each request.
    requests: RefCell<Vec<Vec<Value>>>,
    executed_calls: RefCell<Vec<String>>,
    /// Numbers in executed calls, in their original spelling.
    exact_numbers: RefCell<Vec<String>>,
    living_sessions: RefCell<HashSet<String>>,
    /// The answer of the person at the terminal.
    person_answer: RefCell<Option<String>>,
    interrupted: InterruptFlag,
    /// The number of the action at which the person interrupts the run.
    interrupt_at_action: Cell<usize>,
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
            requests: RefCell::default(),
            executed_calls: RefCell::default(),
            exact_numbers: RefCell::default(),
            living_sessions: RefCell::default(),
            person_answer: RefCell::default(),
            interrupted: InterruptFlag::new(false),
            interrupt_at_action: Cell::new(usize::MAX),
        }
    }

    fn push_reply(&self, reply: ModelReply) -> &Self {
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
        HumanQuestion::read_file(&opened.unwrap())
    }

    fn run(&self, order: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        self.run_in(self.open_state(ForeignStatePolicy::Refuse)?, order)
    }

    fn run_in(&self, state: AgentState, request: &AgentRunRequest) -> Result<AgentOutcome, AgentRunError> {
        let (mut mind, mut hands, mut observer) =
            (ScriptedModel(self), FakeToolRunner(self), SilentObserver(self));
        self.interrupted.store(false, Ordering::Relaxed);
        let around = AgentDeps {
            model: &mut mind,
            tools: &mut hands,
            observer: &mut observer,
            interrupt: &self.interrupted,
        };
        AgentRunner::new(&self.definition, state, around).run(request)
    }

    fn open_state(&self, on_foreign: ForeignStatePolicy) -> Result<AgentState, MemoryError> {
        let state = self.state();
        let folder = StateFolder {
            root: state.parent().unwrap().to_owned(),
            relative: state.file_name().unwrap().into(),
            records: self.records.path().to_owned(),
            record_id: None,
            origin: self.origin.get(),
            keeper_arguments: Vec::new(),
        };
        AgentState::open(&folder, on_foreign, empty_context(&self.definition, ".abide"))
    }

    /// Replaces the journal with one that counts as Abide's own.
    fn write_journal(&self, text: &str) {
        std::fs::write(self.state().join("journal.jsonl"), text).unwrap();
        match std::fs::read_to_string(self.state().join("id")) {
            Ok(id) => {
                let mut record = ProvenanceRecord::open(&self.records.path().join(id.trim())).unwrap();
                record.reset(text.as_bytes()).unwrap();
            }
            Err(_) => self.origin.set(StateOrigin::EarlierVersion),
        }
    }

    fn message(&self, text: &str) -> AgentOutcome {
        self.run(&AgentRunRequest { message: Some(text.to_owned()), ..AgentRunRequest::default() }).unwrap()
    }

    fn answer(&self, text: &str) -> Result<AgentOutcome, AgentRunError> {
        self.run(&AgentRunRequest { answer: Some(text.to_owned()), ..AgentRunRequest::default() })
    }

    fn journal(&self) -> String {
        std::fs::read_to_string(self.state().join("journal.jsonl")).unwrap()
    }

    /// The roles and texts of the last request.
    fn last_request(&self) -> Vec<String> {
        let requests = self.requests.borrow();
        let tell = |message: &Value| {
            let text = message["content"].as_str().unwrap_or("-");
            format!("{}: {}", message["role"].as_str().unwrap(), text.split(". ").next().unwrap())
        };
        requests.last().unwrap().iter().map(tell).collect()
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
        self.0.requests.borrow_mut().push(messages);
        let next = self.0.replies.borrow_mut().pop_front();
        next.unwrap_or_else(|| Err(ModelError::Config("the script is over".to_owned())))
    }
}

struct FakeToolRunner<'a>(&'a AgentLoopFixture);

impl ToolRunner for FakeToolRunner<'_> {
    fn execute(&mut self, _: &str, tool: &ToolDefinition, arguments: &RawArguments) -> ActionOutcome {
        let call = format!("{} {}", tool.name, Value::Object(arguments.values.clone()));
        self.0.executed_calls.borrow_mut().push(call.clone());
        self.0.exact_numbers.borrow_mut().extend(arguments.exact_numbers.values().cloned());
        if self.0.executed_calls.borrow().len() == self.0.interrupt_at_action.get() {
            self.0.interrupted.store(true, Ordering::Relaxed);
            return ActionOutcome { status: ActionStatus::Interrupted, ..ActionOutcome::refused("stopped") };
        }
        let done =
            ActionOutcome { status: ActionStatus::Success, ..ActionOutcome::refused(format!("did {call}")) };
        if !tool.stateful || arguments.values.contains_key("session_id") {
            return done;
        }
        let id = format!("shell_{}", self.0.living_sessions.borrow().len() + 1);
        self.0.living_sessions.borrow_mut().insert(id.clone());
        ActionOutcome { session_id: Some(id), session_event: Some(SessionChange::Started), ..done }
    }

    fn end_session(&mut self, id: &str) -> ActionOutcome {
        self.0.living_sessions.borrow_mut().remove(id);
        ActionOutcome {
            status: ActionStatus::Success,
            ..ActionOutcome::refused(format!("Session {id} terminated."))
        }
    }

    fn end_sessions(&mut self, ids: &[String]) {
        self.0.living_sessions.borrow_mut().retain(|id| !ids.contains(id));
    }

    fn start_directory(&self, _: &ToolDefinition) -> String {
        "/somewhere".to_owned()
    }

    fn is_session_alive(&mut self, id: &str) -> bool {
        self.0.living_sessions.borrow().contains(id)
    }

    fn recover_action(&mut self, _: &str) -> Option<AbandonedAction> {
        None
    }

    fn end_sessions_except(&mut self, kept_ids: &[&str]) {
        self.0.living_sessions.borrow_mut().retain(|id| kept_ids.contains(&id.as_str()));
    }

    fn redact(&mut self, _: Vec<String>) {}
}

struct SilentObserver<'a>(&'a AgentLoopFixture);

impl AgentObserver for SilentObserver<'_> {
    fn on_entry(&mut self, _: &AgentJournalEntry, _: &str) {}
    fn on_reply_delta(&mut self, _: ReplyDelta<'_>) {}
    fn on_notice(&mut self, _: &str) {}
    fn ask_person(&mut self, _: &HumanQuestion) -> HumanReply {
        self.0.person_answer.borrow_mut().take().map_or(HumanReply::NoAnswer, HumanReply::Answered)
    }
}

fn text_reply(text: &str) -> ModelReply {
    let usage = Some(TokenUsage { input_tokens: 10, output_tokens: 5, ..TokenUsage::default() });
    ModelReply { text: Some(text.to_owned()), calls: Vec::new(), finish_reason: FinishReason::Stop, usage }
}

fn calls_reply(calls: &[(&str, Value)]) -> ModelReply {
    let call = |(index, (name, args)): (usize, &(&str, Value))| ModelToolCall {
        id: format!("c{index}"),
        name: (*name).to_owned(),
        arguments: args.as_str().map_or_else(|| args.to_string(), str::to_owned),
    };
    ModelReply {
        text: None,
        calls: calls.iter().enumerate().map(call).collect(),
        finish_reason: FinishReason::ToolCalls,
        ..text_reply("")
    }
}

fn completed(answer: &str) -> AgentOutcome {
    AgentOutcome::Completed { answer: answer.to_owned() }
}

#[test]
fn a_run_thinks_acts_and_ends_and_the_same_command_returns_its_answer() {
    let fixture = AgentLoopFixture::new();
    fixture.push_reply(calls_reply(&[("look", json!({ "at": "x" }))])).push_reply(text_reply("seen"));
    assert_eq!(fixture.message("go"), completed("seen"));
    assert_eq!(fixture.message("go"), completed("seen"));
    assert_eq!(fixture.requests.borrow().len(), 2);
    assert_eq!(fixture.run(&AgentRunRequest::default()).unwrap(), completed("seen"));
    fixture.push_reply(text_reply("seen again"));
    let again = AgentRunRequest {
        message: Some("go".to_owned()),
        restart_completed: true,
        ..AgentRunRequest::default()
    };
    assert_eq!(fixture.run(&again).unwrap(), completed("seen again"));
    fixture.push_reply(text_reply("more"));
    assert_eq!(fixture.message("and now?"), completed("more"));
    assert_eq!(fixture.last_request().last().unwrap(), "user: and now?");
}

#[test]
fn a_question_in_a_batch_waits_until_the_rest_of_it_is_done_and_sessions_stay() {
    let fixture = AgentLoopFixture::new();
    let ask = json!({ "question": "which?", "options": ["a", "b"] });
    fixture.push_reply(calls_reply(&[
        ("ask_human", ask),
        ("shell", json!({})),
        ("nothing", json!({})),
        ("look", json!("{")),
    ]));
    let AgentOutcome::Waiting { question } = fixture.message("go") else { panic!("no question is asked") };
    assert_eq!((question.question.as_str(), question.options.len()), ("which?", 2));
    assert_eq!(fixture.question(), Some(question));
    assert_eq!(fixture.living_sessions.borrow().len(), 1);
    // Repeated without an answer, the run still waits and the model gets no request.
    assert!(matches!(fixture.message("go"), AgentOutcome::Waiting { .. }));
    assert_eq!(fixture.requests.borrow().len(), 1);
    fixture.push_reply(text_reply("b it is"));
    assert_eq!(fixture.answer("b").unwrap(), completed("b it is"));
    let requests = fixture.last_request();
    assert_eq!(requests[..4], ["system: be good", "user: go", "assistant: -", "tool: b"]);
    assert_eq!(requests[4], "tool: did shell {}");
    assert!(requests[5].starts_with("tool: there is no tool nothing"), "{requests:?}");
    assert!(
        requests[6].starts_with("tool: not carried out: the arguments are not a JSON object"),
        "{requests:?}"
    );
    assert_eq!(fixture.living_sessions.borrow().len(), 0);
    assert!(fixture.question().is_none());
    // The same command again: the answer was already recorded.
    assert_eq!(fixture.answer("b").unwrap(), completed("b it is"));
    assert!(matches!(fixture.answer("a"), Err(AgentRunError::Usage(_))));
}

#[test]
fn an_answer_without_any_question_is_refused() {
    let fixture = AgentLoopFixture::new();
    assert!(matches!(fixture.answer("x"), Err(AgentRunError::Usage(_))));
    assert!(matches!(fixture.run(&AgentRunRequest::default()), Err(AgentRunError::Usage(_))));
    fixture.push_reply(text_reply("done"));
    fixture.message("go");
    let before = fixture.journal();
    assert!(matches!(fixture.answer("x"), Err(AgentRunError::Usage(_))));
    assert_eq!(fixture.journal(), before);
}

#[test]
fn a_question_at_a_terminal_is_answered_there() {
    let fixture = AgentLoopFixture::new();
    *fixture.person_answer.borrow_mut() = Some("blue".to_owned());
    fixture
        .push_reply(calls_reply(&[("ask_human", json!({ "question": "colour?" }))]))
        .push_reply(text_reply("ok"));
    assert_eq!(fixture.message("go"), completed("ok"));
    assert_eq!(fixture.last_request().last().unwrap(), "tool: blue");
}

#[test]
fn a_sensitive_answer_reaches_model_and_tools_and_never_the_journal() {
    let fixture = AgentLoopFixture::new();
    let ask = json!({ "question": "password?", "sensitive": true });
    fixture.push_reply(calls_reply(&[("ask_human", ask)]));
    fixture.message("go");
    fixture
        .push_reply(calls_reply(&[("look", json!({ "with": "hunter2" }))]))
        .push_reply(text_reply("in with hunter2"));
    let AgentOutcome::Completed { answer } = fixture.answer("hunter2").unwrap() else {
        panic!("it is not completed")
    };
    let (_, token) = answer.split_once("in with ").unwrap();
    assert!(token.starts_with('⟦') && token.ends_with('⟧'), "{answer}");
    assert!(
        fixture.journal().contains(&format!("\"observation_content\":\"{token}\"")),
        "{}",
        fixture.journal()
    );
    assert_eq!(fixture.executed_calls.borrow().as_slice(), [r#"look {"with":"hunter2"}"#]);
    assert!(fixture.last_request().contains(&"tool: hunter2".to_owned()));
    assert!(!fixture.journal().contains("hunter2"), "{}", fixture.journal());
    let id = std::fs::read_to_string(fixture.state().join("id")).unwrap();
    let record = fixture.records.path().join(id.trim());
    assert!(record.join("written").exists() && !record.join("secrets").exists());
    // The answer was deleted, so it cannot be compared; any answer is accepted.
    assert!(matches!(fixture.answer("hunter2").unwrap(), AgentOutcome::Completed { .. }));
}

/// Truncates the journal before its first event of this kind, like a crash at that point.
fn truncate_journal_before(fixture: &AgentLoopFixture, kind: &str, skip: usize) {
    let journal = fixture.journal();
    let lines: Vec<&str> = journal.split_inclusive('\n').collect();
    let mut entries = lines.iter().enumerate().filter(|(_, line)| line.contains(&format!("\"{kind}\"")));
    let (index, _) = entries.nth(skip).unwrap();
    fixture.write_journal(&lines[..index].concat());
}

#[test]
fn an_unfinished_call_is_reported_unknown_before_a_lost_session() {
    let fixture = AgentLoopFixture::new();
    let batch = [("shell", json!({ "session_id": "shell_1" })), ("look", json!({}))];
    fixture
        .push_reply(calls_reply(&[("shell", json!({}))]))
        .push_reply(calls_reply(&batch))
        .push_reply(text_reply("done"));
    fixture.message("go");
    // Both results of the second batch and the session are lost.
    truncate_journal_before(&fixture, "ACTION_RESULT", 1);
    fixture.living_sessions.borrow_mut().clear();
    fixture.push_reply(text_reply("recovered"));
    assert_eq!(fixture.message("go"), completed("recovered"));
    let requests = fixture.last_request();
    let unknown = "tool: The outcome of this call is unknown: abide was stopped while it ran";
    assert_eq!(requests[5..7], [unknown, unknown]);
    let notice = format!(
        "user: {} Recovery notice: session 'shell_1' of tool shell was found inactive and could \
                          not be reconnected",
        crate::context::NOTICE_PREFIX
    );
    assert_eq!(requests[7], notice);
    assert_eq!(requests.len(), 8);
    assert_eq!(fixture.journal().matches("Recovery notice").count(), 1);
}

#[test]
fn a_run_that_died_after_its_answer_is_ended_without_asking_again() {
    let fixture = AgentLoopFixture::new();
    fixture.push_reply(calls_reply(&[("shell", json!({}))])).push_reply(text_reply("done"));
    fixture.message("go");
    truncate_journal_before(&fixture, "SYSTEM_MESSAGE", 0);
    fixture.living_sessions.borrow_mut().insert("shell_1".to_owned());
    assert_eq!(fixture.message("go"), completed("done"));
    assert_eq!((fixture.requests.borrow().len(), fixture.living_sessions.borrow().len()), (2, 0));
    assert!(!fixture.journal().contains("Recovery"));
}

#[test]
fn an_exhausted_budget_is_not_a_success_and_the_same_command_continues() {
    let fixture = AgentLoopFixture::new();
    for _ in 0..3 {
        fixture.push_reply(calls_reply(&[("look", json!({}))]));
    }
    let order = AgentRunRequest {
        message: Some("go".to_owned()),
        max_iterations: Some(2),
        ..AgentRunRequest::default()
    };
    assert!(matches!(fixture.run(&order).unwrap(), AgentOutcome::BudgetExhausted { .. }));
    assert_eq!(fixture.requests.borrow().len(), 2);
    fixture.push_reply(text_reply("done"));
    assert_eq!(fixture.run(&order).unwrap(), completed("done"));
    assert_eq!(fixture.journal().matches("USER_MESSAGE").count(), 1);
    let mut fixture = AgentLoopFixture::new();
    fixture.definition.limits.max_total_tokens = Some(20);
    fixture
        .push_reply(calls_reply(&[("look", json!({}))]))
        .push_reply(calls_reply(&[("look", json!({}))]))
        .push_reply(text_reply("done"));
    assert!(matches!(fixture.message("go"), AgentOutcome::BudgetExhausted { .. }));
    assert_eq!(fixture.requests.borrow().len(), 2);
}

#[test]
fn a_model_error_fails_the_run_and_a_message_continues_it() {
    let fixture = AgentLoopFixture::new();
    assert!(matches!(fixture.message("go"), AgentOutcome::Failed { .. }));
    fixture.push_reply(text_reply("done"));
    assert_eq!(fixture.message("try again"), completed("done"));
    assert_eq!(fixture.last_request(), ["system: be good", "user: go", "user: try again"]);
}

#[test]
fn sessions_ended_with_a_run_are_reported_before_it_continues() {
    // The model fails, and afterwards the run is completed: in both cases the session of the earlier part is ended.
    for (last, next) in [(None, "more"), (Some(text_reply("done")), "more"), (None, "go")] {
        let fixture = AgentLoopFixture::new();
        fixture.push_reply(calls_reply(&[("shell", json!({}))]));
        if let Some(last) = last {
            fixture.push_reply(last);
        }
        fixture.message("go");
        assert!(fixture.living_sessions.borrow().is_empty());
        fixture.push_reply(text_reply("I see"));
        assert_eq!(fixture.message(next), completed("I see"));
        let requests = fixture.requests.borrow().last().unwrap().clone();
        let texts: Vec<&str> =
            requests.iter().map(|message| message["content"].as_str().unwrap_or("-")).collect();
        let notices: Vec<&&str> =
            texts.iter().filter(|text| text.starts_with(crate::context::NOTICE_PREFIX)).collect();
        let expected = format!(
            "{} Session 'shell_1' of tool shell was ended when the run stopped. Its process has ended, and what it held \
             (variables, directory, connections) is lost. The next call of shell starts a new session in /somewhere.",
            crate::context::NOTICE_PREFIX
        );
        assert_eq!(notices, [&expected], "{texts:#?}");
        // After the result of the call, and before the new message of the person.
        let last = if next == "more" { "more" } else { expected.as_str() };
        assert_eq!(texts.last(), Some(&last), "{texts:#?}");
        // The notice is sent only once.
        fixture.push_reply(text_reply("again"));
        assert_eq!(fixture.message("and more"), completed("again"));
        assert_eq!(fixture.journal().matches("was ended when the run stopped").count(), 1);
    }
}

#[test]
fn an_unreported_session_end_is_reported_by_the_next_process() {
    let fixture = AgentLoopFixture::new();
    fixture.push_reply(calls_reply(&[("shell", json!({}))]));
    fixture.message("go");
    fixture.push_reply(text_reply("I see"));
    fixture.message("more");
    // Only the start of the second part was written.
    truncate_journal_before(&fixture, "SYSTEM_MESSAGE", 1);
    fixture.push_reply(text_reply("I see"));
    assert_eq!(fixture.message("more"), completed("I see"));
    assert!(fixture.requests.borrow().last().unwrap().iter().any(|message| {
        message["content"].as_str().is_some_and(|text| text.contains("was ended when the run stopped"))
    }));
}

#[test]
fn a_number_beyond_64_bits_keeps_its_spelling_in_journal_call_and_context() {
    let fixture = AgentLoopFixture::new();
    let mut call = calls_reply(&[("look", json!({}))]);
    call.calls[0].arguments = r#"{"count": 123456789012345678901234567890}"#.to_owned();
    fixture.push_reply(call).push_reply(text_reply("done"));
    fixture.message("go");
    assert_eq!(*fixture.exact_numbers.borrow(), ["123456789012345678901234567890"]);
    // The next process reads the same values from the journal.
    fixture.push_reply(text_reply("again"));
    fixture.message("more");
    let requests = fixture.requests.borrow();
    let shown = requests
        .last()
        .unwrap()
        .iter()
        .find_map(|message| message["tool_calls"][0]["function"]["arguments"].as_str());
    assert_eq!(shown, Some(r#"{"count": 123456789012345678901234567890}"#));
}

#[test]
fn empty_replies_are_reminded_a_limited_number_of_times() {
    let fixture = AgentLoopFixture::new();
    let cut = ModelReply { finish_reason: FinishReason::Length, ..text_reply("once upon") };
    fixture
        .push_reply(text_reply(""))
        .push_reply(cut)
        .push_reply(text_reply(" "))
        .push_reply(text_reply(""))
        .push_reply(text_reply(""));
    let AgentOutcome::Failed { reason } = fixture.message("go") else { panic!("it continued") };
    assert_eq!(reason, "the model returned 3 empty answers in a row");
    assert_eq!(fixture.requests.borrow().len(), 5);
}

#[test]
fn a_filtered_reply_fails_the_run() {
    let fixture = AgentLoopFixture::new();
    fixture.push_reply(ModelReply {
        finish_reason: FinishReason::ContentFilter,
        ..text_reply("it is well known that")
    });
    let AgentOutcome::Failed { reason } = fixture.message("go") else { panic!("it continued") };
    assert!(reason.contains("withheld"), "{reason}");
    fixture.push_reply(text_reply("done"));
    assert_eq!(fixture.message("go"), completed("done"));
}

#[test]
fn an_interrupted_batch_has_a_result_for_each_call_and_continues() {
    let fixture = AgentLoopFixture::new();
    fixture.interrupt_at_action.set(2);
    fixture.push_reply(calls_reply(&[
        ("look", json!({ "n": 1 })),
        ("look", json!({ "n": 2 })),
        ("look", json!({ "n": 3 })),
    ]));
    assert_eq!(fixture.message("go"), AgentOutcome::Interrupted);
    assert_eq!(fixture.executed_calls.borrow().len(), 2);
    fixture.push_reply(text_reply("I see"));
    assert_eq!(fixture.message("go"), completed("I see"));
    let requests = fixture.last_request();
    assert_eq!(requests[4], "tool: stopped");
    assert_eq!(requests[5], "tool: not carried out: the person stopped the run before this call was started");
    assert_eq!(fixture.executed_calls.borrow().len(), 2);
}

#[test]
fn a_second_process_is_refused() {
    let fixture = AgentLoopFixture::new();
    let _first = fixture.open_state(ForeignStatePolicy::Refuse).unwrap();
    let error = fixture.run(&AgentRunRequest::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("another process (pid {})", std::process::id())), "{error}");
}

#[test]
fn ids_that_a_model_uses_twice_are_made_different() {
    let fixture = AgentLoopFixture::new();
    for _ in 0..2 {
        fixture.push_reply(calls_reply(&[("look", json!({}))]));
    }
    fixture.push_reply(text_reply("done"));
    fixture.message("go");
    let requests = fixture.requests.borrow();
    let ids = requests[2].iter().filter_map(|message| message["tool_call_id"].as_str());
    assert_eq!(ids.collect::<HashSet<&str>>().len(), 2);
}
