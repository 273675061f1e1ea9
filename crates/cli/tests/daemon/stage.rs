//! The harness of the daemon tests: a daemon in a temporary home, and a reader of its events.

use std::path::Path;

use abide_testkit::{
    daemon::{EventReader, HomeProcess, TestDaemon, TestHome, TestHttpResponse},
    wait,
};
use serde_json::{Value, json};

pub(crate) struct DaemonTestHome {
    pub(crate) home: TestHome,
    daemon: Option<TestDaemon>,
    feed: EventReader,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DaemonEnding {
    /// By SIGKILL.
    Killed,
    /// By SIGTERM, which leaves the processes to the keepers.
    Terminated,
}

/// Both endings, for tests whose result must not depend on them.
pub(crate) const ENDINGS: [DaemonEnding; 2] = [DaemonEnding::Killed, DaemonEnding::Terminated];

/// The interface over which a reply is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyPath {
    Http,
    CommandLine,
}

impl DaemonTestHome {
    pub(crate) fn new() -> Self {
        Self::with_env(&[])
    }

    /// Starts a daemon with these environment variables.
    pub(crate) fn with_env(settings: &[(&str, &str)]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_abide"));
        let home = TestHome::new(program).with_env("ABIDE_SLOTS_MAX_RUNNING", "4");
        let home = settings.iter().fold(home, |home, (name, value)| home.with_env(name, value));
        let daemon = Some(home.start());
        let feed = EventReader::open("/v1/events", home.client_factory());
        Self { home, daemon, feed }
    }

    /// Replies to the open question of a run over HTTP and returns the response, also if it is an error.
    pub(crate) fn try_reply(&self, run: &Value, text: &str) -> TestHttpResponse {
        let interaction = run["pending_interaction_id"].as_str().expect("a question is open");
        let path = format!("/v1/interactions/{interaction}/reply");
        let body = json!({ "text": text });
        self.home.client().and_then(|client| client.post(&path, &body)).expect("the daemon answers")
    }

