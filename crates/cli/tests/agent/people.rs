//! Questions and answers, and the refusal of invalid answers.

use std::io::Write;
use std::process::Stdio;

use abide_testkit::model::{ModelScript, ScriptedAnswer};
use serde_json::json;

use super::stage::{AgentCommandOutput, AgentTestHome, results, script};

fn ask(question: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("ask_human", json!({ "question": question }))
}

#[test]
fn a_sensitive_answer_reaches_the_model_and_the_tool_and_never_the_journal() {
    let question = json!({ "question": "Password?", "sensitive": true });
    let stage = AgentTestHome::new(script([ScriptedAnswer::call("ask_human", question)]));
    stage.run(&["--message", "go"]).expect(101);
    let use_it = |heard: &abide_testkit::model::ReceivedRequest| {
        let seen = results(heard);
        (seen.len() == 1 && seen[0] == "hunter2 \"x\"")
            .then(|| ScriptedAnswer::call("note", json!({ "text": "hunter2 \"x\"" })))
    };
    stage
        .model
        .follow(ModelScript::new().decide(use_it).otherwise(ScriptedAnswer::say("hunter2 \"x\" works")));
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
    let stage = AgentTestHome::new(script([ask("First?"), ask("Second?"), ScriptedAnswer::say("done")]));
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
    let stage = AgentTestHome::new(script([ask("?"), ScriptedAnswer::say("done")]));
    stage.run(&["--message", "go"]).expect(101);
    stage.run(&["--message", "and be quick"]).expect(101);
    stage.run(&["--message", "and be quick"]).expect(101);
    stage.run(&["--answer", "yes"]).expect(0);
    assert_eq!(stage.model.heard().pop().unwrap().user_texts(), ["go", "and be quick"]);
    stage.assert_in_order();
}

#[test]
fn nothing_to_do_is_a_mistake_of_whoever_typed() {
    let stage = AgentTestHome::new(ModelScript::new());
    stage.run(&[]).expect(2);
    stage.run(&["--message", " "]).expect(2);
    assert_eq!(stage.model.heard().len(), 0);
}

/// Answers over standard input, as a program does with sensitive data.
fn answer(stage: &AgentTestHome, text: &str) -> AgentCommandOutput {
    let mut command = stage.command(&["--answer", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    AgentCommandOutput {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

#[test]
fn sensitive_answers_reach_the_model_and_tools_exactly_whatever_they_are() {
    let sensitive = |question: &str| {
        ScriptedAnswer::call("ask_human", json!({ "question": question, "sensitive": true }))
    };
    for (first, second) in [
        ("secret", "hunter2"),
        ("hunter2", "secret"),
        ("secret", "sec"),
        ("in JSON", "JSON"),
        ("t", "xt"),
        ("⟦x⟧", "⟦"),
        ("a\"b\\q", "b\\"),
        ("12", "2"),
    ] {
        let stage = AgentTestHome::new(script([sensitive("First?"), sensitive("Second?")]));
        stage.run(&["--message", "go"]).expect(101);
        answer(&stage, first).expect(101);
        let both = format!("{first} and {second}, as a secret in JSON [secret act_1] {first}{second}");
        let use_them = {
            let (first, second, both) = (first.to_owned(), second.to_owned(), both.clone());
            move |heard: &abide_testkit::model::ReceivedRequest| {
                let seen = results(heard);
                let is_exact = seen.len() == 2 && seen[0] == first && seen[1] == second;
                is_exact.then(|| ScriptedAnswer::call("note", json!({ "text": both })))
            }
        };
        stage.model.follow(
            ModelScript::new().decide(use_them).otherwise(ScriptedAnswer::say(format!("done: {both}"))),
        );
        let done = answer(&stage, second);
        done.expect(0);
        let last = stage.events("THOUGHT").pop().unwrap()["text"].clone();
        assert_eq!(stage.events("RUN_END").pop().unwrap()["answer"], last);
        assert_eq!(done.stdout, format!("{}\n", last.as_str().unwrap()));
        let noted = std::fs::read_to_string(stage.work().join("notes.txt"));
        assert_eq!(noted.unwrap_or_default(), format!("{both}\n"), "{first:?} {second:?}");
        let seen = results(&stage.model.heard().pop().unwrap());
        assert!(seen[2].starts_with(&format!("noted {both}\n")), "{}", seen[2]);
        let journal = std::fs::read_to_string(stage.state().join("journal.jsonl")).unwrap();
        let answers = stage.events("ACTION_RESULT");
        for (result, text) in answers.iter().zip([first, second]) {
            let recorded = result["observation_content"].as_str().unwrap();
            assert!(recorded.starts_with('⟦') && recorded.ends_with('⟧') && recorded != text, "{recorded}");
        }
        for text in [first, second].iter().filter(|text| text.len() > 5 && **text != "in JSON") {
            assert!(!journal.contains(*text), "{text}: {journal}");
        }
    }
}

#[test]
fn the_number_of_an_option_stands_for_its_text() {
    let ask =
        ScriptedAnswer::call("ask_human", json!({ "question": "Which?", "options": ["tea", "coffee", "1"] }));
    let stage = AgentTestHome::new(script([ask.clone(), ask.clone(), ask.clone(), ask.clone(), ask]));
    let waiting = stage.run(&["--message", "go"]);
    assert!(waiting.expect(101).stderr.contains("2) coffee"), "{}", waiting.stderr);
    stage.run(&["--answer", "2"]).expect(101);
    stage.run(&["--answer", "4"]).expect(101);
    // An option with this text takes precedence over the option with this number.
    stage.run(&["--answer", "1"]).expect(101);
    stage.run(&["--answer", "=2"]).expect(101);
    stage.model.follow(ModelScript::new().otherwise(ScriptedAnswer::say("done")));
    stage.run(&["--answer", "2"]).expect(0);
    // The same command again returns the same result.
    assert_eq!(stage.run(&["--answer", "2"]).expect(0).stdout, "done\n");
    assert_eq!(stage.run(&["--answer", "coffee"]).expect(0).stdout, "done\n");
    stage.run(&["--answer", "1"]).expect(2);
    assert_eq!(results(&stage.model.heard().pop().unwrap()), ["coffee", "4", "1", "2", "coffee"]);
}
