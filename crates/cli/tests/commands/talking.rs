//! Conversations with runs: chats, messages, interrupts, and reattaching.

use crate::{house::CommandTestHome, person::TerminalUser};

#[test]
fn a_chat_on_a_terminal_goes_on_until_the_person_leaves() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", "--mode", "chat", "say one"]);
    person.sees("one");
    person.answers("say two\r");
    person.sees("two\r\n> ");
    person.types("say three \\\r");
    person.sees("… ");
    person.types("say four\r");
    person.sees("three");
    person.sees("four\r\n> ");
    person.types("\x04");
    person.sees("abide attach run_");
    assert_eq!(person.ends(), Some(0));
    assert_eq!(house.json(&["show", "last"])["run"]["status"], "idle");
}

#[test]
fn a_chat_without_a_terminal_gives_its_answer_and_takes_messages_later() {
    let house = CommandTestHome::new();
    let first = house.abide(&["run", "parrot", "--mode", "chat", "say one"]);
    assert_eq!((first.code, first.out.as_str()), (0, "one\n"), "{}", first.err);
    assert!(first.err.contains("abide send run_"), "{}", first.err);
    let sent = house.json(&["send", "last", "say two"]);
    assert_eq!(sent["duplicate"], false);
    let mut person = TerminalUser::runs(&house, &["attach", "last"]);
    person.sees("two");
    person.answers("say three\r");
    person.sees("three\r\n> ");
    person.types("\x03");
    assert_eq!(person.ends(), Some(130));
    assert_eq!(house.json(&["cancel", "last"])["accepted"], true);
    assert_eq!(house.json(&["cancel", "last"])["accepted"], false);
    let over = house.abide(&["send", "last", "say four"]);
    assert_eq!(over.code, 1, "{}", over.err);
}

#[test]
fn what_a_chat_says_before_it_asks_is_told_once() {
    let house = CommandTestHome::new();
    let script = "say thinking\nask open_text Name?\nsay hello $reply";
    let mut person = TerminalUser::runs(&house, &["run", "parrot", "--mode", "chat", script]);
    person.sees("Name?");
    person.answers("Ada\r");
    person.sees("hello Ada\r\n> ");
    person.types("\x04");
    assert_eq!(person.ends(), Some(0));
    assert_eq!(person.all.matches("thinking").count(), 1, "{:?}", person.all);
}

#[test]
fn a_detached_run_is_come_back_to() {
    let house = CommandTestHome::new();
    let run = house.detached("progress busy\nask open_text Name?\nsay hello $reply");
    let mut person = TerminalUser::runs(&house, &["attach", &run[run.len() - 6..]]);
    person.sees(&run);
    person.sees("Name?");
    person.answers("Ada\r");
    person.sees("hello Ada");
    assert_eq!(person.ends(), Some(0));
    let again = house.abide(&["attach", &run]);
    assert_eq!((again.code, again.out.as_str()), (0, "hello Ada\n"), "{}", again.err);
}

#[test]
fn an_interrupted_run_waits_for_somebody_to_say_what_next() {
    let house = CommandTestHome::new();
    let mut run = house.watch(&["run", "parrot", "progress busy\nsleep 600\nsay never"]);
    run.says("busy");
    assert_eq!(house.json(&["interrupt", "last"])["accepted"], true);
    assert_eq!(run.ends(), Some(101), "{:?}", run.err);
    assert_eq!(house.json(&["interrupt", "last"])["accepted"], false);
    let canceled = house.abide(&["cancel", "last"]);
    assert_eq!((canceled.code, canceled.out.as_str()), (0, "canceled\n"));
    let shown = house.abide(&["attach", "last"]);
    assert_eq!(shown.code, 1);
    assert!(shown.err.contains("CANCELED_BY_USER"), "{}", shown.err);
}

#[test]
fn a_failed_run_says_why_and_ends_with_1() {
    let house = CommandTestHome::new();
    let failed = house.abide(&["run", "parrot", "fail no luck"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""), "{}", failed.err);
    assert!(failed.err.contains("no luck (ENGINE_FAILED)"), "{}", failed.err);
    assert!(failed.err.contains("abide show run_"), "{}", failed.err);
}
