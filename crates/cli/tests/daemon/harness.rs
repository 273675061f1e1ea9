//! The harness of the daemon tests: a home whose daemon is ended and restarted.

use std::ops::Deref;

use abide_testkit::{
    daemon::{HomeProcess, TestDaemon, TestHome},
    wait,
};
use serde_json::{Value, json};

pub(crate) struct DaemonTestHome {
    daemon: Option<TestDaemon>,
    home: TestHome,
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

impl Deref for DaemonTestHome {
    type Target = TestHome;

    fn deref(&self) -> &TestHome {
        &self.home
    }
}

impl DaemonTestHome {
    pub(crate) fn new() -> Self {
        Self::with_env(&[])
    }

    /// Starts a daemon with these environment variables.
    pub(crate) fn with_env(settings: &[(&str, &str)]) -> Self {
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide")).with_env("ABIDE_SLOTS_MAX_RUNNING", "4");
        let home = settings.iter().fold(home, |home, (name, value)| home.with_env(name, value));
        let daemon = Some(home.start());
        Self { daemon, home }
    }

    /// Returns the peak memory of the daemon, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.daemon.as_ref().expect("a daemon runs").peak_memory()
    }

    pub(crate) fn down(&mut self, ending: DaemonEnding) {
        let daemon = self.daemon.take().expect("a daemon runs");
        match ending {
            DaemonEnding::Killed => drop(daemon.kill()),
            DaemonEnding::Terminated => drop(daemon.terminate()),
        }
    }

    pub(crate) fn up(&mut self) {
        self.up_with(&[]);
    }

    /// Starts the daemon with additional environment variables.
    pub(crate) fn up_with(&mut self, env: &[(&str, &str)]) {
        self.daemon = Some(self.home.start_with(&[], env));
    }

    /// Ends the daemon and starts another one.
    pub(crate) fn restart(&mut self, ending: DaemonEnding) {
        self.down(ending);
        self.up();
    }

    /// Creates an interactive run with these options and returns its id.
    pub(crate) fn create(&self, engine: &str, prompt: &str, options: Value) -> String {
        self.create_run(&json!({
            "engine": engine, "prompt": prompt, "execution_mode": "interactive", "options": options,
            "workspace": self.workspace("w"),
        }))
    }

    /// Creates a run in this mode and returns its id.
    pub(crate) fn create_in(&self, mode: &str, engine: &str, prompt: &str) -> String {
        self.create_run(&json!({
            "engine": engine, "prompt": prompt, "execution_mode": mode, "workspace": self.workspace("w"),
        }))
    }

    /// Sends a message to a run.
    pub(crate) fn send_message(&self, run: &str, text: &str, on_busy: &str) -> String {
        let body = json!({ "text": text, "on_busy": on_busy });
        let sent = self.try_post(&format!("/v1/runs/{run}/messages"), &body);
        assert_eq!(sent.status, 202, "{}", sent.text);
        sent.str_at("/message_id").to_owned()
    }

    /// Sends a request to a run whose response is only an acknowledgement.
    pub(crate) fn post_action(&self, run: &str, action: &str) {
        let done = self.try_post(&format!("/v1/runs/{run}/{action}"), &json!({}));
        assert_eq!(done.status, 200, "{}", done.text);
    }

    /// Waits until the run's engine has reported this progress.
    pub(crate) fn wait_for_progress(&self, run: &str, text: &str) {
        let is_progress = |event: &Value| {
            event["run_id"] == run && event["type"] == "progressed" && event["data"]["text"] == text
        };
        self.wait_until(&format!("{run} reports {text}"), || {
            self.events().events().iter().any(|seen| is_progress(&seen.event)).then_some(())
        });
    }

    /// Runs `abide down`, which ends all runs too, and returns its output.
    pub(crate) fn shut_down(&mut self) -> Value {
        let output = self.run_json(&["down"]);
        self.drop_daemon();
        output
    }

    /// Drops the handle of a daemon that was ended in another way.
    pub(crate) fn drop_daemon(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.wait();
        }
    }

    /// Waits until the run has an open question of this asker.
    pub(crate) fn wait_for_question(&self, run: &str, asked_by: &str) -> Value {
        self.wait_until(&format!("{run} has a question by {asked_by}"), || {
            let state = self.get_run(run);
            let is_open = |question: &Value| {
                question["interaction_id"] == state["pending_interaction_id"]
                    && question["asked_by"] == asked_by
            };
            self.questions(run).iter().any(is_open).then_some(state)
        })
    }

    /// Waits until the keeper of a run's first attempt is running.
    pub(crate) fn wait_for_keeper(&self, run: &str) -> HomeProcess {
        wait::until_some("the keeper runs", || self.keeper_of(run, 1))
    }

    /// Waits until a run's last turn has this execution status.
    pub(crate) fn wait_for_turn(&self, run: &str, status: &str) -> Value {
        self.wait_until(&format!("the last turn of {run} is {status}"), || {
            self.turns(run).pop().filter(|turn| turn["execution_status"] == status)
        })
    }

    /// Replies to the open question of a run.
    pub(crate) fn reply(&self, run: &Value, text: &str, reply_path: ReplyPath) {
        let interaction = run["pending_interaction_id"].as_str().expect("a question is open");
        match reply_path {
            ReplyPath::Http => {
                let path = format!("/v1/interactions/{interaction}/reply");
                let reply =
                    |key: &str| self.try_post(&path, &json!({ "text": text, "idempotency_key": key }));
                assert_eq!(reply("once").str_at("/resolution"), "accepted");
                assert_eq!(reply("once").str_at("/resolution"), "idempotent");
                assert_eq!(reply("other").str_at("/code"), "STALE_INTERACTION");
            }
            ReplyPath::CommandLine => drop(self.run_ok(&["reply", interaction, text])),
        }
    }

    /// Returns the lines that the run appended to its log file.
    pub(crate) fn log_lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.workspace("w").join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until no keeper of a run is left.
    pub(crate) fn wait_for_no_keeper(&self) {
        self.wait_until("no keeper is left", || self.keepers().is_empty().then_some(()));
    }
}
