//! Plays a scenario of one run through the HTTP API: creates the run, answers its questions, sends messages and waits
//! for its end. Requests that were not acknowledged are repeated with the same idempotency key, also to the next
//! daemon.
//!
//! The run appends lines to a file in its workspace. The file shows which steps happened, and how often.

use std::{io, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{
    account::ScenarioRecord,
    feed::pause,
    http::{TestHttpClient, TestHttpResponse},
};

/// The instructions for a run, and the expected result.
#[derive(Clone, Debug)]
pub struct TestScenario {
    /// The idempotency key of the creation, and the name of the workspace.
    pub name: String,
    pub engine: String,
    /// `auto`, `interactive` or `chat`.
    pub mode: String,
    /// The first prompt.
    pub prompt: String,
    /// Messages sent after the first prompt. A chat is ended by the player after the last answer.
    pub messages: Vec<String>,
    pub options: Value,
    pub workspace: PathBuf,
    /// The expected lines of `FILE` at the end.
    pub lines: Vec<String>,
    /// The expected number of questions.
    pub questions: usize,
    /// The expected final status.
    pub end: String,
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
    patience: RetryLimits,
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
            lines: vec![],
            questions: 0,
            end: "succeeded".to_owned(),
        }
    }

    /// Adds a step that appends a line.
    #[must_use]
    pub fn appends(mut self) -> Self {
        let line = format!("{}-{}", self.name, self.lines.len() + 1);
        self.tell(&format!("append {FILE} {line}"));
        self.lines.push(line);
        self
    }

    /// Adds a step that ends the turn with a question, and appends the answer.
    #[must_use]
    pub fn asks(self, question: &str) -> Self {
        self.wants_to_know(&format!("ask open_text {question}"), question)
    }

    /// Adds a step that asks for an approval within the turn, and appends the answer.
    #[must_use]
    pub fn waits_at_gate(self, question: &str) -> Self {
        self.wants_to_know(&format!("gate {question}"), question)
    }

    fn wants_to_know(mut self, order: &str, question: &str) -> Self {
        self.tell(order);
        let line = format!("{}-{} {}", self.name, self.lines.len() + 1, answer(question));
        let unanswered = line.replace(&answer(question), "$reply");
        self.tell(&format!("append {FILE} {unanswered}"));
        self.lines.push(line);
        self.questions += 1;
        self
    }

    /// Adds any other instruction for the parrot.
    #[must_use]
    pub fn obeys(mut self, order: &str) -> Self {
        self.tell(order);
        self
    }

    /// Makes the run a chat, and sends the following steps in a new message.
    #[must_use]
    pub fn then_hears(mut self) -> Self {
        "chat".clone_into(&mut self.mode);
        "canceled".clone_into(&mut self.end);
        self.messages.push(String::new());
        self
    }

    #[must_use]
    pub fn in_mode(mut self, mode: &str) -> Self {
        mode.clone_into(&mut self.mode);
        self
    }

    fn tell(&mut self, order: &str) {
        let text = self.messages.last_mut().unwrap_or(&mut self.prompt);
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(order);
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
    pub fn written(&self) -> Vec<String> {
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
    Hopeless,
}

impl<F: Fn() -> io::Result<TestHttpClient>> ScenarioPlayer<F> {
    /// Creates a player. `client` is called for each request, so that it can find the current daemon.
    pub fn new(client: F, patience: RetryLimits) -> Self {
        Self { client, patience }
    }

    /// Plays a scenario to its end and checks the record, provided that none of its processes was killed.
    pub fn live(&self, story: &TestScenario) -> ScenarioRecord {
        let mut account = self.tell(story);
        account.judge(story, &[]);
        account
    }

    /// Plays a scenario to its end without checking the record.
    pub fn tell(&self, story: &TestScenario) -> ScenarioRecord {
        let mut account = ScenarioRecord::default();
        if self.begin(story, &mut account) {
            self.go_on(story, &mut account);
        }
        if account.problems.is_empty() {
            self.look_back(&mut account);
        }
        account
    }

    fn begin(&self, story: &TestScenario, account: &mut ScenarioRecord) -> bool {
        let request = story.request();
        let create = |client: &TestHttpClient| client.post_once("/v1/runs", &story.name, &request);
        let RequestResult::Answered(created) = self.insist(account, "create", &[200, 201], create) else {
            return false;
        };
        created.text("/run_id").clone_into(&mut account.run_id);
        for (number, text) in story.messages.iter().enumerate() {
            let path = format!("/v1/runs/{}/messages", account.run_id);
            let body = json!({ "message_id": format!("{}-m{number}", story.name), "text": text });
            let send = |client: &TestHttpClient| client.post(&path, &body);
            match self.insist(account, "message", &[202, TOO_LATE], send) {
                RequestResult::Answered(taken) if taken.status == TOO_LATE => {
                    account.stale += 1;
                    return true;
                }
                RequestResult::Answered(_) => {}
                RequestResult::Hopeless => return false,
            }
        }
        true
    }

    fn go_on(&self, story: &TestScenario, account: &mut ScenarioRecord) {
        let path = format!("/v1/runs/{}", account.run_id);
        for _ in 0..self.patience.tries {
            let look = |client: &TestHttpClient| client.get(&path);
            let RequestResult::Answered(run) = self.insist(account, "look", &[200], look) else { return };
            let turns = run.body["turn_index"].as_u64().unwrap_or_default();
            match run.text("/status") {
                "waiting_user" => {
                    let pending = run.text("/pending_interaction_id").to_owned();
                    self.answer(&pending, account);
                }
                "idle" if turns > story.messages.len() as u64 => {
                    let cancel = |client: &TestHttpClient| client.post(&format!("{path}/cancel"), &json!({}));
                    self.insist(account, "cancel", &[200, TOO_LATE], cancel);
                }
                "succeeded" | "failed" | "canceled" => return,
                _ => {}
            }
            if !account.problems.is_empty() {
                return;
            }
            pause(self.patience.pause);
        }
        account.problems.push(format!("{}: {} never ends", story.name, account.run_id));
    }

    fn answer(&self, interaction: &str, account: &mut ScenarioRecord) {
        if account.answers.iter().any(|(known, _)| known == interaction) {
            return;
        }
        let path = format!("/v1/runs/{}/interactions", account.run_id);
        let RequestResult::Answered(listed) =
            self.insist(account, "questions", &[200], |client| client.get(&path))
        else {
            return;
        };
        let items = listed.body["items"].as_array().cloned().unwrap_or_default();
        let Some(question) = items.iter().find(|item| item["interaction_id"] == interaction) else {
            return account.problems.push(format!("question {interaction} is not in the ledger"));
        };
        let text = if question["asked_by"] == "abide" {
            account.unknown += 1;
            "continue".to_owned()
        } else {
            answer(question["prompt"].as_str().unwrap_or_default())
        };
        let path = format!("/v1/interactions/{interaction}/reply");
        let body = json!({ "text": text, "idempotency_key": interaction });
        let reply = |client: &TestHttpClient| client.post(&path, &body);
        match self.insist(account, "reply", &[200, TOO_LATE], reply) {
            RequestResult::Answered(replied) if replied.status == TOO_LATE => account.stale += 1,
            RequestResult::Answered(_) => account.answers.push((interaction.to_owned(), text)),
            RequestResult::Hopeless => {}
        }
    }

    /// Reads the final state of the run, its questions and its turns.
    fn look_back(&self, account: &mut ScenarioRecord) {
        let path = format!("/v1/runs/{}", account.run_id);
        let list = |account: &mut ScenarioRecord, what: &str, path: &str| -> Option<Value> {
            match self.insist(account, what, &[200], |client| client.get(path)) {
                RequestResult::Answered(response) => Some(response.body),
                RequestResult::Hopeless => None,
            }
        };
        let items = |body: Value| body["items"].as_array().cloned().unwrap_or_default();
        account.run = list(account, "look", &path).unwrap_or_default();
        account.questions =
            list(account, "questions", &format!("{path}/interactions")).map(items).unwrap_or_default();
        account.turns = list(account, "turns", &format!("{path}/turns")).map(items).unwrap_or_default();
    }

    /// Repeats a request until it is answered. It is repeated while the daemon is unreachable, not ready or busy.
    fn insist(
        &self,
        account: &mut ScenarioRecord,
        what: &str,
        good: &[u16],
        ask: impl Fn(&TestHttpClient) -> io::Result<TestHttpResponse>,
    ) -> RequestResult {
        for _ in 0..self.patience.tries {
            match (self.client)().and_then(|client| ask(&client)) {
                Ok(response) if good.contains(&response.status) => {
                    account.acknowledged += 1;
                    return RequestResult::Answered(response);
                }
                Ok(response) if !AGAIN.contains(&response.status) => {
                    account.problems.push(format!("{what}: {} {}", response.status, response.body));
                    return RequestResult::Hopeless;
                }
                Ok(_) | Err(_) => account.retries += 1,
            }
            pause(self.patience.pause);
        }
        account.problems.push(format!("{what}: nobody answers"));
        RequestResult::Hopeless
    }
}

/// The status of a request that came after the end of its question or run.
const TOO_LATE: u16 = 409;
/// The statuses after which a request is repeated: too many requests, and not ready.
const AGAIN: &[u16] = &[429, 503];
