//! The native agent as an engine: the real daemon runs it, and questions are answered over HTTP. After any kill the
//! daemon's ledger and the agent's journal agree.

mod workspaces;

use std::{fs, ops::Deref, path::PathBuf};

use abide_testkit::{
    daemon::{TestDaemon, TestHome},
    model::{ModelScript, ModelServer, ScriptedAnswer, TestGate, write_agent},
    proc::is_running,
    wait,
};
use serde_json::{Value, json};

use super::harness::{events, kill, results, script, sessions, shell};

/// A home whose daemon has one agent configured, and its model.
struct AgentEngineDaemon {
    home: TestHome,
    model: ModelServer,
}

impl Deref for AgentEngineDaemon {
    type Target = TestHome;

    fn deref(&self) -> &TestHome {
        &self.home
    }
}

impl AgentEngineDaemon {
    fn new(script: ModelScript) -> (Self, TestDaemon) {
        let home = TestHome::new(env!("CARGO_BIN_EXE_abide"));
        let model = ModelServer::start(script.require_message_order());
        let agent = home.path().join("agent");
        write_agent(&agent, &model.url("/v1")).unwrap();
        let home = home.with_config(&format!("[engines.native]\nargs = [\"--agent\", {agent:?}]\n"));
        let daemon = home.start();
        (Self { home, model }, daemon)
    }

    fn create_native_run(&self, mode: &str, prompt: &str) -> String {
        let workspace = self.workspace("one");
        self.create_run(
            &json!({ "engine": "native", "workspace": workspace, "execution_mode": mode, "prompt": prompt }),
        )
    }

    fn reply(&self, run: &str, text: &str) {
        let replied = self.try_reply(&self.get_run(run), text);
        assert!(replied.status < 300, "{replied:?}");
    }

    fn send_message(&self, run: &str, id: &str, text: &str) {
        self.post(&format!("/v1/runs/{run}/messages"), &json!({ "message_id": id, "text": text }));
    }

    /// Returns the agent's state folder for a run.
    fn state_dir(&self, run: &str) -> PathBuf {
        let session = self.get_run(run)["engine_session"].as_str().unwrap().to_owned();
        self.workspace("one").join(".abide/native").join(session)
    }

    /// Returns the output of `abide show`.
    fn show(&self, run: &str) -> Value {
        self.run_json(&["show", run])
    }

    /// Returns the pid of the current turn's process.
    fn agent_pid(&self, run: &str) -> u32 {
        let turns = self.show(run)["turns"].clone();
        let last = turns.as_array().unwrap().last().unwrap().clone();
        let attempts = last["attempts"].as_array().unwrap().clone();
        u32::try_from(attempts.last().unwrap()["pid"].as_u64().unwrap()).unwrap()
    }

    /// Waits for the duration of `moments` requests, so that a kill hits different points of the execution.
    fn wait_requests(&self, moments: u64) {
        for _ in 0..moments {
            self.get("/v1/runs");
        }
    }

    /// Calls `moment` and then kills the process of turn 2, which cannot end by itself.
    fn kill_second_turn(&self, run: &str, moment: impl FnOnce()) {
        let pid = self.wait_until(&format!("turn 2 of {run} has a process"), || {
            let turns = self.turns(run);
            let second = turns.iter().find(|turn| turn["turn_index"] == 2)?;
            second["attempts"][0]["pid"].as_u64()
        });
        moment();
        kill(u32::try_from(pid).unwrap());
    }

    /// Waits until none of the processes of these sessions exists.
    fn wait_for_exit(&self, sessions: &[(String, u32)]) {
        let is_over = || sessions.iter().all(|(_, pid)| !is_running(*pid));
        wait::until(&format!("no process of {sessions:?} is left"), is_over);
    }

