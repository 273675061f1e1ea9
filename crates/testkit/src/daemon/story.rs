//! The life of one run as a person lives it from outside: they create it, answer what it asks, send it messages, and
//! see it end. Whatever is not acknowledged is sent again under the same key, also to the next daemon.
//!
//! Its workspace holds a file to which the run's orders append lines, so that what was done, and how often, is seen by
//! looking.

use std::{io, path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{
    account::ScenarioRecord,
    feed::pause,
    http::{TestHttpClient, TestHttpResponse},
};

/// What a run is told, and what must have come of it at the end.
#[derive(Clone, Debug)]
pub struct TestScenario {
    /// The key under which it is created, and the name of its workspace.
    pub name: String,
    /// Its engine.
    pub engine: String,
    /// `auto`, `interactive` or `chat`.
    pub mode: String,
    /// Its first prompt.
    pub prompt: String,
    /// What is said to it afterwards; a chat is ended by its person after the last answer.
    pub messages: Vec<String>,
    /// Its options.
    pub options: Value,
    /// Where it works.
    pub workspace: PathBuf,
    /// The lines that `FILE` holds in the end.
    pub lines: Vec<String>,
    /// How many questions it asks.
    pub questions: usize,
    /// The status in which it ends.
    pub end: String,
}

/// How often something is tried before it is called hopeless, and how long is waited in between.
#[derive(Clone, Copy, Debug)]
pub struct RetryLimits {
    /// How often.
    pub tries: u64,
    /// How long.
    pub pause: Duration,
}

/// Someone who lives a story.
#[derive(Debug)]
pub struct ScenarioPlayer<F> {
    client: F,
    patience: RetryLimits,
}

/// The file in the workspace to which lines are appended.
const FILE: &str = "log";

impl TestScenario {
    /// A story in which nothing is asked yet.
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

    /// It appends a line.
    #[must_use]
    pub fn appends(mut self) -> Self {
        let line = format!("{}-{}", self.name, self.lines.len() + 1);
        self.tell(&format!("append {FILE} {line}"));
        self.lines.push(line);
        self
    }

    /// It ends its turn with a question, and appends the answer.
    #[must_use]
    pub fn asks(self, question: &str) -> Self {
        self.wants_to_know(&format!("ask open_text {question}"), question)
    }

    /// It asks for an approval inside its turn, and appends the answer.
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

    /// It is told any other order.
    #[must_use]
    pub fn obeys(mut self, order: &str) -> Self {
        self.tell(order);
        self
    }

    /// It is a chat, and what follows is said in a new message.
    #[must_use]
    pub fn then_hears(mut self) -> Self {
        "chat".clone_into(&mut self.mode);
        "canceled".clone_into(&mut self.end);
        self.messages.push(String::new());
        self
    }

    /// It is a run of this mode.
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

    /// The request that creates it.
    pub fn request(&self) -> Value {
        json!({
            "engine": self.engine,
            "prompt": self.prompt,
            "workspace": self.workspace,
            "execution_mode": self.mode,
            "options": self.options,
        })
    }

    /// What its file holds.
    pub fn written(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.workspace.join(FILE)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// The answer that everybody gives to a question.
/// It counts at a gate, too, where only a yes or a no does.
fn answer(question: &str) -> String {
    format!("no,answer-to-{}", question.replace(' ', "-"))
}

/// What became of a request.
enum RequestResult {
    Answered(TestHttpResponse),
    Hopeless,
}

impl<F: Fn() -> io::Result<TestHttpClient>> ScenarioPlayer<F> {
    /// Somebody who asks whoever `client` finds.
    pub fn new(client: F, patience: RetryLimits) -> Self {
        Self { client, patience }
    }

    /// Lives a story to its end, and judges it: none of its processes was killed.
    pub fn live(&self, story: &TestScenario) -> ScenarioRecord {
        let mut account = self.tell(story);
        account.judge(story, &[]);
        account
    }

    /// Lives a story to its end without judging it.
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

    /// Looks at everything that there is of the run in the end.
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

    /// Asks until there is an answer. A daemon that is away, not ready or busy is asked again.
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

/// The question or the run is over.
const TOO_LATE: u16 = 409;
/// Not now: too many requests, or not ready.
const AGAIN: &[u16] = &[429, 503];
