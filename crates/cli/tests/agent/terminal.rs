//! The agent on a terminal, where questions are asked directly.

use std::io::{Read, Write};

use abide_testkit::model::ScriptedAnswer;
use pty_process::blocking::{Command, Pty};
use serde_json::json;

use super::{
    clones::cloned_home,
    stage::{AgentTestHome, results, script},
};

/// Reads until `wanted` appears.
fn wait_for_text(terminal: &mut Pty, seen: &mut String, wanted: &str) {
    let mut buffer = [0_u8; 4096];
    while !seen.contains(wanted) {
        match terminal.read(&mut buffer) {
            Ok(count @ 1..) => seen.push_str(&String::from_utf8_lossy(&buffer[..count])),
            // Linux reports EIO instead of an end of file after the program has exited.
            Ok(0) | Err(_) => panic!("the terminal fell silent before {wanted:?}: {seen:?}"),
        }
    }
}

/// Runs an agent with one question on a terminal; returns the screen output and the exit code.
fn run_with_keys(home: &AgentTestHome, keys: &str) -> (String, Option<i32>) {
    let (mut terminal, inside) = pty_process::blocking::open().unwrap();
    let plain = home.command(&["--message", "go"]);
    let mut command = Command::new(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        command = match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.current_dir(home.workdir()).spawn(inside).unwrap();
    let mut seen = String::new();
    wait_for_text(&mut terminal, &mut seen, "answer: ");
    terminal.write_all(keys.as_bytes()).unwrap();
    let mut buffer = [0_u8; 4096];
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    (seen, child.wait().unwrap().code())
}

fn home_with_question(sensitive: bool) -> AgentTestHome {
    let question = json!({ "question": "Which?", "options": ["tea", "coffee"], "sensitive": sensitive });
    AgentTestHome::new(script([ScriptedAnswer::call("ask_human", question), ScriptedAnswer::say("done")]))
}

#[test]
fn a_question_is_asked_at_the_terminal_and_answered_by_number() {
    let home = home_with_question(false);
    let (seen, code) = run_with_keys(&home, "2\n");
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("Which?") && seen.contains("2) coffee"), "{seen}");
    assert_eq!(results(&home.model.requests().pop().unwrap()), ["coffee"]);
}

#[test]
fn a_sensitive_answer_is_not_shown_while_it_is_typed() {
    let home = home_with_question(true);
    let (seen, code) = run_with_keys(&home, "hunter2\n");
    assert_eq!(code, Some(0), "{seen}");
    assert!(!seen.contains("hunter2"), "{seen}");
    assert_eq!(results(&home.model.requests().pop().unwrap()), ["hunter2"]);
}

#[test]
fn a_person_who_leaves_leaves_the_question_open() {
    let home = home_with_question(false);
    // Ctrl-D: end of input.
    assert_eq!(run_with_keys(&home, "\u{4}").1, Some(101));
    // Ctrl-C: interrupt.
    assert_eq!(run_with_keys(&home, "\u{3}").1, Some(130));
    home.run(&["--answer", "tea"]).expect(0);
}

#[test]
fn a_person_at_the_terminal_decides_about_a_foreign_journal() {
    let home = cloned_home([ScriptedAnswer::say("done")]);
    let journal = home.journal();
    let (seen, code) = run_with_keys(&home, "no\n");
    assert_eq!(code, Some(2), "{seen}");
    assert!(seen.contains("journal.jsonl, line 1: ") && seen.contains("Adopt it?"), "{seen}");
    assert_eq!(home.journal(), journal);
    let (seen, code) = run_with_keys(&home, "yes\n");
    assert_eq!(code, Some(0), "{seen}");
    assert!(!home.workdir().join("notes.txt").exists());
}
