//! Followers of a run reconnect after the daemon was killed and restarted. No event is lost or repeated.

use crate::harness::{CommandTestHome, on_terminal};

#[test]
fn logs_follow_a_run_across_the_death_of_the_daemon() {
    let home = CommandTestHome::new();
    let run = home.start_waiting_run("progress one\nask open_text Name?\nprogress two\nsay hello $reply");
    let mut logs = home.spawn_watched(&["logs", &run, "--follow"]);
    logs.wait_for_line("question: Name?");
    home.kill_daemon();
    logs.wait_for_line("the connection to the daemon is lost");
    home.up();
    logs.wait_for_line("connected to the daemon again");
    assert_eq!(home.run(&["reply", &run, "Ada"]).code, Some(0));
    assert_eq!(logs.wait_for_exit(), Some(0), "{:?}", logs.err);
    let whole = home.run(&["logs", &run]);
    assert_eq!(logs.out, whole.stdout.lines().collect::<Vec<_>>(), "each line once, in order");
}

#[test]
fn events_as_json_lines_are_all_there_and_each_once_across_a_death() {
    let home = CommandTestHome::new();
    let run = home.start_waiting_run("ask open_text Name?\nsay hello $reply");
    let mut logs = home.spawn_watched(&["logs", &run, "--follow", "--json"]);
    logs.wait_for_line("turn_ended");
    home.kill_daemon();
    logs.wait_for_line("the connection to the daemon is lost");
    home.up();
    assert_eq!(home.run(&["reply", &run, "Ada"]).code, Some(0));
    assert_eq!(logs.wait_for_exit(), Some(0), "{:?}", logs.err);
    let followed: Vec<serde_json::Value> =
        logs.out.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(serde_json::Value::from(followed), home.run_json(&["logs", &run]));
}

#[test]
fn a_run_that_is_followed_continues_while_the_daemon_is_dead_and_its_result_still_comes() {
    let home = CommandTestHome::new();
    let mut run = home.spawn_watched(&[
        "run",
        "parrot",
        "progress one\nsleep 2\nprogress two\nappend ran once\nsay end",
    ]);
    run.wait_for_line("one");
    home.kill_daemon();
    run.wait_for_line("the connection to the daemon is lost");
    home.up();
    assert_eq!(run.wait_for_exit(), Some(0), "{:?}", run.err);
    assert_eq!(run.out, ["end"]);
    assert_eq!(run.err.iter().filter(|line| line.as_str() == "two").count(), 1, "{:?}", run.err);
    let shown = home.run_json(&["show", "last"]);
    assert_eq!(shown["turns"][0]["attempts"].as_array().unwrap().len(), 1, "the turn survived: {shown}");
    let workspace = shown["run"]["workspace"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(format!("{workspace}/ran")).unwrap(), "once\n");
}

#[test]
fn a_question_on_a_terminal_is_asked_again_when_the_daemon_is_back() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", "ask open_text Name?\nsay hello $reply"]);
    user.wait_for_text("Name?");
    user.wait_for_text("> ");
    home.kill_daemon();
    user.wait_for_text("the connection to the daemon is lost");
    home.up();
    user.wait_for_text("connected to the daemon again");
    user.wait_for_text("Name?");
    user.answer_prompt("Ada\r");
    user.wait_for_text("hello Ada");
    assert_eq!(user.wait_for_exit(), Some(0));
}

#[test]
fn an_answer_that_is_typed_while_the_daemon_is_dead_arrives_once_it_is_back() {
    let home = CommandTestHome::new();
    let mut user = on_terminal(&home, &["run", "parrot", "ask open_text Name?\nsay hello $reply"]);
    user.wait_for_text("> ");
    home.kill_daemon();
    user.wait_for_text("the connection to the daemon is lost");
    user.type_keys("Ada\r");
    user.wait_for_text("Ada\r\n");
    home.up();
    user.wait_for_text("hello Ada");
    assert_eq!(user.wait_for_exit(), Some(0));
    let shown = home.run_json(&["show", "last"]);
    assert_eq!(shown["interactions"].as_array().unwrap().len(), 1);
}

#[test]
fn logs_follow_a_run_that_is_over_to_its_end_and_stop() {
    let home = CommandTestHome::new();
    assert_eq!(home.run(&["run", "parrot", "say hello"]).code, Some(0));
    let followed = home.run(&["logs", "last", "--follow"]);
    assert_eq!((followed.code, followed.stdout.clone()), (Some(0), home.run(&["logs", "last"]).stdout));
    assert!(followed.stdout.contains("hello"), "{}", followed.stdout);
}

#[test]
fn a_burst_of_engine_output_is_printed_once_and_in_order() {
    let home = CommandTestHome::new();
    let script = (0..500).map(|n| format!("progress step {n}\n")).collect::<String>() + "say end";
    let done = home.run_with_stdin(&["run", "parrot", "-"], script.as_bytes());
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "end\n"), "{}", done.stderr);
    let steps: Vec<&str> = done.stderr.lines().filter(|line| line.starts_with("step ")).collect();
    let expected: Vec<String> = (0..500).map(|n| format!("step {n}")).collect();
    assert_eq!(steps, expected);
}
