//! Journals that were truncated, edited or reformatted.

use std::fs;

use std::os::unix::fs::PermissionsExt;

use abide_testkit::{model::ScriptedAnswer, proc::is_running};
use serde_json::json;

use super::harness::{AgentTestHome, results, script, shell};

/// Creates a home whose run waits for an answer, and returns the path of its journal.
fn waiting_home() -> (AgentTestHome, std::path::PathBuf) {
    let home = AgentTestHome::new(script([
        ScriptedAnswer::call("note", json!({ "text": "x" })),
        ScriptedAnswer::call("ask_human", json!({ "question": "?" })),
        ScriptedAnswer::say("done"),
    ]));
    home.run(&["--message", "go"]).expect(101);
    let path = home.state().join("journal.jsonl");
    (home, path)
}

#[test]
fn a_piece_of_a_line_that_abide_did_not_announce_is_foreign_and_adopted_on_request() {
    let (home, path) = waiting_home();
    let good = fs::read_to_string(&path).unwrap();
    let text = format!(r#"{good}{{"seq":9,"ts":"2026-"#);
    fs::write(&path, &text).unwrap();
    let refused = home.run(&["--answer", "yes"]);
    refused.expect(2);
    let line = format!("journal.jsonl, line {}: ", good.lines().count() + 1);
    assert!(refused.stderr.contains(&line) && refused.stderr.contains("--adopt"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let adopted = home.run(&["--adopt", "--message", "go on"]);
    adopted.expect(0);
    assert!(adopted.stderr.contains("journal.torn-1"), "{}", adopted.stderr);
    assert_eq!(fs::read_to_string(home.state().join("journal.torn-1")).unwrap(), r#"{"seq":9,"ts":"2026-"#);
    let numbers: Vec<u64> = home.journal().iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{numbers:?}");
}

/// Returns the error message for a changed journal, which must be left unchanged.
fn refusal_of(change: impl Fn(&str) -> String) -> String {
    let (home, path) = waiting_home();
    let text = change(&fs::read_to_string(&path).unwrap());
    fs::write(&path, &text).unwrap();
    let refused = home.run(&["--answer", "yes"]);
    refused.expect(2);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert!(refused.stderr.contains("journal.jsonl, line "), "{}", refused.stderr);
    refused.stderr
}

#[test]
fn a_broken_middle_is_refused_by_file_and_line() {
    let message = refusal_of(|text| text.replacen("\"THOUGHT\"", "\"THOUGHT", 1));
    assert!(message.contains("line 3: this is not a journal event"), "{message}");
}

#[test]
fn a_journal_that_an_editor_formatted_is_refused_with_the_reason() {
    let message = refusal_of(|text| {
        let pretty = |line: &str| format!("{:#}\n", serde_json::from_str::<serde_json::Value>(line).unwrap());
        text.lines().map(pretty).collect()
    });
    assert!(message.contains("line 1:") && message.contains("reformatted"), "{message}");
}

#[test]
fn a_journal_in_one_line_is_refused_and_the_session_lives_on() {
    let home = AgentTestHome::new(script([
        shell("x=1"),
        ScriptedAnswer::call("ask_human", json!({ "question": "?" })),
        shell("echo x is ${x:-unset}"),
        ScriptedAnswer::say("done"),
    ]));
    home.run(&["--message", "go"]).expect(101);
    let path = home.state().join("journal.jsonl");
    let good = fs::read_to_string(&path).unwrap();
    let sessions = home.sessions();
    let lines: Vec<&str> = good.lines().collect();
    for text in [
        lines.concat(),
        lines.join(" "),
        format!("[{}]", lines.join(",")),
        format!("\u{feff}{}", lines.concat()),
    ] {
        fs::write(&path, &text).unwrap();
        let files = fs::read_dir(home.state()).unwrap().count();
        for words in [["--answer", "yes"], ["--message", "go"]] {
            let refused = home.run(&words);
            refused.expect(2);
            assert!(refused.stderr.contains("journal.jsonl, line 1: "), "{}", refused.stderr);
            assert!(refused.stderr.contains("was left as it is"), "{}", refused.stderr);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::read_dir(home.state()).unwrap().count(), files);
        assert_eq!(home.sessions(), sessions);
        assert!(is_running(sessions[0].1));
    }
    fs::write(&path, good).unwrap();
    home.run(&["--answer", "yes"]).expect(0);
    let seen = results(&home.model.requests().pop().unwrap());
    assert!(seen[2].contains("x is 1"), "{seen:?}");
}

#[test]
fn everything_in_the_state_folder_is_private() {
    let ask = ScriptedAnswer::call("ask_human", json!({ "question": "?", "sensitive": true }));
    let note = ScriptedAnswer::call("note", json!({ "text": "x" }));
    let home = AgentTestHome::new(script([shell("x=1"), note, ask.clone(), ask]));
    home.run(&["--message", "go"]).expect(101);
    home.run(&["--answer", "first"]).expect(101);
    let state = home.state();
    let path = state.join("journal.jsonl");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let check = |label: &str| {
        let mut folders = vec![state.clone()];
        while let Some(folder) = folders.pop() {
            assert_eq!(mode(&folder), 0o700, "{label}: {}", folder.display());
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    let file_mode = mode(&entry.path());
                    assert_eq!(file_mode & 0o077, 0, "{label}: {} is {file_mode:o}", entry.path().display());
                }
            }
        }
    };
    check("fresh");
    // The modes that an earlier version left.
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let torn = fs::read_to_string(&path).unwrap() + r#"{"seq":12,"ts":"2026-"#;
    fs::write(&path, torn).unwrap();
    home.run(&["--adopt", "--message", "more"]).expect(0);
    assert!(state.join("journal.torn-1").exists());
    check("tightened");
}
