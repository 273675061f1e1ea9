//! SIGKILL before, during and after each write to the journal: the repeated command finishes correctly.
//!
//! The model of this test depends only on the request. If an outcome is reported as unknown, it checks before it
//! repeats the call. Therefore each line appears exactly once in the file at the end, and each execution by Abide has a
//! request.

use std::os::unix::process::ExitStatusExt;

use abide_testkit::{
    daemon::TestCommandOutput,
    model::{ModelScript, ReceivedRequest, ScriptedAnswer},
};
use serde_json::json;

use super::{
    harness::{AgentTestHome, results},
    recovery::processes_in,
};

const UNKNOWN: &str = "The outcome of this call is unknown";

fn note(text: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("note", json!({ "text": text }))
}

fn shell(command: &str) -> ScriptedAnswer {
    ScriptedAnswer::call("shell", json!({ "command": command }))
}

/// Returns the next answer of the model.
fn next(request: &ReceivedRequest) -> ScriptedAnswer {
    let seen = results(request);
    let last = seen.last().map_or("", String::as_str);
    let is_noted = |text: &str| {
        seen.iter()
            .any(|seen| seen.contains(&format!("noted {text}")) || seen.lines().any(|line| line == text))
    };
    let saw = |text: &str| seen.iter().any(|seen| seen.contains(text));
    if last.contains(UNKNOWN) && !(is_noted("one") && is_noted("two") && is_noted("three")) {
        return ScriptedAnswer::call("look", json!({}));
    }
    if !is_noted("one") {
        return note("one");
    }
    if !is_noted("two") && !saw("n was set") {
        return shell("n=5; echo n was set").then_call("note", json!({ "text": "two" }));
    }
    if !is_noted("two") {
        return note("two");
    }
    if !saw("blue") {
        return ScriptedAnswer::call("ask_human", json!({ "question": "Which colour?" }));
    }
    if !saw("n is 5") {
        let is_unset = last.contains("n is unset");
        return if is_unset { shell("n=5; echo n was set") } else { shell("echo n is ${n:-unset}") };
    }
    if !is_noted("three") {
        return note("three");
    }
    ScriptedAnswer::say("all done")
}

fn new_home() -> AgentTestHome {
    AgentTestHome::new(ModelScript::new().decide(|request| Some(next(request))))
}

const ASKED: [&str; 2] = ["--message", "go"];
const ANSWERED: [&str; 2] = ["--answer", "blue"];

/// Returns the failpoints that an undisturbed run reaches, for each of the two commands.
fn places() -> [Vec<String>; 2] {
    let home = new_home();
    let log = home.state().join("failpoints");
    [(&ASKED, 101), (&ANSWERED, 0)].map(|(words, code)| {
        let mut command = home.command(words);
        command.env("ABIDE_TEST_FAILPOINT", "none");
        TestCommandOutput::of(command).expect(code);
        let reached = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        reached.lines().map(str::to_owned).collect()
    })
}

fn die_at(home: &AgentTestHome, words: &[&str], place: &str) {
    let mut command = home.command(words);
    let status = command.env("ABIDE_TEST_FAILPOINT", place).output().unwrap().status;
    assert_eq!(status.signal(), Some(9), "{words:?} did not die at {place}");
}

#[test]
fn after_a_kill_at_any_write_the_repeated_command_finishes_correctly() {
    let [before_question, after_answer] = places();
    assert!(before_question.len() >= 15 && after_answer.len() >= 15, "{before_question:?} {after_answer:?}");
    println!("{} places before the question, {} after the answer", before_question.len(), after_answer.len());
    for place in &before_question {
        let home = new_home();
        die_at(&home, &ASKED, place);
        check(&home, &format!("asked, {place}"));
    }
    for place in &after_answer {
        let home = new_home();
        home.run(&ASKED).expect(101);
        die_at(&home, &ANSWERED, place);
        check_answered(&home, &format!("answered, {place}"));
    }
}

#[test]
fn repeated_kills_do_not_prevent_the_end() {
    let home = new_home();
    // Each process gets one write further than the one before, until one finishes.
    let lives = |words: &[&str], place: &str| {
        let is_killed = |life: &u32| {
            let mut command = home.command(words);
            let status =
                command.env("ABIDE_TEST_FAILPOINT", format!("{place}:{life}")).output().unwrap().status;
            status.signal() == Some(9)
        };
        (1..100).take_while(is_killed).count()
    };
    assert!(lives(&ASKED, "mid_write") >= 3);
    assert!(lives(&ANSWERED, "mid_write") >= 3);
    check_answered(&home, "again and again");
}

fn check(home: &AgentTestHome, place: &str) {
    let waiting = home.run(&ASKED);
    assert_eq!(waiting.code, Some(101), "{place}: {}{}", waiting.stdout, waiting.stderr);
    check_answered(home, place);
}

fn check_answered(home: &AgentTestHome, place: &str) {
    let done = home.run(&ANSWERED);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "all done\n"), "{place}: {}", done.stderr);
    assert_eq!(home.model.faults(), [""; 0], "{place}");
    let notes = std::fs::read_to_string(home.workdir().join("notes.txt")).unwrap();
    assert_eq!(notes, "one\ntwo\nthree\n", "{place}");
    let requests = home.events("ACTION_REQUEST");
    let results = home.events("ACTION_RESULT");
    assert_eq!(requests.len(), results.len(), "{place}");
    for text in ["one", "two", "three"] {
        let same_text: Vec<_> = requests.iter().filter(|r| r["tool_args"]["text"] == text).collect();
        let known_results = same_text.iter().filter(|request| {
            let result = results.iter().find(|result| result["action_id"] == request["action_id"]).unwrap();
            result["status"] != "unknown"
        });
        assert!(known_results.count() <= 1, "{place}: {text} was done twice, and both times it was known");
    }
    assert_eq!(home.events("RUN_START").len(), 1, "{place}");
    assert_eq!(home.events("USER_MESSAGE").len(), 1, "{place}");
    assert_eq!(home.events("RUN_END").len(), 1, "{place}");
    assert_eq!(home.sessions(), [], "{place}");
    assert_eq!(processes_in(&home.workdir()), [0_u32; 0], "{place}");
    assert!(!home.state().join("interaction.json").exists(), "{place}");
}
