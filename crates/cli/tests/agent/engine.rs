//! The native agent as an engine: the real daemon runs it, and questions are answered over HTTP. After any kill the
//! daemon's ledger and the agent's journal agree.

mod workspaces;

use std::{fs, path::PathBuf};

use abide_testkit::{
    daemon::{EventReader, TestDaemon, TestHome, TestHttpResponse},
    model::{ModelScript, ModelServer, ScriptedAnswer, TestGate},
};
use serde_json::{Value, json};

use super::stage::{CONFIG, events, kill, results, runs, script, sessions, shell};

/// A home whose daemon has one agent configured, and its model.
struct AgentEngineDaemon {
    home: TestHome,
    model: ModelServer,
    feed: EventReader,
}

/// The maximum number of polls; each waits for an event or a short time.
const LOOKS: usize = 1_000;

impl AgentEngineDaemon {
    fn new(script: ModelScript) -> (Self, TestDaemon) {
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide").as_ref());
        let model = ModelServer::start(script.demand_order());
        let agent = home.path().join("agent");
        fs::create_dir_all(&agent).unwrap();
        fs::write(agent.join("config.yaml"), CONFIG.replace("BASE_URL", &model.url("/v1"))).unwrap();
        fs::write(agent.join("system_prompt.md"), "You are a careful agent.\n").unwrap();
        let config = format!("[engines.native]\nargs = [\"--agent\", \"{}\"]\n", agent.display());
        fs::write(home.path().join("config.toml"), config).unwrap();
        let daemon = home.start();
        assert!(daemon.is_ready(), "{}", home.complaints());
        let feed = EventReader::open("/v1/events", home.finder());
        (Self { home, model, feed }, daemon)
    }

    fn post(&self, path: &str, body: &Value) -> TestHttpResponse {
        let response = self.home.client().unwrap().post(path, body).unwrap();
        assert!(response.status < 300, "{path}: {response:?}");
        response
    }

    fn begin(&self, mode: &str, prompt: &str) -> String {
        let workspace = self.home.workspace("one");
        let body =
            json!({ "engine": "native", "workspace": workspace, "execution_mode": mode, "prompt": prompt });
        self.post("/v1/runs", &body).text("/run_id").to_owned()
    }

    fn run(&self, run: &str) -> Value {
        self.home.client().unwrap().get(&format!("/v1/runs/{run}")).unwrap().body
    }

    fn until(&self, run: &str, status: &str) -> Value {
        self.until_it(run, status, |found| found["status"] == status)
    }

    fn until_it(&self, run: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..LOOKS {
            let seen = self.feed.seen().len();
            let found = self.run(run);
            if wanted(&found) {
                return found;
            }
            let over = ["succeeded", "failed", "canceled"].iter().any(|over| found["status"] == *over);
            assert!(!over, "{run} never comes to {what}: {found:#}\n{}", self.home.complaints());
            self.feed.wait_shortly_beyond(seen);
        }
        panic!("{run} does not come to {what}: {:#}", self.run(run));
    }

    fn reply(&self, run: &str, text: &str) {
        let pending = self.run(run)["pending_interaction_id"].as_str().unwrap().to_owned();
        self.post(&format!("/v1/interactions/{pending}/reply"), &json!({ "text": text }));
    }

    fn say(&self, run: &str, id: &str, text: &str) {
        self.post(&format!("/v1/runs/{run}/messages"), &json!({ "message_id": id, "text": text }));
    }

    /// Returns the agent's state folder for a run.
    fn state(&self, run: &str) -> PathBuf {
        let session = self.run(run)["engine_session"].as_str().unwrap().to_owned();
        self.home.workspace("one").join(".abide/native").join(session)
    }

