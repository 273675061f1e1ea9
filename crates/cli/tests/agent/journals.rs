//! Journals that were cut, edited or reformatted.

use std::fs;

use abide_testkit::model::Answer;
use serde_json::json;

use super::stage::{Stage, script};

/// A stage whose run waits for an answer, and the path of its journal.
fn waiting() -> (Stage, std::path::PathBuf) {
    let stage = Stage::new(script([
        Answer::call("note", json!({ "text": "x" })),
        Answer::call("ask_human", json!({ "question": "?" })),
        Answer::say("done"),
    ]));
    stage.run(&["--message", "go"]).expect(101);
    let path = stage.state().join("journal.jsonl");
    (stage, path)
}

#[test]
fn a_torn_last_line_is_put_aside_and_the_run_goes_on() {
    let (stage, path) = waiting();
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str(r#"{"seq":9,"ts":"2026-"#);
    fs::write(&path, text).unwrap();
    let done = stage.run(&["--answer", "yes"]);
    done.expect(0);
    assert!(done.stderr.contains("journal.torn-1"), "{}", done.stderr);
    assert_eq!(fs::read_to_string(stage.state().join("journal.torn-1")).unwrap(), r#"{"seq":9,"ts":"2026-"#);
    let numbers: Vec<u64> = stage.journal().iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{numbers:?}");
}

/// The complaint about a journal with this text, which must stay.
fn refused(change: impl Fn(&str) -> String) -> String {
    let (stage, path) = waiting();
    let text = change(&fs::read_to_string(&path).unwrap());
    fs::write(&path, &text).unwrap();
    let refused = stage.run(&["--answer", "yes"]);
    refused.expect(1);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert!(refused.stderr.contains("journal.jsonl, line "), "{}", refused.stderr);
    refused.stderr
}

#[test]
fn a_broken_middle_is_refused_by_file_and_line() {
    let said = refused(|text| text.replacen("\"THOUGHT\"", "\"THOUGHT", 1));
    assert!(said.contains("line 3: this is no event of a journal"), "{said}");
}

#[test]
fn a_journal_that_an_editor_formatted_is_refused_with_the_reason() {
    let said = refused(|text| {
        let pretty = |line: &str| format!("{:#}\n", serde_json::from_str::<serde_json::Value>(line).unwrap());
        text.lines().map(pretty).collect()
    });
    assert!(said.contains("line 1:") && said.contains("reformatted"), "{said}");
}
