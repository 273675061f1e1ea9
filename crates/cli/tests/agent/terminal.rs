//! The agent on a terminal, where questions are asked directly.

use abide_testkit::{daemon::TerminalUser, model::ScriptedAnswer};
use serde_json::json;

use super::{
    clones::cloned_home,
    harness::{AgentTestHome, results, script},
};

/// Runs an agent with one question on a terminal; returns the screen output and the exit code.
fn run_with_keys(home: &AgentTestHome, keys: &str) -> (String, Option<i32>) {
    let mut command = home.command(&["--message", "go"]);
    let mut terminal = TerminalUser::start(command.current_dir(home.workdir()), 40, 160);
    terminal.wait_for_text("answer: ");
    terminal.type_keys(keys);
    let code = terminal.wait_for_exit();
    (std::mem::take(&mut terminal.output), code)
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
