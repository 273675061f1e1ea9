//! User errors: each has an exit code, an error code for programs, and a suggestion.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use abide_testkit::daemon::TestCommandOutput;
use serde_json::Value;

use crate::harness::CommandTestHome;

#[track_caller]
fn assert_refused(output: &TestCommandOutput, code: i32, text: &str) {
    assert_eq!((output.code, output.stdout.as_str()), (Some(code), ""), "{}", output.stderr);
    assert!(output.stderr.contains(text), "{text}: {}", output.stderr);
}

#[test]
fn a_run_that_is_not_there_is_answered_with_where_to_look() {
    let home = CommandTestHome::new();
    assert_refused(&home.run(&["show", "last"]), 1, "there are no runs yet");
    home.start_detached("say a");
    home.start_detached("say b");
    assert_refused(
        &home.run(&["show", "run_00000000000000000000000000"]),
        1,
        "`abide ls` lists the runs there are",
    );
    assert_refused(&home.run(&["show", "zzzzz"]), 1, "no run begins or ends with \"zzzzz\"");
    assert_refused(&home.run(&["show", "run_"]), 1, "2 runs match \"run_\"");
    assert_refused(&home.run(&["show", "../../healthz"]), 1, "no run begins or ends with");
    assert_refused(&home.run(&["show", ""]), 1, "no run begins or ends with");
    let error: Value = serde_json::from_str(&home.run(&["show", "zzzzz", "--json"]).stderr).unwrap();
    assert_eq!(error["code"], "RUN_NOT_FOUND");
}

#[test]
fn an_answer_that_cannot_count_is_refused() {
    let home = CommandTestHome::new();
    let run = home.start_waiting_run("ask choose_one Tea? | yes | no\nsay end");
    let id = home.run_json(&["inbox"])[0]["interaction_id"].as_str().unwrap().to_owned();
    assert_refused(&home.run(&["reply", &run, ""]), 2, "the answer is empty");
    assert_refused(&home.run(&["reply", &run, "  "]), 2, "the answer is empty");
    assert_refused(&home.run_with_stdin(&["reply", &run, "-"], b""), 2, "the answer is empty");
    assert_refused(&home.run_with_stdin(&["reply", &run, "-"], b"\xff\xfe"), 2, "not text in UTF-8");
    assert_refused(&home.run(&["reply", &run, "3"]), 2, "there is no option 3");
    let huge = "x".repeat(1_000_001);
    assert_refused(&home.run_with_stdin(&["reply", &run, "-"], huge.as_bytes()), 2, "1000000");
    let replied = home.run_with_stdin(&["reply", &run, "-"], b"yes\n");
    assert_eq!((replied.code, replied.stdout.as_str()), (Some(0), "accepted\n"), "{}", replied.stderr);
    let stale = home.run(&["reply", &id, "no", "--json"]);
    assert_eq!((stale.code, stale.stdout.as_str()), (Some(1), ""));
    assert_eq!(serde_json::from_str::<Value>(&stale.stderr).unwrap()["code"], "STALE_INTERACTION");
    assert_eq!(home.run(&["logs", &run, "--follow"]).code, Some(0));
    assert_refused(&home.run(&["reply", &run, "no"]), 1, "has no open question (status succeeded)");
    assert_refused(&home.run(&["reply", "int_00000000000000000000000000", "no"]), 1, "abide inbox");
}

#[test]
fn a_run_that_makes_no_sense_is_refused_before_it_is_one() {
    let home = CommandTestHome::new();
    assert_refused(&home.run(&["run", "parott", "say hello"]), 2, "did you mean parrot?");
    assert_refused(&home.run(&["run", "parrot", ""]), 2, "the prompt is empty");
    assert_refused(&home.run(&["run", "parrot"]), 2, "standard input is empty");
    assert_refused(
        &home.run(&["run", "parrot", "say x", "--workspace", "/no/such/place"]),
        2,
        "/no/such/place",
    );
    assert_refused(
        &home.run(&["run", "parrot", "say x", "--mode", "sometimes"]),
        2,
        "auto, interactive, chat",
    );
    assert_refused(&home.run(&["run", "parrot", "say x", "--session-timeout", "0"]), 2, "0");
    assert_refused(&home.run(&["send", "last", " "]), 2, "the message is empty");
    assert_eq!(home.run_json(&["ls"]), serde_json::json!([]));
}

#[test]
fn an_argument_that_is_no_text_is_a_usage_error() {
    let home = CommandTestHome::new();
    let bytes = OsString::from_vec(vec![b'a', 0xff]);
    let done = home.run(&[OsString::from("run"), OsString::from("parrot"), bytes.clone()]);
    assert_refused(&done, 2, "UTF-8");
    assert_refused(&home.run(&[OsString::from("show"), bytes]), 2, "UTF-8");
}

#[test]
fn a_usage_error_is_json_too_where_json_is_wanted() {
    let home = CommandTestHome::new();
    let done = home.run(&["show", "--json"]);
    assert_eq!(done.code, Some(2));
    assert_eq!(serde_json::from_str::<Value>(&done.stderr).unwrap()["code"], "USAGE");
}

#[test]
fn a_prompt_comes_from_a_pipe_with_and_without_a_dash() {
    let home = CommandTestHome::new();
    for words in [&["run", "parrot", "-"][..], &["run", "parrot"]] {
        let done = home.run_with_stdin(words, b"say from a pipe\n");
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), "from a pipe\n"), "{}", done.stderr);
    }
}
