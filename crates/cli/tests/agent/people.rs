//! Questions, answers, and which of them make sense.

use std::io::Write;
use std::process::Stdio;

use abide_testkit::model::{Answer, Script};
use serde_json::json;

use super::stage::{Stage, results, script};

fn ask(question: &str) -> Answer {
    Answer::call("ask_human", json!({ "question": question }))
}

#[test]
fn a_sensitive_answer_reaches_the_model_and_the_tool_and_never_the_journal() {
    let question = json!({ "question": "Password?", "sensitive": true });
    let stage = Stage::new(script([Answer::call("ask_human", question)]));
    stage.run(&["--message", "go"]).expect(101);
    let use_it = |heard: &abide_testkit::model::Heard| {
        let seen = results(heard);
        (seen.len() == 1 && seen[0] == "hunter2 \"x\"")
            .then(|| Answer::call("note", json!({ "text": "hunter2 \"x\"" })))
    };
    stage.model.follow(Script::new().decide(use_it).otherwise(Answer::say("hunter2 \"x\" works")));
    let mut command = stage.command(&["--answer", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hunter2 \"x\"\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(stage.work().join("notes.txt")).unwrap(), "hunter2 \"x\"\n");
    let journal = std::fs::read_to_string(stage.state().join("journal.jsonl")).unwrap();
    assert!(!journal.contains("hunter2"), "{journal}");
    assert!(!stage.state().join("secrets").exists());
}

#[test]
fn an_answer_that_was_given_goes_on_another_is_refused_and_so_is_one_without_a_question() {
    let stage = Stage::new(script([ask("First?"), ask("Second?"), Answer::say("done")]));
    stage.run(&["--answer", "x"]).expect(2);
    stage.run(&["--message", "go"]).expect(101);
    let waiting = stage.run(&["--message", "go"]);
    waiting.expect(101);
    assert!(waiting.stderr.contains("First?"));
    assert!(stage.run(&["--answer", "one"]).expect(101).stderr.contains("Second?"));
    stage.run(&["--answer", "two"]).expect(0);
    assert_eq!(stage.run(&["--answer", "two"]).expect(0).stdout, "done\n");
    let refused = stage.run(&["--answer", "three"]);
    refused.expect(2);
    assert!(refused.stderr.contains("answered already"), "{}", refused.stderr);
    assert_eq!(results(&stage.model.heard().pop().unwrap()), ["one", "two"]);
}

#[test]
fn a_message_to_a_waiting_run_is_heard_after_the_answer() {
    let stage = Stage::new(script([ask("?"), Answer::say("done")]));
    stage.run(&["--message", "go"]).expect(101);
    stage.run(&["--message", "and be quick"]).expect(101);
    stage.run(&["--message", "and be quick"]).expect(101);
    stage.run(&["--answer", "yes"]).expect(0);
    assert_eq!(stage.model.heard().pop().unwrap().user_texts(), ["go", "and be quick"]);
    stage.assert_in_order();
}

#[test]
fn nothing_to_do_is_a_mistake_of_whoever_typed() {
    let stage = Stage::new(Script::new());
    stage.run(&[]).expect(2);
    stage.run(&["--message", " "]).expect(2);
    assert_eq!(stage.model.heard().len(), 0);
}
