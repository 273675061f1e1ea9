//! Conversations with runs: chats, messages, interrupts, and reattaching.

use crate::harness::{CommandTestHome, on_terminal};

#[test]
fn a_chat_on_a_terminal_continues_until_the_person_leaves() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", "--mode", "chat", "say one"]);
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
    assert_eq!(home.run_json(&["show", "last"])["run"]["status"], "idle");
}

#[test]
fn a_chat_without_a_terminal_gives_its_answer_and_takes_messages_later() {
    let home = CommandTestHome::new();
    let first = home.run(&["run", "parrot", "--mode", "chat", "say one"]);
    assert_eq!((first.code, first.stdout.as_str()), (Some(0), "one\n"), "{}", first.stderr);
    assert!(first.stderr.contains("abide send run_"), "{}", first.stderr);
    let sent = home.run_json(&["send", "last", "say two"]);
    assert_eq!(sent["duplicate"], false);
    let mut user = on_terminal(&home, &["attach", "last"]);
    user.wait_for_text("two");
    user.answer_prompt("say three\r");
    user.wait_for_text("three\r\n> ");
    user.type_keys("\x03");
    assert_eq!(user.wait_for_exit(), Some(130));
    assert_eq!(home.run_json(&["cancel", "last"])["accepted"], true);
    assert_eq!(home.run_json(&["cancel", "last"])["accepted"], false);
    let over = home.run(&["send", "last", "say four"]);
    assert_eq!(over.code, Some(1), "{}", over.stderr);
}

#[test]
fn text_before_a_question_is_printed_once() {
    let home = CommandTestHome::new();
    let script = "say thinking\nask open_text Name?\nsay hello $reply";
    let mut user = on_terminal(&home, &["run", "parrot", "--mode", "chat", script]);
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
    let mut user = on_terminal(&home, &["attach", &run[run.len() - 6..]]);
    user.wait_for_text(&run);
    user.wait_for_text("Name?");
    user.answer_prompt("Ada\r");
    user.wait_for_text("hello Ada");
    assert_eq!(user.wait_for_exit(), Some(0));
    let again = home.run(&["attach", &run]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "hello Ada\n"), "{}", again.stderr);
}

#[test]
fn an_interrupted_run_waits_for_an_instruction() {
    let home = CommandTestHome::new();
    let mut run = home.spawn_watched(&["run", "parrot", "progress busy\nsleep 600\nsay never"]);
    run.wait_for_line("busy");
    assert_eq!(home.run_json(&["interrupt", "last"])["accepted"], true);
    assert_eq!(run.wait_for_exit(), Some(101), "{:?}", run.err);
    assert_eq!(home.run_json(&["interrupt", "last"])["accepted"], false);
    let canceled = home.run(&["cancel", "last"]);
    assert_eq!((canceled.code, canceled.stdout.as_str()), (Some(0), "canceled\n"));
    let shown = home.run(&["attach", "last"]);
    assert_eq!(shown.code, Some(1));
    assert!(shown.stderr.contains("CANCELED_BY_USER"), "{}", shown.stderr);
}

#[test]
fn a_failed_run_says_why_and_ends_with_1() {
    let home = CommandTestHome::new();
    let failed = home.run(&["run", "parrot", "fail no luck"]);
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""), "{}", failed.stderr);
    assert!(failed.stderr.contains("no luck (ENGINE_FAILED)"), "{}", failed.stderr);
    assert!(failed.stderr.contains("abide show run_"), "{}", failed.stderr);
}
