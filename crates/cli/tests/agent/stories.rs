//! End-to-end scenarios: two sessions, a question, an answer, and no process left.

use abide_testkit::{
    model::{ModelScript, ScriptedAnswer},
    proc::is_running,
};
use serde_json::json;

use super::harness::{AgentTestHome, results, script, shell};

fn python(code: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("python", json!({ "code": code }))
}

#[test]
fn two_sessions_wait_with_a_question_and_are_gone_at_the_end_with_no_other_runs_touched() {
    let other = AgentTestHome::new(script([
        shell("echo other"),
        ScriptedAnswer::call("ask_human", json!({ "question": "?" })),
    ]));
    other.run(&["--message", "stay"]).expect(101);
    let others = other.sessions();
    assert_eq!(others.len(), 1);

    let ask = json!({ "question": "Which number?", "options": ["7", "8"] });
    let home = AgentTestHome::new(script([
        shell("cd /; x=35; echo shell ready"),
        python("y = 6"),
        ScriptedAnswer::call("ask_human", ask).then_call("shell", json!({ "command": "echo beside" })),
        shell("echo $((x + 7)) in $(pwd)"),
        python("print(y * 7)"),
        ScriptedAnswer::say("42 it is"),
    ]));
    let waiting = home.run(&["--message", "go"]);
    waiting.expect(101);
    assert!(waiting.stderr.contains("Which number?"), "{}", waiting.stderr);
    let question = std::fs::read_to_string(home.state().join("interaction.json")).unwrap();
    assert!(question.contains("Which number?"), "{question}");
    let ours = home.sessions();
    assert_eq!(ours.len(), 2, "{ours:?}");
    assert!(ours.iter().all(|(_, pid)| is_running(*pid)), "{ours:?}");

    let done = home.run(&["--answer", "7"]);
    done.expect(0);
    assert_eq!(done.stdout, "42 it is\n");
    let last = home.model.requests().pop().unwrap();
    let seen = results(&last);
    assert!(seen[0].contains("Session started with session_id: shell_"), "{seen:#?}");
    assert!(seen[0].contains("shell ready"), "{seen:#?}");
    assert!(seen[1].contains("Session started with session_id: python_"), "{seen:#?}");
    assert_eq!(seen[2], "7");
    assert!(seen[3].contains("beside"), "{seen:#?}");
    assert!(seen[4].contains("42 in /"), "{seen:#?}");
    assert!(seen[5].contains("42"), "{seen:#?}");
    home.assert_message_order();

    assert!(ours.iter().all(|(_, pid)| !is_running(*pid)), "{ours:?}");
    assert_eq!(home.sessions(), []);
    assert!(!home.state().join("interaction.json").exists());
    assert_eq!(other.sessions(), others);
    assert!(others.iter().all(|(_, pid)| is_running(*pid)), "{others:?}");
    let started: Vec<_> = home
        .journal()
        .iter()
        .filter(|event| event["payload"]["session_event"] == "started")
        .cloned()
        .collect();
    let ended: Vec<_> =
        home.journal().iter().filter(|event| event["payload"]["session_event"] == "ended").cloned().collect();
    assert_eq!((started.len(), ended.len()), (2, 2));
    other.model.set_script(ModelScript::new().with_default(ScriptedAnswer::say("bye")));
    other.run(&["--answer", "go"]).expect(0);
    assert_eq!(other.sessions(), []);
}

#[test]
fn the_same_command_again_tells_the_answer_without_a_model_and_again_asks_it() {
    let home = AgentTestHome::new(script([ScriptedAnswer::say("one"), ScriptedAnswer::say("two")]));
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "one\n");
    assert_eq!(home.run(&["--message", "go"]).expect(0).stdout, "one\n");
    assert_eq!(home.model.requests().len(), 1);
    assert_eq!(home.run(&["--message", "go", "--again"]).expect(0).stdout, "two\n");
    assert_eq!(home.model.requests().len(), 2);
}

#[test]
fn events_are_printed_as_json_with_the_outcome_last() {
    let call = ScriptedAnswer::call("note", json!({ "text": "x" })).then_call("nothing", json!({}));
    let home = AgentTestHome::new(script([call, ScriptedAnswer::say("done")]));
    let output = home.run(&["--message", "go", "--json"]);
    output.expect(0);
    let lines: Vec<serde_json::Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (outcome, events) = lines.split_last().unwrap();
    assert_eq!(outcome, &json!({ "type": "outcome", "status": "COMPLETED", "answer": "done" }));
    assert_eq!(events, home.journal());
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "RUN_START",
            "USER_MESSAGE",
            "THOUGHT",
            "ACTION_REQUEST",
            "ACTION_REQUEST",
            "ACTION_RESULT",
            "ACTION_RESULT",
            "THOUGHT",
            "RUN_END"
        ]
    );
}

#[test]
fn a_session_that_the_model_ends_is_gone_and_the_next_call_starts_another() {
    let end = |request: &abide_testkit::model::ReceivedRequest| {
        let first = results(request).first()?.clone();
        let (_, id) = first.split_once("session_id: ")?;
        let id: String = id.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        (request.tool_results().len() == 1)
            .then(|| ScriptedAnswer::call("session_end", json!({ "session_id": id })))
    };
    let model =
        script([shell("x=1"), shell("echo x is ${x:-unset}"), ScriptedAnswer::say("done")]).decide(end);
    let home = AgentTestHome::new(model);
    home.run(&["--message", "go"]).expect(0);
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(seen[1].contains("terminated"), "{seen:#?}");
    assert!(seen[2].contains("x is unset"), "{seen:#?}");
    let names: Vec<_> = home.events("ACTION_REQUEST").iter().map(|r| r["tool_name"].clone()).collect();
    assert_eq!(names, ["shell", "session.end", "shell"]);
}