    /// Returns the peak memory of the daemon, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let pid = self.daemon.as_ref().expect("a daemon is there").pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells it");
        let kibibytes = line.trim().trim_end_matches(" kB").trim();
        kibibytes.parse::<u64>().expect("it is a number") << 10
    }

    pub(crate) fn down(&mut self, ending: DaemonEnding) {
        let daemon = self.daemon.take().expect("a daemon is there");
        match ending {
            DaemonEnding::Killed => drop(daemon.kill()),
            DaemonEnding::Terminated => drop(daemon.terminate()),
        }
    }

    pub(crate) fn up(&mut self) {
        let daemon = self.home.start();
        assert!(daemon.is_ready(), "the next daemon starts: {}", self.home.stderr_tail());
        self.daemon = Some(daemon);
    }

    /// Starts the daemon with additional environment variables.
    pub(crate) fn up_with(&mut self, env: &[(&str, &str)]) {
        let daemon = self.home.start_with(env);
        assert!(daemon.is_ready(), "the next daemon starts: {}", self.home.stderr_tail());
        self.daemon = Some(daemon);
    }

    /// Ends the daemon and starts another one.
    pub(crate) fn restart(&mut self, ending: DaemonEnding) {
        self.down(ending);
        self.up();
    }

    /// Creates a run with these options and returns its id.
    pub(crate) fn create(&self, engine: &str, prompt: &str, options: Value) -> String {
        let body = json!({
            "engine": engine, "prompt": prompt, "execution_mode": "interactive", "options": options,
            "workspace": self.home.workspace("w"),
        });
        let created = self.home.client().and_then(|client| client.post("/v1/runs", &body));
        let created = created.expect("the daemon answers");
        assert_eq!(created.status, 201, "{}", created.body);
        created.text("/run_id").to_owned()
    }

    /// Creates a run in this mode and returns its id.
    pub(crate) fn create_in(&self, mode: &str, engine: &str, prompt: &str) -> String {
        let body = json!({
            "engine": engine, "prompt": prompt, "execution_mode": mode, "workspace": self.home.workspace("w"),
        });
        let created = self.home.client().and_then(|client| client.post("/v1/runs", &body));
        let created = created.expect("the daemon answers");
        assert_eq!(created.status, 201, "{}", created.body);
        created.text("/run_id").to_owned()
    }

    /// Sends a message to a run.
    pub(crate) fn send_message(&self, run: &str, text: &str, on_busy: &str) -> String {
        let body = json!({ "text": text, "on_busy": on_busy });
        let path = format!("/v1/runs/{run}/messages");
        let sent = self.home.client().and_then(|client| client.post(&path, &body)).expect("it answers");
        assert_eq!(sent.status, 202, "{}", sent.body);
        sent.text("/message_id").to_owned()
    }

    /// Sends a request to a run whose response is only an acknowledgement.
    pub(crate) fn post_action(&self, run: &str, what: &str) {
        let path = format!("/v1/runs/{run}/{what}");
        let done = self.home.client().and_then(|client| client.post(&path, &json!({}))).expect("it answers");
        assert_eq!(done.status, 200, "{}", done.body);
    }

    /// Waits until the run's engine has reported this progress.
    pub(crate) fn wait_for_progress(&self, run: &str, text: &str) {
        loop {
            let seen = self.feed.events();
            let is_progress = |event: &Value| {
                event["run_id"] == run && event["type"] == "progressed" && event["data"]["text"] == text
            };
            if seen.iter().any(|seen| is_progress(&seen.event)) {
                return;
            }
            assert!(self.feed.wait_for_more_than(seen.len()), "{run} never says {text}");
        }
    }

    /// Runs `abide down`, which ends all runs too, and returns its output.
    pub(crate) fn shut_down(&mut self) -> Value {
        let end = self.home.run(&["down", "--json"]);
        assert_eq!(end.code, Some(0), "{end:?}");
        self.drop_daemon();
        serde_json::from_str(&end.stdout).expect("it prints JSON")
    }

    /// Drops the handle of a daemon that was ended in another way.
    pub(crate) fn drop_daemon(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.wait();
        }
    }

    /// Waits until the run has an open question of this asker.
    pub(crate) fn wait_for_question(&self, run: &str, asked_by: &str) -> Value {
        loop {
            let seen = self.feed.events().len();
            let state = self.get(&format!("/v1/runs/{run}"));
            let pending = &state["pending_interaction_id"];
            let asks =
                |question: &Value| question["interaction_id"] == *pending && question["asked_by"] == asked_by;
            if self.questions(run).iter().any(asks) {
                return state;
            }
            assert!(self.feed.wait_for_more_than(seen), "{run} does not ask: {state}");
        }
    }

    /// Returns a run's turns, oldest first.
    pub(crate) fn turns(&self, run: &str) -> Vec<Value> {
        let listed = self.get(&format!("/v1/runs/{run}/turns"));
        listed["items"].as_array().cloned().expect("a list has items")
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let response = self.home.client().and_then(|client| client.get(path)).expect("the daemon answers");
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        response.body
    }

    /// Waits until a run has this status. Panics if the run has ended with another one.
    pub(crate) fn wait_for_status(&self, run: &str, status: &str) -> Value {
        loop {
            let seen = self.feed.events().len();
            let state = self.get(&format!("/v1/runs/{run}"));
            let now = state["status"].as_str().unwrap_or_default().to_owned();
            if now == status {
                return state;
            }
            let over = ["succeeded", "failed", "canceled"].contains(&now.as_str());
            assert!(!over, "{run} never comes to {status}: {state}");
            assert!(self.feed.wait_for_more_than(seen), "{run} does not come to {status}: {state}");
        }
    }

    /// Returns a run's questions, oldest first.
    pub(crate) fn questions(&self, run: &str) -> Vec<Value> {
        let listed = self.get(&format!("/v1/runs/{run}/interactions"));
        listed["items"].as_array().cloned().expect("a list has items")
    }

    /// Returns the pids of a run, one for each attempt of each turn.
    pub(crate) fn pids(&self, run: &str) -> Vec<u64> {
        let turns = self.get(&format!("/v1/runs/{run}/turns"));
        let turns = turns["items"].as_array().cloned().expect("a list has items");
        let attempts = turns.iter().filter_map(|turn| turn["attempts"].as_array()).flatten();
        attempts.filter_map(|attempt| attempt["pid"].as_u64()).collect()
    }

    /// Waits until the keeper of a run's first attempt is running.
    pub(crate) fn wait_for_keeper(&self, run: &str) -> HomeProcess {
        wait::until_some("the keeper is there", || self.home.keeper_of(run, 1))
    }

    /// Waits until a run's last turn has this execution status.
    pub(crate) fn wait_for_turn(&self, run: &str, status: &str) -> Value {
        loop {
            let seen = self.feed.events().len();
            let turns = self.get(&format!("/v1/runs/{run}/turns"));
            let turn = turns["items"].as_array().and_then(|turns| turns.last()).cloned().unwrap_or_default();
            if turn["execution_status"] == status {
                return turn;
            }
            assert!(self.feed.wait_for_more_than(seen), "{run}'s turn does not come to {status}: {turn}");
        }
    }

    /// Replies to the open question of a run.
    pub(crate) fn reply(&self, run: &Value, text: &str, reply_path: ReplyPath) {
        let interaction = run["pending_interaction_id"].as_str().expect("a question is open");
        match reply_path {
            ReplyPath::Http => {
                let path = format!("/v1/interactions/{interaction}/reply");
                let reply = |key: &str| {
                    let body = json!({ "text": text, "idempotency_key": key });
                    self.home.client().and_then(|client| client.post(&path, &body)).expect("it answers")
                };
                assert_eq!(reply("once").text("/resolution"), "accepted");
                assert_eq!(reply("once").text("/resolution"), "idempotent");
                assert_eq!(reply("other").text("/code"), "STALE_INTERACTION");
            }
            ReplyPath::CommandLine => {
                let end = self.home.run(&["reply", interaction, text]);
                assert_eq!(end.code, Some(0), "{end:?}");
            }
        }
    }

    /// Returns the lines that the run appended to its log file.
    pub(crate) fn log_lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.home.workspace("w").join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until `look` returns a value. It is called after each event, and at least every 100 ms.
    pub(crate) fn wait_until<T>(&self, poll: impl Fn(&Self) -> Option<T>) -> T {
        for _ in 0..MAX_POLLS {
            let seen = self.feed.events().len();
            if let Some(found) = poll(self) {
                return found;
            }
            self.feed.poll_for_more_than(seen);
        }
        panic!("it does not come");
    }

    /// Waits until no keeper of a run is left.
    pub(crate) fn wait_for_no_keeper(&self) {
        for _ in 0..MAX_POLLS {
            let seen = self.feed.events().len();
            if self.home.keepers().is_empty() {
                return;
            }
            // The exit of a keeper is not always followed by an event.
            self.feed.poll_for_more_than(seen);
        }
        panic!("keepers are left: {:?}", self.home.keepers());
    }
}

impl Drop for DaemonTestHome {
    fn drop(&mut self) {
        // The reader keeps the home alive as long as its connection is open.
        if let Some(daemon) = self.daemon.take() {
            daemon.kill();
        }
        self.feed.stop();
    }
}

/// The maximum number of polls.
const MAX_POLLS: usize = 600;
