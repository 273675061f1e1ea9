//! Questions: asked on a terminal, or left open to be answered elsewhere.

use serde_json::Value;

use crate::harness::{CommandTestHome, on_terminal};

const TEA: &str = "ask choose_one Tea or coffee? | tea | coffee (safe)\nsay you said $reply";

#[test]
fn a_question_is_asked_on_the_terminal_and_answered_by_number() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", TEA]);
    user.wait_for_text("Tea or coffee?");
    user.wait_for_text("1) tea");
    user.wait_for_text("2) coffee");
    user.answer_prompt("1\r");
    user.wait_for_text("you said tea");
    assert_eq!(user.wait_for_exit(), Some(0));
    let shown = home.run_json(&["show", "last"]);
    assert_eq!(shown["interactions"][0]["reply"], "tea");
    assert_eq!(shown["interactions"][0]["resolution_mode"], "user_reply");
}

#[test]
fn a_question_is_answered_by_any_text_and_by_a_number_that_is_no_option_not_at_all() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", TEA]);
    user.answer_prompt("7\r");
    user.wait_for_text("there is no option 7");
    user.answer_prompt("neither, thank you\r");
    user.wait_for_text("you said neither, thank you");
    assert_eq!(user.wait_for_exit(), Some(0));
}

#[test]
fn an_empty_line_takes_the_default_and_is_no_answer_where_there_is_none() {
    let home = CommandTestHome::new();
    let script = "ask open_text Name?\nask choose_one Tea or coffee? | tea | coffee (safe)\nsay $reply";
    let mut user = on_terminal(&home, &["run", "parrot", script]);
    user.wait_for_text("Name?");
    user.answer_prompt("\r");
    user.wait_for_text("nothing was typed");
    user.answer_prompt("Ada\r");
    user.wait_for_text("(safe, default)");
    user.answer_prompt("\r");
    user.wait_for_text("coffee");
    assert_eq!(user.wait_for_exit(), Some(0));
    let shown = home.run_json(&["show", "last"]);
    assert_eq!(
        (&shown["interactions"][0]["reply"], &shown["interactions"][1]["reply"]),
        (&"Ada".into(), &"coffee".into())
    );
}

#[test]
fn an_answer_has_several_lines_whether_they_are_typed_or_pasted() {
    let home = CommandTestHome::new();
    let script = "ask open_text First?\nask open_text Second?\nsay end";
    let mut user = on_terminal(&home, &["run", "parrot", script]);
    user.wait_for_text("First?");
    user.answer_prompt("one\\\r");
    user.wait_for_text("… ");
    user.type_keys("two\r");
    user.wait_for_text("Second?");
    user.answer_prompt("three\rfour\r");
    user.wait_for_text("end");
    assert_eq!(user.wait_for_exit(), Some(0));
    let shown = home.run_json(&["show", "last"]);
    let replies: Vec<&Value> =
        shown["interactions"].as_array().unwrap().iter().map(|question| &question["reply"]).collect();
    assert_eq!(replies, ["one\ntwo", "three\nfour"]);
}

#[test]
fn input_typed_before_the_question_is_not_its_answer() {
    let home = CommandTestHome::new();
    let script = "progress busy\nsleep 1\nask open_text Name?\nsay $reply";
    let mut user = on_terminal(&home, &["run", "parrot", script]);
    user.wait_for_text("busy");
    user.type_keys("too early\r");
    user.wait_for_text("Name?");
    user.answer_prompt("Ada\r");
    assert_eq!(user.wait_for_exit(), Some(0));
    assert_eq!(home.run_json(&["show", "last"])["interactions"][0]["reply"], "Ada");
}

#[test]
fn a_question_that_is_answered_elsewhere_goes_away() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", TEA]);
    user.wait_for_text("> ");
    user.type_keys("cof");
    let replied = home.run(&["reply", "last", "1"]);
    assert_eq!((replied.code, replied.stdout.as_str()), (Some(0), "accepted\n"), "{}", replied.stderr);
    user.wait_for_text("answered by ada: tea");
    user.wait_for_text("no longer open");
    user.wait_for_text("you said tea");
    assert_eq!(user.wait_for_exit(), Some(0));
}

#[test]
fn ctrl_c_leaves_the_run_to_itself_and_says_how_to_come_back() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", TEA]);
    user.wait_for_text("> ");
    user.type_keys("\x03");
    user.wait_for_text("abide attach run_");
    assert_eq!(user.wait_for_exit(), Some(130));
    let mut again = on_terminal(&home, &["attach", "last"]);
    again.wait_for_text("Tea or coffee?");
    again.answer_prompt("tea\r");
    again.wait_for_text("you said tea");
    assert_eq!(again.wait_for_exit(), Some(0));
}

#[test]
fn ctrl_d_leaves_the_question_open() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", TEA]);
    user.answer_prompt("\x04");
    user.wait_for_text("abide reply int_");
    assert_eq!(user.wait_for_exit(), Some(101));
    assert_eq!(home.run_json(&["inbox"])[0]["prompt"], "Tea or coffee?");
}

#[test]
fn without_a_terminal_a_run_that_asks_ends_the_command_with_101_and_a_reply_continues() {
    let home = CommandTestHome::new();
    let output = home.run(&["run", "parrot", TEA]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(101), ""), "{}", output.stderr);
    for line in ["? Tea or coffee?", "  1) tea", "  2) coffee", "answer with: abide reply int_"] {
        assert!(output.stderr.contains(line), "{line}: {}", output.stderr);
    }
    let inbox = home.run(&["inbox"]);
    assert!(inbox.stdout.starts_with("INTERACTION  "), "{}", inbox.stdout);
    assert!(inbox.stdout.contains("Tea or coffee?  1) tea  2) coffee"), "{}", inbox.stdout);
    let id = home.run_json(&["inbox"])[0]["interaction_id"].as_str().unwrap().to_owned();
    let replied = home.run_json(&["reply", &id, "2"]);
    assert_eq!(replied["resolution"], "accepted");
    let followed = home.run(&["logs", "last", "--follow"]);
    assert_eq!(followed.code, Some(0));
    assert!(followed.stdout.contains("answered by ada: coffee"), "{}", followed.stdout);
    let shown = home.run(&["show", "last"]).stdout;
    for fact in [
        "succeeded",
        "wait mode",
        "turn 1  completed",
        "trigger",
        "prompt",
        "attempt 1",
        "exit code 0",
        "answered by ada at",
        "you said coffee",
    ] {
        assert!(shown.contains(fact), "{fact}: {shown}");
    }
}

#[test]
fn a_gate_inside_a_turn_is_asked_too() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", "gate May I?\nsay it said $reply"]);
    user.wait_for_text("May I?");
    user.answer_prompt("yes\r");
    user.wait_for_text("it said ");
    assert_eq!(user.wait_for_exit(), Some(0));
}
