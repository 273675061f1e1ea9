//! Plays a scenario of one run through the HTTP API: creates the run, answers its questions, sends messages and waits
//! for its end. Requests that were not acknowledged are repeated with the same idempotency key, also to the next
//! daemon.
//!
//! The run appends lines to a file in its workspace. The file shows which steps happened, and how often.

use std::{io, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{
    http::{TestHttpClient, TestHttpResponse},
    record::ScenarioRecord,
};
use crate::wait::sleep;

/// The instructions for a run, and the expected result.
#[derive(Clone, Debug)]
pub struct TestScenario {
    /// The idempotency key of the creation, and the name of the workspace.
    pub name: String,
    pub engine: String,
    /// `auto`, `interactive` or `chat`.
    pub mode: String,
    pub prompt: String,
    /// Messages sent after the first prompt. A chat is ended by the player after the last answer.
    pub messages: Vec<String>,
    pub options: Value,
    pub workspace: PathBuf,
    /// The expected lines of `FILE` at the end.
    pub expected_lines: Vec<String>,
    /// The expected number of questions.
    pub expected_questions: usize,
    /// The expected final status.
    pub final_status: String,
}

/// The number of tries for each request, and the pause between them.
#[derive(Clone, Copy, Debug)]
pub struct RetryLimits {
    pub tries: u64,
    pub pause: Duration,
}

/// Plays scenarios against the daemon that `client` finds.
#[derive(Debug)]
pub struct ScenarioPlayer<F> {
    client: F,
    retries: RetryLimits,
}

/// The file in the workspace to which lines are appended.
const FILE: &str = "log";

impl TestScenario {
    /// Creates a scenario without steps.
    pub fn new(name: &str, engine: &str, workspace: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            engine: engine.to_owned(),
            mode: "interactive".to_owned(),
            prompt: String::new(),
            messages: vec![],
            options: json!({}),
            workspace,
            expected_lines: vec![],
            expected_questions: 0,
            final_status: "succeeded".to_owned(),
        }
    }

    /// Adds a step that appends a line.
    #[must_use]
    pub fn append_line(mut self) -> Self {
        let line = format!("{}-{}", self.name, self.expected_lines.len() + 1);
        self.push_instruction(&format!("append {FILE} {line}"));
        self.expected_lines.push(line);
        self
    }

    /// Adds a step that ends the turn with a question, and appends the answer.
    #[must_use]
    pub fn ask(self, question: &str) -> Self {
        self.add_question(&format!("ask open_text {question}"), question)
    }

    /// Adds a step that asks for an approval within the turn, and appends the answer.
    #[must_use]
    pub fn request_approval(self, question: &str) -> Self {
        self.add_question(&format!("gate {question}"), question)
    }

    fn add_question(mut self, instruction: &str, question: &str) -> Self {
        self.push_instruction(instruction);
        let line = format!("{}-{} {}", self.name, self.expected_lines.len() + 1, answer(question));
        let unanswered = line.replace(&answer(question), "$reply");
        self.push_instruction(&format!("append {FILE} {unanswered}"));
        self.expected_lines.push(line);
        self.expected_questions += 1;
        self
    }

    /// Adds any other instruction for the parrot.
    #[must_use]
    pub fn instruct(mut self, instruction: &str) -> Self {
        self.push_instruction(instruction);
        self
    }

    /// Makes the run a chat, and sends the following steps in a new message.
    #[must_use]
    pub fn next_message(mut self) -> Self {
        "chat".clone_into(&mut self.mode);
        "canceled".clone_into(&mut self.final_status);
        self.messages.push(String::new());
        self
    }

    #[must_use]
    pub fn in_mode(mut self, mode: &str) -> Self {
        mode.clone_into(&mut self.mode);
        self
    }

    fn push_instruction(&mut self, instruction: &str) {
        let text = self.messages.last_mut().unwrap_or(&mut self.prompt);
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(instruction);
    }

    /// Returns the request body that creates the run.
    pub fn request(&self) -> Value {
        json!({
            "engine": self.engine,
            "prompt": self.prompt,
            "workspace": self.workspace,
            "execution_mode": self.mode,
            "options": self.options,
        })
    }

    /// Returns the lines that were written so far.
    pub fn written_lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.workspace.join(FILE)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Returns the answer given to a question. It begins with "no", so that it is also valid for an approval, which accepts
/// only yes or no.
fn answer(question: &str) -> String {
    format!("no,answer-to-{}", question.replace(' ', "-"))
}

/// The result of a request.
enum RequestResult {
    Answered(TestHttpResponse),
    GaveUp,
}

impl<F: Fn() -> io::Result<TestHttpClient>> ScenarioPlayer<F> {
    /// Creates a player. `client` is called for each request, so that it can find the current daemon.
    pub fn new(client: F, retries: RetryLimits) -> Self {
        Self { client, retries }
    }

    /// Plays a scenario to its end and checks the record, provided that none of its processes was killed.
    pub fn play_and_check(&self, scenario: &TestScenario) -> ScenarioRecord {
        let mut record = self.play(scenario);
        record.check(scenario, &[]);
        record
    }

    /// Plays a scenario to its end without checking the record.
    pub fn play(&self, scenario: &TestScenario) -> ScenarioRecord {
        let mut record = ScenarioRecord::default();
        if self.create_run(scenario, &mut record) {
            self.drive_run(scenario, &mut record);
        }
        if record.problems.is_empty() {
            self.read_final_state(&mut record);
        }
        record
    }

    fn create_run(&self, scenario: &TestScenario, record: &mut ScenarioRecord) -> bool {
        let request = scenario.request();
        let create = |client: &TestHttpClient| client.post_with_key("/v1/runs", &scenario.name, &request);
        let RequestResult::Answered(created) = self.retry(record, "create", &[200, 201], create) else {
            return false;
        };
        created.str_at("/run_id").clone_into(&mut record.run_id);
        for (number, text) in scenario.messages.iter().enumerate() {
            let path = format!("/v1/runs/{}/messages", record.run_id);
            let body = json!({ "message_id": format!("{}-m{number}", scenario.name), "text": text });
            let send = |client: &TestHttpClient| client.post(&path, &body);
            match self.retry(record, "message", &[202, CONFLICT_STATUS], send) {
                RequestResult::Answered(taken) if taken.status == CONFLICT_STATUS => {
                    record.refused_requests += 1;
                    return true;
                }
                RequestResult::Answered(_) => {}
                RequestResult::GaveUp => return false,
            }
        }
        true
    }

    fn drive_run(&self, scenario: &TestScenario, record: &mut ScenarioRecord) {
        let path = format!("/v1/runs/{}", record.run_id);
        for _ in 0..self.retries.tries {
            let look = |client: &TestHttpClient| client.get(&path);
            let RequestResult::Answered(run) = self.retry(record, "look", &[200], look) else { return };
            let turns = run.body["turn_index"].as_u64().unwrap_or_default();
            match run.str_at("/status") {
                "waiting_user" => {
                    let pending = run.str_at("/pending_interaction_id").to_owned();
                    self.answer(&pending, record);
                }
                "idle" if turns > scenario.messages.len() as u64 => {
                    let cancel = |client: &TestHttpClient| client.post(&format!("{path}/cancel"), &json!({}));
                    self.retry(record, "cancel", &[200, CONFLICT_STATUS], cancel);
                }
                "succeeded" | "failed" | "canceled" => return,
                _ => {}
            }
            if !record.problems.is_empty() {
                return;
            }
            sleep(self.retries.pause);
        }
        record.problems.push(format!("{}: {} never ends", scenario.name, record.run_id));
    }

    fn answer(&self, interaction: &str, record: &mut ScenarioRecord) {
        if record.answers.iter().any(|(answered_id, _)| answered_id == interaction) {
            return;
        }
        let path = format!("/v1/runs/{}/interactions", record.run_id);
        let RequestResult::Answered(listed) =
            self.retry(record, "questions", &[200], |client| client.get(&path))
        else {
            return;
        };
        let items = listed.body["items"].as_array().cloned().unwrap_or_default();
        let Some(question) = items.iter().find(|item| item["interaction_id"] == interaction) else {
            return record.problems.push(format!("question {interaction} is not in the ledger"));
        };
        let text = if question["asked_by"] == "abide" {
            record.recovery_questions += 1;
            "continue".to_owned()
        } else {
            answer(question["prompt"].as_str().unwrap_or_default())
        };
        let path = format!("/v1/interactions/{interaction}/reply");
        let body = json!({ "text": text, "idempotency_key": interaction });
        let reply = |client: &TestHttpClient| client.post(&path, &body);
        match self.retry(record, "reply", &[200, CONFLICT_STATUS], reply) {
            RequestResult::Answered(replied) if replied.status == CONFLICT_STATUS => {
                record.refused_requests += 1
            }
            RequestResult::Answered(_) => record.answers.push((interaction.to_owned(), text)),
            RequestResult::GaveUp => {}
        }
    }

    /// Reads the final state of the run, its questions and its turns.
    fn read_final_state(&self, record: &mut ScenarioRecord) {
        let path = format!("/v1/runs/{}", record.run_id);
        let list = |record: &mut ScenarioRecord, label: &str, path: &str| -> Option<Value> {
            match self.retry(record, label, &[200], |client| client.get(path)) {
                RequestResult::Answered(response) => Some(response.body),
                RequestResult::GaveUp => None,
            }
        };
        let items = |body: Value| body["items"].as_array().cloned().unwrap_or_default();
        record.run = list(record, "look", &path).unwrap_or_default();
        record.questions =
            list(record, "questions", &format!("{path}/interactions")).map(items).unwrap_or_default();
        record.turns = list(record, "turns", &format!("{path}/turns")).map(items).unwrap_or_default();
    }

    /// Repeats a request until it is answered. It is repeated while the daemon is unreachable, not ready or busy.
    fn retry(
        &self,
        record: &mut ScenarioRecord,
        label: &str,
        good: &[u16],
        ask: impl Fn(&TestHttpClient) -> io::Result<TestHttpResponse>,
    ) -> RequestResult {
        for _ in 0..self.retries.tries {
            match (self.client)().and_then(|client| ask(&client)) {
                Ok(response) if good.contains(&response.status) => {
                    record.acknowledged += 1;
                    return RequestResult::Answered(response);
                }
                Ok(response) if !RETRY_STATUSES.contains(&response.status) => {
                    record.problems.push(format!("{label}: {} {}", response.status, response.body));
                    return RequestResult::GaveUp;
                }
                Ok(_) | Err(_) => record.retries += 1,
            }
            sleep(self.retries.pause);
        }
        record.problems.push(format!("{label}: no answer"));
        RequestResult::GaveUp
    }
}

/// The status of a request that came after the end of its question or run.
const CONFLICT_STATUS: u16 = 409;
/// The statuses after which a request is repeated: too many requests, and not ready.
const RETRY_STATUSES: &[u16] = &[429, 503];
