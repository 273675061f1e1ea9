//! Questions and answers, and the refusal of invalid answers.

use std::io::Write;
use std::process::Stdio;

use abide_testkit::{
    daemon::TestCommandOutput,
    model::{ModelScript, ScriptedAnswer},
};
use serde_json::json;

use super::harness::{AgentTestHome, results, script};

fn ask(question: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("ask_human", json!({ "question": question }))
}

#[test]
fn a_sensitive_answer_reaches_the_model_and_the_tool_and_never_the_journal() {
    let question = json!({ "question": "Password?", "sensitive": true });
    let home = AgentTestHome::new(script([ScriptedAnswer::call("ask_human", question)]));
    home.run(&["--message", "go"]).expect(101);
    let use_it = |request: &abide_testkit::model::ReceivedRequest| {
        let seen = results(request);
        (seen.len() == 1 && seen[0] == "hunter2 \"x\"")
            .then(|| ScriptedAnswer::call("note", json!({ "text": "hunter2 \"x\"" })))
    };
    home.model.set_script(
        ModelScript::new().decide(use_it).with_default(ScriptedAnswer::say("hunter2 \"x\" works")),
    );
    let mut command = home.command(&["--answer", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hunter2 \"x\"\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(home.workdir().join("notes.txt")).unwrap(), "hunter2 \"x\"\n");
    let journal = std::fs::read_to_string(home.state().join("journal.jsonl")).unwrap();
    assert!(!journal.contains("hunter2"), "{journal}");
    assert!(!home.state().join("secrets").exists());
}

#[test]
fn an_answer_that_was_given_continues_another_is_refused_and_so_is_one_without_a_question() {
    let home = AgentTestHome::new(script([ask("First?"), ask("Second?"), ScriptedAnswer::say("done")]));
    home.run(&["--answer", "x"]).expect(2);
    home.run(&["--message", "go"]).expect(101);
    let waiting = home.run(&["--message", "go"]);
    waiting.expect(101);
    assert!(waiting.stderr.contains("First?"));
    assert!(home.run(&["--answer", "one"]).expect(101).stderr.contains("Second?"));
    home.run(&["--answer", "two"]).expect(0);
    assert_eq!(home.run(&["--answer", "two"]).expect(0).stdout, "done\n");
    let refused = home.run(&["--answer", "three"]);
    refused.expect(2);
    assert!(refused.stderr.contains("answered already"), "{}", refused.stderr);
    assert_eq!(results(&home.model.requests().pop().unwrap()), ["one", "two"]);
}

#[test]
fn a_message_to_a_waiting_run_is_heard_after_the_answer() {
    let home = AgentTestHome::new(script([ask("?"), ScriptedAnswer::say("done")]));
    home.run(&["--message", "go"]).expect(101);
    home.run(&["--message", "and be quick"]).expect(101);
    home.run(&["--message", "and be quick"]).expect(101);
    home.run(&["--answer", "yes"]).expect(0);
    assert_eq!(home.model.requests().pop().unwrap().user_texts(), ["go", "and be quick"]);
    home.assert_message_order();
}

#[test]
fn a_command_without_message_or_answer_is_a_usage_error() {
    let home = AgentTestHome::new(ModelScript::new());
    home.run(&[]).expect(2);
    home.run(&["--message", " "]).expect(2);
    assert_eq!(home.model.requests().len(), 0);
}

/// Answers over standard input, as a program does with sensitive data.
fn answer_on_stdin(home: &AgentTestHome, text: &str) -> TestCommandOutput {
    let mut command = home.command(&["--answer", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    TestCommandOutput {
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
        let home = AgentTestHome::new(script([sensitive("First?"), sensitive("Second?")]));
        home.run(&["--message", "go"]).expect(101);
        answer_on_stdin(&home, first).expect(101);
        let both = format!("{first} and {second}, as a secret in JSON [secret act_1] {first}{second}");
        let use_them = {
            let (first, second, both) = (first.to_owned(), second.to_owned(), both.clone());
            move |request: &abide_testkit::model::ReceivedRequest| {
                let seen = results(request);
                let is_exact = seen.len() == 2 && seen[0] == first && seen[1] == second;
                is_exact.then(|| ScriptedAnswer::call("note", json!({ "text": both })))
            }
        };
        home.model.set_script(
            ModelScript::new().decide(use_them).with_default(ScriptedAnswer::say(format!("done: {both}"))),
        );
        let done = answer_on_stdin(&home, second);
        done.expect(0);
        let last = home.events("THOUGHT").pop().unwrap()["text"].clone();
        assert_eq!(home.events("RUN_END").pop().unwrap()["answer"], last);
        assert_eq!(done.stdout, format!("{}\n", last.as_str().unwrap()));
        let notes = std::fs::read_to_string(home.workdir().join("notes.txt"));
        assert_eq!(notes.unwrap_or_default(), format!("{both}\n"), "{first:?} {second:?}");
        let seen = results(&home.model.requests().pop().unwrap());
        assert!(seen[2].starts_with(&format!("noted {both}\n")), "{}", seen[2]);
        let journal = std::fs::read_to_string(home.state().join("journal.jsonl")).unwrap();
        let answers = home.events("ACTION_RESULT");
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
    let home = AgentTestHome::new(script([ask.clone(), ask.clone(), ask.clone(), ask.clone(), ask]));
    let waiting = home.run(&["--message", "go"]);
    assert!(waiting.expect(101).stderr.contains("2) coffee"), "{}", waiting.stderr);
    home.run(&["--answer", "2"]).expect(101);
    home.run(&["--answer", "4"]).expect(101);
    // An option with this text takes precedence over the option with this number.
    home.run(&["--answer", "1"]).expect(101);
    home.run(&["--answer", "=2"]).expect(101);
    home.model.set_script(ModelScript::new().with_default(ScriptedAnswer::say("done")));
    home.run(&["--answer", "2"]).expect(0);
    // The same command again returns the same result.
    assert_eq!(home.run(&["--answer", "2"]).expect(0).stdout, "done\n");
    assert_eq!(home.run(&["--answer", "coffee"]).expect(0).stdout, "done\n");
    home.run(&["--answer", "1"]).expect(2);
    assert_eq!(results(&home.model.requests().pop().unwrap()), ["coffee", "4", "1", "2", "coffee"]);
}