    /// Returns the output of `abide show`.
    fn show(&self, run: &str) -> Value {
        let shown = self.home.run(&["show", run, "--json"]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        serde_json::from_str(&shown.stdout).unwrap()
    }

    /// Returns the pid of the current turn's process.
    fn agent(&self, run: &str) -> u32 {
        let turns = self.show(run)["turns"].clone();
        let last = turns.as_array().unwrap().last().unwrap().clone();
        let attempts = last["attempts"].as_array().unwrap().clone();
        u32::try_from(attempts.last().unwrap()["pid"].as_u64().unwrap()).unwrap()
    }

    /// Waits for the duration of `moments` requests, so that a kill hits different points of the execution.
    fn moments(&self, moments: u64) {
        for _ in 0..moments {
            self.home.client().unwrap().get("/v1/runs").unwrap();
        }
    }

    /// Calls `moment` and then kills the process of turn 2, which cannot end by itself.
    fn kill_second(&self, run: &str, moment: impl FnOnce()) {
        let path = format!("/v1/runs/{run}/turns");
        for _ in 0..LOOKS {
            let seen = self.feed.seen().len();
            let turns = self.home.client().unwrap().get(&path).unwrap().body["items"].clone();
            let pid = turns.as_array().unwrap().iter().find_map(|turn| {
                (turn["turn_index"] == 2).then(|| turn["attempts"][0]["pid"].as_u64()).flatten()
            });
            if let Some(pid) = pid {
                moment();
                kill(u32::try_from(pid).unwrap());
                return;
            }
            self.feed.wait_shortly_beyond(seen);
        }
        panic!("turn 2 of {run} has no process");
    }

    /// Waits until none of the processes of these sessions exists.
    fn until_gone(&self, sessions: &[(String, u32)]) {
        for _ in 0..LOOKS {
            if sessions.iter().all(|(_, pid)| !runs(*pid)) {
                return;
            }
            self.feed.wait_shortly_beyond(self.feed.seen().len());
        }
        panic!("sessions are left: {sessions:?}");
    }

    /// Checks that the ledger (over HTTP) and the journal (on disk) have the same turns, questions and answers.
    fn agree(&self, run: &str) {
        let shown = self.show(run);
        let agent = &shown["agent"];
        let asked = shown["interactions"].as_array().unwrap();
        let own: Vec<&Value> = asked.iter().filter(|question| question["asked_by"] != "abide").collect();
        let answered = own.iter().filter(|question| question["state"] == "answered").count();
        assert_eq!(agent["questions"], own.len(), "{shown:#}");
        assert_eq!(agent["answers"], answered, "{shown:#}");
        // Each turn gave the agent an answer to its question or a message.
        let turns = shown["turns"].as_array().unwrap();
        let said = agent["messages"].as_u64().unwrap() + agent["answers"].as_u64().unwrap();
        assert_eq!(said, turns.len() as u64, "{shown:#}");
        let journal = events(&self.state(run));
        let prompts: Vec<&Value> = journal
            .iter()
            .filter(|event| event["type"] == "ACTION_REQUEST" && event["payload"]["tool_name"] == "ask_human")
            .map(|event| &event["payload"]["tool_args"]["question"])
            .collect();
        assert_eq!(own.iter().map(|question| &question["prompt"]).collect::<Vec<_>>(), prompts);
        assert_eq!(self.model.faults(), [""; 0]);
    }
}

fn ask(question: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("ask_human", json!({ "question": question, "options": ["7", "8"] }))
}

fn last_results(house: &AgentEngineDaemon) -> Vec<String> {
    results(&house.model.heard().pop().unwrap())
}

#[test]
fn it_asks_a_person_answers_over_http_and_its_sessions_are_there_until_the_end() {
    let (house, _daemon) = AgentEngineDaemon::new(script([
        shell("cd /; x=35; echo ready"),
        ask("Which number?"),
        shell("echo $((x + 7)) in $(pwd)"),
        ScriptedAnswer::say("42 it is"),
    ]));
    let run = house.begin("interactive", "count");
    let waiting = house.until(&run, "waiting_user");
    assert_eq!(waiting["profile"]["kind"], "resumable");
    let ours = sessions(&house.state(&run));
    assert!(ours.len() == 1 && runs(ours[0].1), "{ours:?}");
    house.agree(&run);
    house.reply(&run, "7");
    let done = house.until(&run, "succeeded");
    assert_eq!(done["result"]["text"], "42 it is");
    let seen = last_results(&house);
    assert_eq!(seen[1], "7");
    assert!(seen[2].contains("42 in /"), "{seen:#?}");
    house.agree(&run);
    house.until_gone(&ours);
    let shown = house.home.run(&["show", &run]);
    assert!(shown.stdout.contains("the agent's own journal"), "{}", shown.stdout);
    assert!(shown.stdout.contains("asked") && shown.stdout.contains("shell 2"), "{}", shown.stdout);
}

#[test]
fn the_daemon_is_killed_while_the_agent_waits_and_while_it_works() {
    let gate = TestGate::new();
    let (house, daemon) = AgentEngineDaemon::new(script([
        shell("x=1"),
        ask("Shall I?"),
        shell("echo $x").held(&gate),
        ScriptedAnswer::say("done"),
    ]));
    let run = house.begin("interactive", "count");
    house.until(&run, "waiting_user");
    daemon.kill();
    let daemon = house.home.start();
    house.until(&run, "waiting_user");
    house.reply(&run, "7");
    gate.reached();
    daemon.kill();
    gate.open();
    let _daemon = house.home.start();
    house.until(&run, "succeeded");
    assert!(last_results(&house)[2].starts_with('1'), "{:?}", last_results(&house));
    house.agree(&run);
}

#[test]
fn the_agent_is_killed_in_a_call_and_the_chat_goes_on_with_what_is_known() {
    let (house, _daemon) = AgentEngineDaemon::new(script([
        shell("x=5"),
        ScriptedAnswer::say("begun"),
        ScriptedAnswer::call("linger", json!({})),
        shell("echo still $x"),
        ScriptedAnswer::say("rested"),
    ]));
    let run = house.begin("chat", "begin");
    house.until(&run, "idle");
    let ours = sessions(&house.state(&run));
    assert!(ours.len() == 1 && runs(ours[0].1), "a chat keeps its sessions: {ours:?}");
    house.say(&run, "m2", "dig");
    let lingering = house.home.workspace("one").join("lingering.txt");
    house.until_it(&run, "a call at work", |_| lingering.exists());
    kill(house.agent(&run));
    house.until_it(&run, "rest", |found| found["status"] == "idle" && found["turn_index"] == 2);
    assert!(runs(ours[0].1), "what the agent had for its next turn outlives it");
    house.say(&run, "m3", "rest");
    let rested =
        house.until_it(&run, "turn 3", |found| found["status"] == "idle" && found["turn_index"] == 3);
    assert_eq!(rested["result"]["text"], "rested");
    let seen = last_results(&house);
    assert!(seen[1].contains("outcome of this call is unknown"), "{seen:#?}");
    assert!(seen[2].contains("still 5"), "{seen:#?}");
    house.agree(&run);
    assert_eq!(house.show(&run)["agent"]["unknown"], 1);
    house.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    house.until(&run, "canceled");
    house.until_gone(&ours);
}

/// Asks once, and finishes after the answer when the gate is open.
fn asks_once(gate: &TestGate) -> ModelScript {
    let gate = gate.clone();
    ModelScript::new().decide(move |heard| {
        let is_answered = !heard.tool_results().is_empty();
        Some(if is_answered { ScriptedAnswer::say("done").held(&gate) } else { ask("Which number?") })
    })
}

/// Creates an open gate.
fn open_gate() -> TestGate {
    let gate = TestGate::new();
    gate.open();
    gate
}

/// Returns the answers in the agent's journal.
fn answers(house: &AgentEngineDaemon, run: &str) -> Vec<String> {
    let journal = events(&house.state(run));
    let results = journal.iter().filter(|event| event["type"] == "ACTION_RESULT");
    results.map(|event| event["payload"]["observation_content"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn wherever_the_agent_is_killed_with_an_answer_in_hand_no_other_words_are_taken_for_it() {
    // In the last round the agent has read the answer and waits for the model; in the others it may be anywhere.
    for moment in 0..=8 {
        let gate = TestGate::new();
        let (house, _daemon) = AgentEngineDaemon::new(asks_once(&gate));
        let run = house.begin("chat", "begin");
        house.until(&run, "waiting_user");
        house.reply(&run, "7");
        house.kill_second(&run, || if moment < 8 { house.moments(moment) } else { gate.reached() });
        gate.open();
        house.until_it(&run, "rest", |found| found["status"] == "idle" && found["turn_index"] == 2);
        house.say(&run, "m3", "go on");
        let after = house.until_it(&run, "turn 3", |found| {
            (found["status"] == "idle" || found["status"] == "waiting_user") && found["turn_index"] == 3
        });
        if after["status"] == "waiting_user" {
            assert!(moment < 8, "the answer was taken, and is asked for again");
            // The answer was never read, so the same question is asked again.
            assert_eq!(answers(&house, &run), [""; 0], "moment {moment}");
            house.reply(&run, "7");
            house.until_it(&run, "turn 4", |found| found["status"] == "idle" && found["turn_index"] == 4);
        }
        assert_eq!(answers(&house, &run), ["7"], "moment {moment}");
        assert_eq!(house.run(&run)["result"]["text"], "done", "moment {moment}");
        assert_eq!(house.model.faults(), [""; 0]);
    }
}

#[test]
fn wherever_the_daemon_is_killed_with_an_answer_in_hand_the_agent_hears_it_once() {
    for moment in 0..8 {
        let (house, daemon) = AgentEngineDaemon::new(asks_once(&open_gate()));
        let run = house.begin("interactive", "begin");
        house.until(&run, "waiting_user");
        house.reply(&run, "7");
        house.moments(moment);
        daemon.kill();
        let _daemon = house.home.start();
        let done = house.until(&run, "succeeded");
        assert_eq!(done["result"]["text"], "done");
        assert_eq!(answers(&house, &run), ["7"]);
        house.agree(&run);
    }
}

#[test]
fn a_run_that_is_canceled_while_it_waits_leaves_no_session_even_if_the_daemon_dies_over_it() {
    let (house, daemon) = AgentEngineDaemon::new(script([shell("x=1"), ask("Shall I?")]));
    let run = house.begin("interactive", "count");
    house.until(&run, "waiting_user");
    let ours = sessions(&house.state(&run));
    assert!(runs(ours[0].1));
    house.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    daemon.kill();
    let _daemon = house.home.start();
    house.until(&run, "canceled");
    house.until_gone(&ours);
}

#[test]
fn a_turn_that_is_interrupted_goes_on_in_the_same_session() {
    let gate = TestGate::new();
    let (house, _daemon) = AgentEngineDaemon::new(script([
        shell("x=9"),
        ScriptedAnswer::say("too late").held(&gate),
        shell("echo $x"),
        ScriptedAnswer::say("stopped and gone on"),
    ]));
    let run = house.begin("interactive", "count");
    gate.reached();
    house.post(&format!("/v1/runs/{run}/interrupt"), &json!({}));
    house.until(&run, "waiting_user");
    gate.open();
    house.reply(&run, "go on with less");
    house.until(&run, "succeeded");
    let last = house.model.heard().pop().unwrap();
    assert!(last.user_texts().iter().any(|text| text == "go on with less"), "{:?}", last.user_texts());
    assert!(results(&last)[1].starts_with('9'), "{:?}", results(&last));
}

#[test]
fn in_auto_mode_it_is_not_offered_to_ask_and_told_to_decide() {
    let (house, _daemon) =
        AgentEngineDaemon::new(script([ask("Tea or coffee?"), ScriptedAnswer::say("tea")]));
    let run = house.begin("auto", "brew");
    house.until(&run, "succeeded");
    let heard = house.model.heard();
    assert!(heard.iter().all(|heard| !heard.offers("ask_human") && heard.offers("shell")));
    assert!(heard[0].raw.to_string().contains("Decide for yourself"), "{}", heard[0].raw);
    assert!(last_results(&house)[0].contains("Decide for yourself"), "{:?}", last_results(&house));
}

#[test]
fn a_sensitive_answer_is_in_the_ledger_and_the_model_and_nowhere_else() {
    let secret = "correct-horse-battery";
    let question = json!({ "question": "The password?", "sensitive": true });
    let (house, _daemon) = AgentEngineDaemon::new(script([
        ScriptedAnswer::call("ask_human", question),
        ScriptedAnswer::call("note", json!({ "text": "logged in" })),
        ScriptedAnswer::say("done"),
    ]));
    let run = house.begin("interactive", "log in");
    house.until(&run, "waiting_user");
    let asked = house.show(&run)["interactions"][0].clone();
    assert_eq!(asked["ui_hints"]["sensitive"], true, "{asked:#}");
    house.reply(&run, secret);
    house.until(&run, "succeeded");
    assert_eq!(last_results(&house)[0], secret);
    house.agree(&run);
    // The ledger keeps the answer, as it keeps all answers.
    assert_eq!(house.show(&run)["interactions"][0]["reply"], secret);
    let ledger = |name: &str| name.starts_with("abide.db");
    let holding = holding(house.home.path(), secret.as_bytes());
    assert!(holding.iter().all(|name| ledger(name)), "{holding:?}");
}

#[test]
fn the_key_of_the_model_reaches_the_model_and_neither_tools_nor_files() {
    let key = "sk-0123456789-native";
    let (house, daemon) = AgentEngineDaemon::new(script([
        shell("echo key: $T_KEY $T_COPY; env | grep -o '^T_[A-Z]*'"),
        ScriptedAnswer::call("look", json!({})),
        ScriptedAnswer::say("done"),
    ]));
    let path = house.home.path().join("agent").join("config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(path, config.replace("  name: loopback", "  name: loopback\n  api_key_env: T_KEY")).unwrap();
    daemon.kill();
    // Without this setting the agent gets none of the variables (SECURITY 24).
    let passed = ("ABIDE_ENGINES_NATIVE_PASS_ENV", "ABIDE_HOME T_*");
    let _daemon = house.home.start_with(&[passed, ("T_KEY", key), ("T_COPY", key), ("T_OTHER", "1")]);
    let run = house.begin("interactive", "look");
    house.until(&run, "succeeded");
    assert_eq!(house.model.heard()[0].key.as_deref(), Some(key));
    let seen = last_results(&house);
    assert!(seen[0].contains("key:\nT_OTHER\n"), "{seen:?}");
    assert_eq!(holding(house.home.path(), key.as_bytes()), [""; 0]);
}

/// Attempts to write and to read files inside and outside the workspace.
const TRESPASS: &str = "echo x > inside && echo INSIDE; echo x > \"$ABIDE_HOME/outside\" && echo OUTSIDE; \
    cat \"$ABIDE_HOME/token\" \"$ABIDE_HOME/abide.db\" >/dev/null && echo SEEN; echo done";

#[test]
fn a_read_only_native_run_has_tools_that_write_nothing_and_see_nothing_of_the_home() {
    let cases = [
        (json!({ "sandbox": "read-only" }), "done\n"),
        (json!({ "sandbox": "workspace-write" }), "INSIDE\ndone\n"),
        (json!({ "sandbox": "danger-full-access" }), "INSIDE\ndone\n"),
        (json!({ "isolation": "off" }), "INSIDE\nOUTSIDE\nSEEN\ndone\n"),
    ];
    for (options, expected) in cases {
        // Tested with a shell session and with a tool that is started for one call.
        let (house, _daemon) = AgentEngineDaemon::new(script([
            shell(&format!("({TRESPASS}) 2>/dev/null")),
            ScriptedAnswer::call("note", json!({ "text": "hello" })),
            ScriptedAnswer::say("done"),
        ]));
        let body = json!({
            "engine": "native", "workspace": house.home.workspace("one"), "execution_mode": "interactive",
            "prompt": "trespass", "options": options,
        });
        let run = house.post("/v1/runs", &body).text("/run_id").to_owned();
        house.until(&run, "succeeded");
        let seen = last_results(&house);
        let said: String = ["INSIDE", "OUTSIDE", "SEEN", "done"]
            .into_iter()
            .filter(|word| seen[0].lines().any(|line| line == *word))
            .map(|word| format!("{word}\n"))
            .collect();
        assert_eq!(said, expected, "{options}: {seen:?}");
        let may_write = expected.contains("INSIDE");
        assert_eq!(seen[1].contains("noted hello"), may_write, "{options}: {seen:?}");
        assert_eq!(house.home.workspace("one").join("notes.txt").exists(), may_write, "{options}");
    }
}

#[test]
fn a_native_run_whose_sandbox_cannot_be_enforced_is_refused() {
    let (house, _daemon) = AgentEngineDaemon::new(ModelScript::new());
    let body = json!({
        "engine": "native", "workspace": house.home.workspace("one"), "execution_mode": "interactive",
        "prompt": "count", "options": { "sandbox": "read-only", "isolation": "off" },
    });
    let run = house.post("/v1/runs", &body).text("/run_id").to_owned();
    let failed = house.until(&run, "failed");
    assert!(failed["error"]["message"].as_str().unwrap().contains("read-only"), "{failed:#}");
}

#[test]
fn a_workspace_without_a_definition_is_explained() {
    let (house, _daemon) = AgentEngineDaemon::new(ModelScript::new());
    fs::remove_dir_all(house.home.path().join("agent")).unwrap();
    let run = house.begin("interactive", "count");
    let failed = house.until(&run, "failed");
    assert_eq!(failed["error"]["code"], "ENGINE_FAILED");
    assert!(failed["error"]["message"].as_str().unwrap().contains("abide agent init"), "{failed:#}");
}

/// Returns the names of the files below a folder that contain these bytes.
fn holding(folder: &std::path::Path, bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(holding(&entry.path(), bytes));
        } else if fs::read(entry.path()).is_ok_and(|text| text.windows(bytes.len()).any(|part| part == bytes))
        {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}