    /// Checks that the ledger (over HTTP) and the journal (on disk) have the same turns, questions and answers.
    fn assert_journal_matches_ledger(&self, run: &str) {
        let shown = self.show(run);
        let agent = &shown["agent"];
        let interactions = shown["interactions"].as_array().unwrap();
        let own: Vec<&Value> =
            interactions.iter().filter(|question| question["asked_by"] != "abide").collect();
        let answered = own.iter().filter(|question| question["state"] == "answered").count();
        assert_eq!(agent["questions"], own.len(), "{shown:#}");
        assert_eq!(agent["answers"], answered, "{shown:#}");
        // Each turn gave the agent an answer to its question or a message.
        let turns = shown["turns"].as_array().unwrap();
        let turn_count = agent["messages"].as_u64().unwrap() + agent["answers"].as_u64().unwrap();
        assert_eq!(turn_count, turns.len() as u64, "{shown:#}");
        let journal = events(&self.state_dir(run));
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

fn last_results(harness: &AgentEngineDaemon) -> Vec<String> {
    results(&harness.model.requests().pop().unwrap())
}

#[test]
fn it_asks_a_person_answers_over_http_and_its_sessions_are_there_until_the_end() {
    let (harness, _daemon) = AgentEngineDaemon::new(script([
        shell("cd /; x=35; echo ready"),
        ask("Which number?"),
        shell("echo $((x + 7)) in $(pwd)"),
        ScriptedAnswer::say("42 it is"),
    ]));
    let run = harness.create_native_run("interactive", "count");
    let waiting = harness.wait_for_status(&run, "waiting_user");
    assert_eq!(waiting["profile"]["kind"], "resumable");
    let ours = sessions(&harness.state_dir(&run));
    assert!(ours.len() == 1 && is_running(ours[0].1), "{ours:?}");
    harness.assert_journal_matches_ledger(&run);
    harness.reply(&run, "7");
    let done = harness.wait_for_status(&run, "succeeded");
    assert_eq!(done["result"]["text"], "42 it is");
    let seen = last_results(&harness);
    assert_eq!(seen[1], "7");
    assert!(seen[2].contains("42 in /"), "{seen:#?}");
    harness.assert_journal_matches_ledger(&run);
    harness.wait_for_exit(&ours);
    let shown = harness.run(&["show", &run]);
    assert!(shown.stdout.contains("agent journal"), "{}", shown.stdout);
    assert!(shown.stdout.contains("questions") && shown.stdout.contains("shell 2"), "{}", shown.stdout);
}

#[test]
fn the_daemon_is_killed_while_the_agent_waits_and_while_it_works() {
    let gate = TestGate::new();
    let (harness, daemon) = AgentEngineDaemon::new(script([
        shell("x=1"),
        ask("Shall I?"),
        shell("echo $x").held_by(&gate),
        ScriptedAnswer::say("done"),
    ]));
    let run = harness.create_native_run("interactive", "count");
    harness.wait_for_status(&run, "waiting_user");
    daemon.kill();
    let daemon = harness.start();
    harness.wait_for_status(&run, "waiting_user");
    harness.reply(&run, "7");
    gate.wait_reached();
    daemon.kill();
    gate.open();
    let _daemon = harness.start();
    harness.wait_for_status(&run, "succeeded");
    assert!(last_results(&harness)[2].starts_with('1'), "{:?}", last_results(&harness));
    harness.assert_journal_matches_ledger(&run);
}

#[test]
fn the_agent_is_killed_in_a_call_and_the_chat_continues_with_what_is_known() {
    let (harness, _daemon) = AgentEngineDaemon::new(script([
        shell("x=5"),
        ScriptedAnswer::say("begun"),
        ScriptedAnswer::call("linger", json!({})),
        shell("echo still $x"),
        ScriptedAnswer::say("rested"),
    ]));
    let run = harness.create_native_run("chat", "begin");
    harness.wait_for_status(&run, "idle");
    let ours = sessions(&harness.state_dir(&run));
    assert!(ours.len() == 1 && is_running(ours[0].1), "a chat keeps its sessions: {ours:?}");
    harness.send_message(&run, "m2", "dig");
    let lingering = harness.workspace("one").join("lingering.txt");
    harness.wait_for_run(&run, "a call at work", |_| lingering.exists());
    kill(harness.agent_pid(&run));
    harness.wait_for_run(&run, "rest", |found| found["status"] == "idle" && found["turn_index"] == 2);
    assert!(is_running(ours[0].1), "the session for the next turn outlives the agent");
    harness.send_message(&run, "m3", "rest");
    let rested =
        harness.wait_for_run(&run, "turn 3", |found| found["status"] == "idle" && found["turn_index"] == 3);
    assert_eq!(rested["result"]["text"], "rested");
    let seen = last_results(&harness);
    assert!(seen[1].contains("outcome of this call is unknown"), "{seen:#?}");
    assert!(seen[2].contains("still 5"), "{seen:#?}");
    harness.assert_journal_matches_ledger(&run);
    assert_eq!(harness.show(&run)["agent"]["unknown_outcomes"], 1);
    harness.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    harness.wait_for_status(&run, "canceled");
    harness.wait_for_exit(&ours);
}

/// Asks once, and finishes after the answer when the gate is open.
fn ask_once_script(gate: &TestGate) -> ModelScript {
    let gate = gate.clone();
    ModelScript::new().decide(move |request| {
        let is_answered = !request.tool_results().is_empty();
        Some(if is_answered { ScriptedAnswer::say("done").held_by(&gate) } else { ask("Which number?") })
    })
}

/// Creates an open gate.
fn open_gate() -> TestGate {
    let gate = TestGate::new();
    gate.open();
    gate
}

/// Returns the answers in the agent's journal.
fn answers(harness: &AgentEngineDaemon, run: &str) -> Vec<String> {
    let journal = events(&harness.state_dir(run));
    let results = journal.iter().filter(|event| event["type"] == "ACTION_RESULT");
    results.map(|event| event["payload"]["observation_content"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_agent_killed_with_a_pending_answer_takes_no_other_text_for_it() {
    // In the last round the agent has read the answer and waits for the model; in the others it may be anywhere.
    for moment in 0..=8 {
        let gate = TestGate::new();
        let (harness, _daemon) = AgentEngineDaemon::new(ask_once_script(&gate));
        let run = harness.create_native_run("chat", "begin");
        harness.wait_for_status(&run, "waiting_user");
        harness.reply(&run, "7");
        harness.kill_second_turn(&run, || {
            if moment < 8 { harness.wait_requests(moment) } else { gate.wait_reached() }
        });
        gate.open();
        harness.wait_for_run(&run, "rest", |run_view| {
            run_view["status"] == "idle" && run_view["turn_index"] == 2
        });
        harness.send_message(&run, "m3", "continue");
        let after = harness.wait_for_run(&run, "turn 3", |run_view| {
            (run_view["status"] == "idle" || run_view["status"] == "waiting_user")
                && run_view["turn_index"] == 3
        });
        if after["status"] == "waiting_user" {
            assert!(moment < 8, "the answer was taken, and is asked for again");
            // The answer was never read, so the same question is asked again.
            assert_eq!(answers(&harness, &run), [""; 0], "moment {moment}");
            harness.reply(&run, "7");
            harness.wait_for_run(&run, "turn 4", |run_view| {
                run_view["status"] == "idle" && run_view["turn_index"] == 4
            });
        }
        assert_eq!(answers(&harness, &run), ["7"], "moment {moment}");
        assert_eq!(harness.get_run(&run)["result"]["text"], "done", "moment {moment}");
        assert_eq!(harness.model.faults(), [""; 0]);
    }
}

#[test]
fn an_answer_is_delivered_once_wherever_the_daemon_is_killed() {
    for moment in 0..8 {
        let (harness, daemon) = AgentEngineDaemon::new(ask_once_script(&open_gate()));
        let run = harness.create_native_run("interactive", "begin");
        harness.wait_for_status(&run, "waiting_user");
        harness.reply(&run, "7");
        harness.wait_requests(moment);
        daemon.kill();
        let _daemon = harness.start();
        let done = harness.wait_for_status(&run, "succeeded");
        assert_eq!(done["result"]["text"], "done");
        assert_eq!(answers(&harness, &run), ["7"]);
        harness.assert_journal_matches_ledger(&run);
    }
}

#[test]
fn a_run_that_is_canceled_while_it_waits_leaves_no_session_even_if_the_daemon_dies_over_it() {
    let (harness, daemon) = AgentEngineDaemon::new(script([shell("x=1"), ask("Shall I?")]));
    let run = harness.create_native_run("interactive", "count");
    harness.wait_for_status(&run, "waiting_user");
    let ours = sessions(&harness.state_dir(&run));
    assert!(is_running(ours[0].1));
    harness.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    daemon.kill();
    let _daemon = harness.start();
    harness.wait_for_status(&run, "canceled");
    harness.wait_for_exit(&ours);
}

#[test]
fn a_turn_that_is_interrupted_continues_in_the_same_session() {
    let gate = TestGate::new();
    let (harness, _daemon) = AgentEngineDaemon::new(script([
        shell("x=9"),
        ScriptedAnswer::say("too late").held_by(&gate),
        shell("echo $x"),
        ScriptedAnswer::say("stopped and continued"),
    ]));
    let run = harness.create_native_run("interactive", "count");
    gate.wait_reached();
    harness.post(&format!("/v1/runs/{run}/interrupt"), &json!({}));
    harness.wait_for_status(&run, "waiting_user");
    gate.open();
    harness.reply(&run, "continue with less");
    harness.wait_for_status(&run, "succeeded");
    let last = harness.model.requests().pop().unwrap();
    assert!(last.user_texts().iter().any(|text| text == "continue with less"), "{:?}", last.user_texts());
    assert!(results(&last)[1].starts_with('9'), "{:?}", results(&last));
}

#[test]
fn in_auto_mode_it_is_not_offered_to_ask_and_told_to_decide() {
    let (harness, _daemon) =
        AgentEngineDaemon::new(script([ask("Tea or coffee?"), ScriptedAnswer::say("tea")]));
    let run = harness.create_native_run("auto", "brew");
    harness.wait_for_status(&run, "succeeded");
    let request = harness.model.requests();
    assert!(request.iter().all(|request| !request.offers("ask_human") && request.offers("shell")));
    assert!(request[0].raw.to_string().contains("Decide yourself"), "{}", request[0].raw);
    assert!(last_results(&harness)[0].contains("Decide yourself"), "{:?}", last_results(&harness));
}

#[test]
fn a_sensitive_answer_is_in_the_ledger_and_the_model_and_nowhere_else() {
    let secret = "correct-horse-battery";
    let question = json!({ "question": "The password?", "sensitive": true });
    let (harness, _daemon) = AgentEngineDaemon::new(script([
        ScriptedAnswer::call("ask_human", question),
        ScriptedAnswer::call("note", json!({ "text": "logged in" })),
        ScriptedAnswer::say("done"),
    ]));
    let run = harness.create_native_run("interactive", "log in");
    harness.wait_for_status(&run, "waiting_user");
    let interaction = harness.show(&run)["interactions"][0].clone();
    assert_eq!(interaction["ui_hints"]["sensitive"], true, "{interaction:#}");
    harness.reply(&run, secret);
    harness.wait_for_status(&run, "succeeded");
    assert_eq!(last_results(&harness)[0], secret);
    harness.assert_journal_matches_ledger(&run);
    // The ledger keeps the answer, as it keeps all answers.
    assert_eq!(harness.show(&run)["interactions"][0]["reply"], secret);
    let ledger = |name: &str| name.starts_with("abide.db");
    let holding = files_containing(harness.path(), secret.as_bytes());
    assert!(holding.iter().all(|name| ledger(name)), "{holding:?}");
}

#[test]
fn the_key_of_the_model_reaches_the_model_and_neither_tools_nor_files() {
    let key = "sk-0123456789-native";
    let (harness, daemon) = AgentEngineDaemon::new(script([
        shell("echo key: $T_KEY $T_COPY; env | grep -o '^T_[A-Z]*'"),
        ScriptedAnswer::call("look", json!({})),
        ScriptedAnswer::say("done"),
    ]));
    let path = harness.path().join("agent").join("config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(path, config.replace("  name: loopback", "  name: loopback\n  api_key_env: T_KEY")).unwrap();
    daemon.kill();
    // Without this setting the agent gets none of the variables (SECURITY 24).
    let passed = ("ABIDE_ENGINES_NATIVE_PASS_ENV", "ABIDE_HOME T_*");
    let _daemon = harness.start_with(&[], &[passed, ("T_KEY", key), ("T_COPY", key), ("T_OTHER", "1")]);
    let run = harness.create_native_run("interactive", "look");
    harness.wait_for_status(&run, "succeeded");
    assert_eq!(harness.model.requests()[0].key.as_deref(), Some(key));
    let seen = last_results(&harness);
    assert!(seen[0].contains("key:\nT_OTHER\n"), "{seen:?}");
    assert_eq!(files_containing(harness.path(), key.as_bytes()), [""; 0]);
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
        let (harness, _daemon) = AgentEngineDaemon::new(script([
            shell(&format!("({TRESPASS}) 2>/dev/null")),
            ScriptedAnswer::call("note", json!({ "text": "hello" })),
            ScriptedAnswer::say("done"),
        ]));
        let body = json!({
            "engine": "native", "workspace": harness.workspace("one"), "execution_mode": "interactive",
            "prompt": "trespass", "options": options,
        });
        let run = harness.create_run(&body);
        harness.wait_for_status(&run, "succeeded");
        let seen = last_results(&harness);
        let markers: String = ["INSIDE", "OUTSIDE", "SEEN", "done"]
            .into_iter()
            .filter(|word| seen[0].lines().any(|line| line == *word))
            .map(|word| format!("{word}\n"))
            .collect();
        assert_eq!(markers, expected, "{options}: {seen:?}");
        let may_write = expected.contains("INSIDE");
        assert_eq!(seen[1].contains("noted hello"), may_write, "{options}: {seen:?}");
        assert_eq!(harness.workspace("one").join("notes.txt").exists(), may_write, "{options}");
    }
}

#[test]
fn a_native_run_whose_sandbox_cannot_be_enforced_is_refused() {
    let (harness, _daemon) = AgentEngineDaemon::new(ModelScript::new());
    let body = json!({
        "engine": "native", "workspace": harness.workspace("one"), "execution_mode": "interactive",
        "prompt": "count", "options": { "sandbox": "read-only", "isolation": "off" },
    });
    let run = harness.create_run(&body);
    let failed = harness.wait_for_status(&run, "failed");
    assert!(failed["error"]["message"].as_str().unwrap().contains("read-only"), "{failed:#}");
}

#[test]
fn a_workspace_without_a_definition_is_explained() {
    let (harness, _daemon) = AgentEngineDaemon::new(ModelScript::new());
    fs::remove_dir_all(harness.path().join("agent")).unwrap();
    let run = harness.create_native_run("interactive", "count");
    let failed = harness.wait_for_status(&run, "failed");
    assert_eq!(failed["error"]["code"], "ENGINE_FAILED");
    assert!(failed["error"]["message"].as_str().unwrap().contains("abide agent init"), "{failed:#}");
}

/// Returns the names of the files below a folder that contain these bytes.
fn files_containing(folder: &std::path::Path, bytes: &[u8]) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_containing(&entry.path(), bytes));
        } else if fs::read(entry.path()).is_ok_and(|text| text.windows(bytes.len()).any(|part| part == bytes))
        {
            files.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    files
}
