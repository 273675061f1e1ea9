//! User errors: each has an exit code, an error code for programs, and a suggestion.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use serde_json::Value;

use crate::house::{CommandOutput, CommandTestHome};

#[track_caller]
fn refused(done: &CommandOutput, code: i32, said: &str) {
    assert_eq!((done.code, done.out.as_str()), (code, ""), "{}", done.err);
    assert!(done.err.contains(said), "{said}: {}", done.err);
}

#[test]
fn a_run_that_is_not_there_is_answered_with_where_to_look() {
    let house = CommandTestHome::new();
    refused(&house.abide(&["show", "last"]), 1, "there are no runs yet");
    house.detached("say a");
    house.detached("say b");
    refused(
        &house.abide(&["show", "run_00000000000000000000000000"]),
        1,
        "`abide ls` lists the runs there are",
    );
    refused(&house.abide(&["show", "zzzzz"]), 1, "no run begins or ends with \"zzzzz\"");
    refused(&house.abide(&["show", "run_"]), 1, "2 runs match \"run_\"");
    refused(&house.abide(&["show", "../../healthz"]), 1, "no run begins or ends with");
    refused(&house.abide(&["show", ""]), 1, "no run begins or ends with");
    let told: Value = serde_json::from_str(&house.abide(&["show", "zzzzz", "--json"]).err).unwrap();
    assert_eq!(told["code"], "RUN_NOT_FOUND");
}

#[test]
fn an_answer_that_cannot_count_is_refused() {
    let house = CommandTestHome::new();
    let run = house.asking("ask choose_one Tea? | yes | no\nsay end");
    let id = house.json(&["inbox"])[0]["interaction_id"].as_str().unwrap().to_owned();
    refused(&house.abide(&["reply", &run, ""]), 2, "the answer is empty");
    refused(&house.abide(&["reply", &run, "  "]), 2, "the answer is empty");
    refused(&house.piped(&["reply", &run, "-"], b""), 2, "the answer is empty");
    refused(&house.piped(&["reply", &run, "-"], b"\xff\xfe"), 2, "not text in UTF-8");
    refused(&house.abide(&["reply", &run, "3"]), 2, "there is no option 3");
    let huge = "x".repeat(1_000_001);
    refused(&house.piped(&["reply", &run, "-"], huge.as_bytes()), 2, "1000000");
    let replied = house.piped(&["reply", &run, "-"], b"yes\n");
    assert_eq!((replied.code, replied.out.as_str()), (0, "accepted\n"), "{}", replied.err);
    let stale = house.abide(&["reply", &id, "no", "--json"]);
    assert_eq!((stale.code, stale.out.as_str()), (1, ""));
    assert_eq!(serde_json::from_str::<Value>(&stale.err).unwrap()["code"], "STALE_INTERACTION");
    assert_eq!(house.abide(&["logs", &run, "--follow"]).code, 0);
    refused(&house.abide(&["reply", &run, "no"]), 1, "asks nothing, it is succeeded");
    refused(&house.abide(&["reply", "int_00000000000000000000000000", "no"]), 1, "abide inbox");
}

#[test]
fn a_run_that_makes_no_sense_is_refused_before_it_is_one() {
    let house = CommandTestHome::new();
    refused(&house.abide(&["run", "parott", "say hello"]), 2, "did you mean parrot?");
    refused(&house.abide(&["run", "parrot", ""]), 2, "the prompt is empty");
    refused(&house.abide(&["run", "parrot"]), 2, "standard input is empty");
    refused(&house.abide(&["run", "parrot", "say x", "--workspace", "/no/such/place"]), 2, "/no/such/place");
    refused(&house.abide(&["run", "parrot", "say x", "--mode", "sometimes"]), 2, "auto, interactive, chat");
    refused(&house.abide(&["run", "parrot", "say x", "--session-timeout", "0"]), 2, "0");
    refused(&house.abide(&["send", "last", " "]), 2, "the message is empty");
    assert_eq!(house.json(&["ls"]), serde_json::json!([]));
}

#[test]
fn an_argument_that_is_no_text_is_a_usage_error() {
    let house = CommandTestHome::new();
    let bytes = OsString::from_vec(vec![b'a', 0xff]);
    let done = house.abide(&[OsString::from("run"), OsString::from("parrot"), bytes.clone()]);
    refused(&done, 2, "UTF-8");
    refused(&house.abide(&[OsString::from("show"), bytes]), 2, "UTF-8");
}

#[test]
fn a_usage_error_is_json_too_where_json_is_wanted() {
    let house = CommandTestHome::new();
    let done = house.abide(&["show", "--json"]);
    assert_eq!(done.code, 2);
    assert_eq!(serde_json::from_str::<Value>(&done.err).unwrap()["code"], "USAGE");
}

#[test]
fn a_prompt_comes_from_a_pipe_with_and_without_a_dash() {
    let house = CommandTestHome::new();
    for words in [&["run", "parrot", "-"][..], &["run", "parrot"]] {
        let done = house.piped(words, b"say from a pipe\n");
        assert_eq!((done.code, done.out.as_str()), (0, "from a pipe\n"), "{}", done.err);
    }
}
