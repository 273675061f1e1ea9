//! Runs of a home's daemon over HTTP, and waits for their states. The daemon may be restarted between two calls.

use serde_json::{Value, json};

use super::{
    events::{EventReader, EventStream},
    home::TestHome,
    http::{TestHttpClient, TestHttpResponse},
};

/// The maximum number of polls without an event in between. Each of them takes 100 ms.
const MAX_IDLE_POLLS: usize = 1_200;

impl TestHome {
    /// Returns the reader of the home's events, which is started by the first call.
    pub fn events(&self) -> &EventReader {
        self.events.get_or_init(|| EventReader::open("/v1/events", self.client_factory()))
    }

    #[track_caller]
    fn running(&self) -> TestHttpClient {
        self.client().expect("a daemon was started")
    }

    /// Sends a GET request and returns the response, also if it is an error.
    #[track_caller]
    pub fn try_get(&self, path: &str) -> TestHttpResponse {
        self.running().get(path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.stderr_tail()))
    }

    /// Sends a POST request and returns the response, also if it is an error.
    #[track_caller]
    pub fn try_post(&self, path: &str, body: &Value) -> TestHttpResponse {
        self.running()
            .post(path, body)
            .unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.stderr_tail()))
    }

    /// Sends a GET request that must succeed, and returns the text.
    #[track_caller]
    pub fn get_text(&self, path: &str) -> String {
        let response = self.try_get(path);
        assert_eq!(response.status, 200, "{path}: {}", response.text);
        response.text
    }

    /// Sends a GET request that must succeed, and returns the JSON value.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let response = self.try_get(path);
        assert_eq!(response.status, 200, "{path}: {}", response.text);
        response.body
    }

    /// Sends a POST request that must succeed, and returns the JSON value.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let response = self.try_post(path, body);
        assert!(response.status < 300, "{path}: {} {}", response.status, response.text);
        response.body
    }

    /// Opens the event stream at `path` after the event with the number `after`; 0 stands for all events.
    #[track_caller]
    pub fn event_stream(&self, path: &str, after: u64) -> EventStream {
        self.running().events(path, after).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Creates a run and returns its id.
    #[track_caller]
    pub fn create_run(&self, body: &Value) -> String {
        let created = self.try_post("/v1/runs", body);
        assert_eq!(created.status, 201, "{}", created.text);
        created.str_at("/run_id").to_owned()
    }

    /// Creates an interactive run of the parrot and returns its id.
    #[track_caller]
    pub fn run_parrot(&self, script: &str) -> String {
        self.create_run(&json!({ "engine": "parrot", "prompt": script, "execution_mode": "interactive" }))
    }

    #[track_caller]
    pub fn get_run(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}"))
    }

    /// Returns a run's turns, oldest first.
    #[track_caller]
    pub fn turns(&self, run: &str) -> Vec<Value> {
        self.items(&format!("/v1/runs/{run}/turns"))
    }

    /// Returns a run's questions, oldest first.
    #[track_caller]
    pub fn questions(&self, run: &str) -> Vec<Value> {
        self.items(&format!("/v1/runs/{run}/interactions"))
    }

    /// Returns the items of the first page of a list.
    #[track_caller]
    pub fn items(&self, path: &str) -> Vec<Value> {
        let page = self.get(path);
        page["items"].as_array().cloned().unwrap_or_else(|| panic!("{path} has no items: {page}"))
    }

    /// Returns the pids of a run, one for each attempt of each turn.
    #[track_caller]
    pub fn pids(&self, run: &str) -> Vec<u64> {
        let turns = self.turns(run);
        let attempts = turns.iter().filter_map(|turn| turn["attempts"].as_array()).flatten();
        attempts.filter_map(|attempt| attempt["pid"].as_u64()).collect()
    }

    /// Replies to the open question of a run in this state, and returns the response, also if it is an error.
    #[track_caller]
    pub fn try_reply(&self, run: &Value, text: &str) -> TestHttpResponse {
        let question = run["pending_interaction_id"].as_str();
        let question = question.unwrap_or_else(|| panic!("no question is open: {run}"));
        self.try_post(&format!("/v1/interactions/{question}/reply"), &json!({ "text": text }))
    }

    /// Waits until a run has this status, and returns the run. Panics if the run has ended with another one.
    #[track_caller]
    pub fn wait_for_status(&self, run: &str, status: &str) -> Value {
        self.wait_for_run(run, status, |run_view| run_view["status"] == status)
    }

    /// Waits until `is_wanted` holds for a run, and returns the run. Panics if the run ends before that.
    #[track_caller]
    pub fn wait_for_run(&self, run: &str, condition: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_until(&format!("{run}: {condition}"), || {
            let run_view = self.get_run(run);
            if is_wanted(&run_view) {
                return Some(run_view);
            }
            let is_over = ["succeeded", "failed", "canceled"].iter().any(|over| run_view["status"] == *over);
            assert!(!is_over, "{run} ended before {condition}: {run_view:#}\n{}", self.stderr_tail());
            None
        })
    }

    /// Waits until `probe` returns a value. It is called after each event, and at least every 100 ms. Panics after
    /// 120 s without an event.
    #[track_caller]
    pub fn wait_until<T>(&self, condition: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        let (events, mut idle_polls) = (self.events(), 0);
        while idle_polls < MAX_IDLE_POLLS {
            let seen = events.count();
            if let Some(result) = probe() {
                return result;
            }
            idle_polls = if events.poll_for_more_than(seen) { 0 } else { idle_polls + 1 };
        }
        panic!("not reached: {condition}\n{}", self.stderr_tail());
    }
}
