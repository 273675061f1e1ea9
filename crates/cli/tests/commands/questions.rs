//! Questions: asked on a terminal, or left open to be answered elsewhere.

use serde_json::Value;

use crate::{house::CommandTestHome, person::TerminalUser};

const TEA: &str = "ask choose_one Tea or coffee? | tea | coffee (safe)\nsay you said $reply";

#[test]
fn a_question_is_asked_on_the_terminal_and_answered_by_number() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", TEA]);
    person.sees("Tea or coffee?");
    person.sees("1) tea");
    person.sees("2) coffee");
    person.answers("1\r");
    person.sees("you said tea");
    assert_eq!(person.ends(), Some(0));
    let shown = house.json(&["show", "last"]);
    assert_eq!(shown["interactions"][0]["reply"], "tea");
    assert_eq!(shown["interactions"][0]["resolution_mode"], "user_reply");
}

#[test]
fn a_question_is_answered_by_any_text_and_by_a_number_that_is_no_option_not_at_all() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", TEA]);
    person.answers("7\r");
    person.sees("there is no option 7");
    person.answers("neither, thank you\r");
    person.sees("you said neither, thank you");
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn an_empty_line_takes_the_default_and_is_no_answer_where_there_is_none() {
    let house = CommandTestHome::new();
    let script = "ask open_text Name?\nask choose_one Tea or coffee? | tea | coffee (safe)\nsay $reply";
    let mut person = TerminalUser::runs(&house, &["run", "parrot", script]);
    person.sees("Name?");
    person.answers("\r");
    person.sees("nothing was typed");
    person.answers("Ada\r");
    person.sees("(safe, default)");
    person.answers("\r");
    person.sees("coffee");
    assert_eq!(person.ends(), Some(0));
    let shown = house.json(&["show", "last"]);
    assert_eq!(
        (&shown["interactions"][0]["reply"], &shown["interactions"][1]["reply"]),
        (&"Ada".into(), &"coffee".into())
    );
}

#[test]
fn an_answer_has_several_lines_whether_they_are_typed_or_pasted() {
    let house = CommandTestHome::new();
    let script = "ask open_text First?\nask open_text Second?\nsay end";
    let mut person = TerminalUser::runs(&house, &["run", "parrot", script]);
    person.sees("First?");
    person.answers("one\\\r");
    person.sees("… ");
    person.types("two\r");
    person.sees("Second?");
    person.answers("three\rfour\r");
    person.sees("end");
    assert_eq!(person.ends(), Some(0));
    let shown = house.json(&["show", "last"]);
    let replies: Vec<&Value> =
        shown["interactions"].as_array().unwrap().iter().map(|question| &question["reply"]).collect();
    assert_eq!(replies, ["one\ntwo", "three\nfour"]);
}

#[test]
fn what_was_typed_before_the_question_was_there_is_not_its_answer() {
    let house = CommandTestHome::new();
    let script = "progress busy\nsleep 1\nask open_text Name?\nsay $reply";
    let mut person = TerminalUser::runs(&house, &["run", "parrot", script]);
    person.sees("busy");
    person.types("too early\r");
    person.sees("Name?");
    person.answers("Ada\r");
    assert_eq!(person.ends(), Some(0));
    assert_eq!(house.json(&["show", "last"])["interactions"][0]["reply"], "Ada");
}

#[test]
fn a_question_that_is_answered_elsewhere_goes_away() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", TEA]);
    person.sees("> ");
    person.types("cof");
    let replied = house.abide(&["reply", "last", "1"]);
    assert_eq!((replied.code, replied.out.as_str()), (0, "accepted\n"), "{}", replied.err);
    person.sees("answered by ada: tea");
    person.sees("no longer open");
    person.sees("you said tea");
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn ctrl_c_leaves_the_run_to_itself_and_says_how_to_come_back() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", TEA]);
    person.sees("> ");
    person.types("\x03");
    person.sees("abide attach run_");
    assert_eq!(person.ends(), Some(130));
    let mut again = TerminalUser::runs(&house, &["attach", "last"]);
    again.sees("Tea or coffee?");
    again.answers("tea\r");
    again.sees("you said tea");
    assert_eq!(again.ends(), Some(0));
}

#[test]
fn ctrl_d_leaves_the_question_open() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", TEA]);
    person.answers("\x04");
    person.sees("abide reply int_");
    assert_eq!(person.ends(), Some(101));
    assert_eq!(house.json(&["inbox"])[0]["prompt"], "Tea or coffee?");
}

#[test]
fn without_a_terminal_a_run_that_asks_ends_the_command_with_101_and_a_reply_goes_on() {
    let house = CommandTestHome::new();
    let asked = house.abide(&["run", "parrot", TEA]);
    assert_eq!((asked.code, asked.out.as_str()), (101, ""), "{}", asked.err);
    for said in ["? Tea or coffee?", "  1) tea", "  2) coffee", "answer with: abide reply int_"] {
        assert!(asked.err.contains(said), "{said}: {}", asked.err);
    }
    let inbox = house.abide(&["inbox"]);
    assert!(inbox.out.contains("Tea or coffee?  1) tea  2) coffee"), "{}", inbox.out);
    let id = house.json(&["inbox"])[0]["interaction_id"].as_str().unwrap().to_owned();
    let replied = house.json(&["reply", &id, "2"]);
    assert_eq!(replied["resolution"], "accepted");
    let followed = house.abide(&["logs", "last", "--follow"]);
    assert_eq!(followed.code, 0);
    assert!(followed.out.contains("answered by ada: coffee"), "{}", followed.out);
    let shown = house.abide(&["show", "last"]).out;
    for told in [
        "succeeded",
        "turn 1  completed",
        "attempt 1",
        "exit code 0",
        "answered by ada at",
        "you said coffee",
    ] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
}

#[test]
fn a_gate_inside_a_turn_is_asked_too() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", "gate May I?\nsay it said $reply"]);
    person.sees("May I?");
    person.answers("yes\r");
    person.sees("it said ");
    assert_eq!(person.ends(), Some(0));
}
