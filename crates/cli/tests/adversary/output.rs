//! Endless output, in one line and in many lines, from agents, tools and terminals (SECURITY 9 and 14).
//!
//! `OUTPUT_MIB` and `OUTPUT_LINES` set larger sizes; the long form uses 2048 and 1000000.

use serde_json::{Value, json};

use crate::{harness::AdversaryDaemon, trees::env_or};

const MIB_VARIABLE: &str = "OUTPUT_MIB";
const DEFAULT_MIB: u64 = 200;
const LINES_VARIABLE: &str = "OUTPUT_LINES";
const DEFAULT_LINES: u64 = 100_000;

/// Returns a program that prints `OUTPUT_MIB` MiB in one line and then `OUTPUT_LINES` lines, each between `before` and
/// `after`.
fn flood_script(before: &str, after: &str) -> String {
    let (mib, lines) = (env_or(MIB_VARIABLE, DEFAULT_MIB), env_or(LINES_VARIABLE, DEFAULT_LINES));
    format!(
        r#"python3 -c '
import sys
out, before, after = sys.stdout.buffer, sys.argv[1].encode(), sys.argv[2].encode() + b"\n"
out.write(before)
for _ in range({mib}): out.write(b"x" * 1048576)
out.write(after)
for number in range({lines}): out.write(before + b"line %d" % number + after)
out.flush()
' '{before}' '{after}'"#
    )
}

#[test]
fn security_9_an_agent_that_prints_without_end_harms_no_other_run() {
    let mut fixture = AdversaryDaemon::new();
    // Uses the standard output of the agent itself, because the harness starts the program without one.
    let print = flood_script(r#"{"type":"progress","text":""#, r#""}"#);
    fixture.set_program("w", &format!("exec > /proc/$PPID/fd/1\ntouch begun\n{print}\ntouch printed\n"));
    let run = fixture.create("w", json!({}));
    fixture.wait_for_file("w", "begun");
    fixture.assert_bystander_works();
    let ended = fixture.wait_for_status(&run, &["idle"]);
    assert_eq!(ended["result"]["text"], "done");
    fixture.wait_for_file("w", "printed");
    assert_eq!(fixture.stderr_of("w"), "");
    let mut events: Vec<Value> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event["seq"].as_u64().expect("it is a number"));
        let page = fixture.get(&format!("/v1/runs/{run}/events?after={after}&limit=500"));
        events.extend(page.body["items"].as_array().cloned().expect("a page has items"));
        if page.body["next_cursor"].is_null() {
            break;
        }
    }
    let count_texts = |text: &str| {
        let texts = events.iter().filter_map(|event| event["data"]["text"].as_str());
        texts.filter(|count_texts| count_texts.contains(text)).count()
    };
    assert_eq!(count_texts("a line of the engine's output is too long"), 1);
    assert!(count_texts("are left out in this turn so far") > 0, "omitted entries are counted");
    assert!(events.len() < 2_200, "{} entries", events.len());
    fixture.assert_unharmed();
}

#[test]
fn security_14_tools_and_terminals_that_print_without_end_harm_no_other_run() {
    let mut fixture = AdversaryDaemon::new();
    let print = flood_script("", "");
    let order = format!("<all> <do>{print}; touch printed; true</do>");
    let run = fixture
        .create("native", json!({ "engine": "native", "execution_mode": "interactive", "prompt": order }));
    let session = fixture.rpc("session.create", json!({ "shell": "/bin/bash" }));
    let session = session["result"]["session_id"].as_str().expect("it is made").to_owned();
    let ran = fixture.rpc("exec.run", json!({ "session_id": session, "command": print }));
    assert_eq!(ran["result"]["exit_code"], 0);
    assert_eq!(ran["result"]["stdout"].as_str().map(str::len), Some(1 << 20), "a result has its bound");
    let left_out = ran["result"]["truncated"]["stdout"].as_u64().expect("it is counted");
    assert!(left_out > env_or(MIB_VARIABLE, DEFAULT_MIB) << 20, "{left_out} bytes are left out");
    fixture.assert_bystander_works();
    fixture.wait_for_status(&run, &["waiting_user"]);
    fixture.wait_for_file("native", "printed");
    fixture.assert_unharmed();
}
