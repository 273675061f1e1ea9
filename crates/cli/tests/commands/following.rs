//! Followers of a run reconnect after the daemon was killed and restarted. No event is lost or repeated.

use crate::{house::CommandTestHome, person::TerminalUser};

#[test]
fn logs_follow_a_run_across_the_death_of_the_daemon() {
    let house = CommandTestHome::new();
    let run = house.asking("progress one\nask open_text Name?\nprogress two\nsay hello $reply");
    let mut logs = house.watch(&["logs", &run, "--follow"]);
    logs.says("asks: Name?");
    house.kill_daemon();
    logs.says("the daemon is gone");
    house.up();
    logs.says("the daemon is back");
    assert_eq!(house.abide(&["reply", &run, "Ada"]).code, 0);
    assert_eq!(logs.ends(), Some(0), "{:?}", logs.err);
    let whole = house.abide(&["logs", &run]);
    assert_eq!(logs.out, whole.out.lines().collect::<Vec<_>>(), "each line once, in order");
}

#[test]
fn events_as_json_lines_are_all_there_and_each_once_across_a_death() {
    let house = CommandTestHome::new();
    let run = house.asking("ask open_text Name?\nsay hello $reply");
    let mut logs = house.watch(&["logs", &run, "--follow", "--json"]);
    logs.says("turn_ended");
    house.kill_daemon();
    logs.says("the daemon is gone");
    house.up();
    assert_eq!(house.abide(&["reply", &run, "Ada"]).code, 0);
    assert_eq!(logs.ends(), Some(0), "{:?}", logs.err);
    let followed: Vec<serde_json::Value> =
        logs.out.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(serde_json::Value::from(followed), house.json(&["logs", &run]));
}

#[test]
fn a_run_that_is_followed_goes_on_while_the_daemon_is_dead_and_its_result_still_comes() {
    let house = CommandTestHome::new();
    let mut run =
        house.watch(&["run", "parrot", "progress one\nsleep 2\nprogress two\nappend ran once\nsay end"]);
    run.says("one");
    house.kill_daemon();
    run.says("the daemon is gone");
    house.up();
    assert_eq!(run.ends(), Some(0), "{:?}", run.err);
    assert_eq!(run.out, ["end"]);
    assert_eq!(run.err.iter().filter(|line| line.as_str() == "two").count(), 1, "{:?}", run.err);
    let shown = house.json(&["show", "last"]);
    assert_eq!(shown["turns"][0]["attempts"].as_array().unwrap().len(), 1, "the turn survived: {shown}");
    let workspace = shown["run"]["workspace"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(format!("{workspace}/ran")).unwrap(), "once\n");
}

#[test]
fn a_question_on_a_terminal_is_asked_again_when_the_daemon_is_back() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", "ask open_text Name?\nsay hello $reply"]);
    person.sees("Name?");
    person.sees("> ");
    house.kill_daemon();
    person.sees("the daemon is gone");
    house.up();
    person.sees("the daemon is back");
    person.sees("Name?");
    person.answers("Ada\r");
    person.sees("hello Ada");
    assert_eq!(person.ends(), Some(0));
}

#[test]
fn an_answer_that_is_typed_while_the_daemon_is_dead_arrives_once_it_is_back() {
    let house = CommandTestHome::new();
    let mut person = TerminalUser::runs(&house, &["run", "parrot", "ask open_text Name?\nsay hello $reply"]);
    person.sees("> ");
    house.kill_daemon();
    person.sees("the daemon is gone");
    person.types("Ada\r");
    person.sees("Ada\r\n");
    house.up();
    person.sees("hello Ada");
    assert_eq!(person.ends(), Some(0));
    let shown = house.json(&["show", "last"]);
    assert_eq!(shown["interactions"].as_array().unwrap().len(), 1);
}

#[test]
fn logs_follow_a_run_that_is_over_to_its_end_and_stop() {
    let house = CommandTestHome::new();
    assert_eq!(house.abide(&["run", "parrot", "say hello"]).code, 0);
    let followed = house.abide(&["logs", "last", "--follow"]);
    assert_eq!((followed.code, followed.out.clone()), (0, house.abide(&["logs", "last"]).out));
    assert!(followed.out.contains("hello"), "{}", followed.out);
}

#[test]
fn everything_that_an_engine_says_in_a_hurry_is_told_once_and_in_order() {
    let house = CommandTestHome::new();
    let script = (0..500).map(|n| format!("progress step {n}\n")).collect::<String>() + "say end";
    let done = house.piped(&["run", "parrot", "-"], script.as_bytes());
    assert_eq!((done.code, done.out.as_str()), (0, "end\n"), "{}", done.err);
    let told: Vec<&str> = done.err.lines().filter(|line| line.starts_with("step ")).collect();
    let expected: Vec<String> = (0..500).map(|n| format!("step {n}")).collect();
    assert_eq!(told, expected);
}
