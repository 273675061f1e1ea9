//! Conversations with runs: chats, messages, interrupts, and reattaching.

use crate::{house::CommandTestHome, person::TerminalUser};

#[test]
fn a_chat_on_a_terminal_continues_until_the_person_leaves() {
    let home = CommandTestHome::new();
    let mut user = TerminalUser::start(&home, &["run", "parrot", "--mode", "chat", "say one"]);
    user.wait_for_text("one");
    user.answer_prompt("say two\r");
    user.wait_for_text("two\r\n> ");
    user.type_keys("say three \\\r");
    user.wait_for_text("… ");
    user.type_keys("say four\r");
    user.wait_for_text("three");
    user.wait_for_text("four\r\n> ");
    user.type_keys("\x04");
    user.wait_for_text("abide attach run_");
    assert_eq!(user.wait_for_exit(), Some(0));
    assert_eq!(home.json(&["show", "last"])["run"]["status"], "idle");
}

#[test]
fn a_chat_without_a_terminal_gives_its_answer_and_takes_messages_later() {
    let home = CommandTestHome::new();
    let first = home.abide(&["run", "parrot", "--mode", "chat", "say one"]);
    assert_eq!((first.code, first.out.as_str()), (0, "one\n"), "{}", first.err);
    assert!(first.err.contains("abide send run_"), "{}", first.err);
    let sent = home.json(&["send", "last", "say two"]);
    assert_eq!(sent["duplicate"], false);
    let mut user = TerminalUser::start(&home, &["attach", "last"]);
    user.wait_for_text("two");
    user.answer_prompt("say three\r");
    user.wait_for_text("three\r\n> ");
    user.type_keys("\x03");
    assert_eq!(user.wait_for_exit(), Some(130));
    assert_eq!(home.json(&["cancel", "last"])["accepted"], true);
    assert_eq!(home.json(&["cancel", "last"])["accepted"], false);
    let over = home.abide(&["send", "last", "say four"]);
    assert_eq!(over.code, 1, "{}", over.err);
}

#[test]
fn text_before_a_question_is_printed_once() {
    let home = CommandTestHome::new();
    let script = "say thinking\nask open_text Name?\nsay hello $reply";
    let mut user = TerminalUser::start(&home, &["run", "parrot", "--mode", "chat", script]);
    user.wait_for_text("Name?");
    user.answer_prompt("Ada\r");
    user.wait_for_text("hello Ada\r\n> ");
    user.type_keys("\x04");
    assert_eq!(user.wait_for_exit(), Some(0));
    assert_eq!(user.output.matches("thinking").count(), 1, "{:?}", user.output);
}

#[test]
fn a_detached_run_can_be_attached() {
    let home = CommandTestHome::new();
    let run = home.start_detached("progress busy\nask open_text Name?\nsay hello $reply");
    let mut user = TerminalUser::start(&home, &["attach", &run[run.len() - 6..]]);
    user.wait_for_text(&run);
    user.wait_for_text("Name?");
    user.answer_prompt("Ada\r");
    user.wait_for_text("hello Ada");
    assert_eq!(user.wait_for_exit(), Some(0));
    let again = home.abide(&["attach", &run]);
    assert_eq!((again.code, again.out.as_str()), (0, "hello Ada\n"), "{}", again.err);
}

#[test]
fn an_interrupted_run_waits_for_an_instruction() {
    let home = CommandTestHome::new();
    let mut run = home.spawn_watched(&["run", "parrot", "progress busy\nsleep 600\nsay never"]);
    run.wait_for_line("busy");
    assert_eq!(home.json(&["interrupt", "last"])["accepted"], true);
    assert_eq!(run.wait_for_exit(), Some(101), "{:?}", run.err);
    assert_eq!(home.json(&["interrupt", "last"])["accepted"], false);
    let canceled = home.abide(&["cancel", "last"]);
    assert_eq!((canceled.code, canceled.out.as_str()), (0, "canceled\n"));
    let shown = home.abide(&["attach", "last"]);
    assert_eq!(shown.code, 1);
    assert!(shown.err.contains("CANCELED_BY_USER"), "{}", shown.err);
}

#[test]
fn a_failed_run_says_why_and_ends_with_1() {
    let home = CommandTestHome::new();
    let failed = home.abide(&["run", "parrot", "fail no luck"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""), "{}", failed.err);
    assert!(failed.err.contains("no luck (ENGINE_FAILED)"), "{}", failed.err);
    assert!(failed.err.contains("abide show run_"), "{}", failed.err);
}
