//! An engine with endless output: the journal and the daemon's memory stay bounded (SECURITY finding 9).

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::{Value, json};

use crate::harness::DaemonTestHome;

/// Creates a program that replaces the parrot and prints the output of `body` between its session and its answer.
fn hostile_engine(body: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("there is room");
    let program = folder.path().join("hostile");
    let script = format!(
        r#"#!/bin/sh
case "$*" in *--version*) echo "abide 0.1.0"; exit;; *--help*) echo "--resume"; exit;; esac
read prompt
echo '{{"type":"session","id":"s1"}}'
echo '{{"type":"turn"}}'
{body}
"#
    );
    fs::write(&program, script).expect("it can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let command = json!([program]).to_string();
    (folder, command)
}

/// Returns all entries of a run's journal.
fn events(home: &DaemonTestHome, run: &str) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event["seq"].as_u64().unwrap_or(0));
        let page = home.get(&format!("/v1/runs/{run}/events?after={after}&limit=500"));
        let items = page["items"].as_array().cloned().expect("a list has items");
        if items.is_empty() {
            return events;
        }
        events.extend(items);
    }
}

const MAX_MEMORY_BYTES: u64 = 200 << 20;

/// A million lines, a line of one gigabyte, and progress of many megabytes in one line; here a tenth of each.
#[test]
fn output_without_end_neither_fills_the_journal_nor_the_memory() {
    let (_folder, command) = hostile_engine(
        r#"
yes '{"type":"progress","text":"works"}' | head -n 100000
printf '{"type":"progress","text":"'; head -c 8000000 /dev/zero | tr '\0' x; echo '"}'
printf '{"type":"progress","text":"'; head -c 100000000 /dev/zero | tr '\0' x; echo '"}'
echo '{"type":"result","text":"done"}'
"#,
    );
    let home = DaemonTestHome::with_env(&[("ABIDE_ENGINES_PARROT_COMMAND", &command)]);
    let run = home.create("parrot", "anything", json!({}));
    let done = home.wait_for_status(&run, "succeeded");
    assert_eq!(done["result"]["text"], "done");
    let events = events(&home, &run);
    let progress: Vec<&str> = events
        .iter()
        .filter(|event| event["type"] == "progressed")
        .filter_map(|event| event["data"]["text"].as_str())
        .collect();
    assert!(progress.len() < 2_100, "{} entries", progress.len());
    let bytes: usize = progress.iter().map(|text| text.len()).sum();
    assert!(bytes < 2 << 20, "{bytes} bytes");
    let last = progress.last().expect("there is progress");
    assert!(last.starts_with("[98") && last.contains("are left out"), "omitted entries are counted: {last}");
    let memory = home.peak_memory();
    assert!(memory < MAX_MEMORY_BYTES, "the daemon had {memory} bytes");
}

/// An approval request of many megabytes, followed by thousands of requests.
#[test]
fn requests_for_approval_are_bounded_in_size_and_number() {
    let (_folder, command) = hostile_engine(
        r#"
printf '{"type":"gate","id":"g0","prompt":"p","kind":"command","command":"'
head -c 12000000 /dev/zero | tr '\0' x; echo '"}'
read answer
i=1; while [ $i -le 1500 ]; do
  echo '{"type":"gate","id":"g'$i'","prompt":"p"}'; echo '{"type":"withdrawn","id":"g'$i'"}'; i=$((i+1))
done
echo '{"type":"result","text":"done"}'
"#,
    );
    let home = DaemonTestHome::with_env(&[("ABIDE_ENGINES_PARROT_COMMAND", &command)]);
    let run = home.create("parrot", "anything", json!({}));
    let waiting = home.wait_for_status(&run, "waiting_user");
    let question = home.questions(&run).remove(0);
    assert!(
        question["hidden"]["bytes"].as_u64().is_some_and(|bytes| bytes > 11_000_000),
        "{}",
        question["hidden"]
    );
    assert!(question.to_string().len() < 200 << 10);
    assert_eq!(home.try_reply(&waiting, "no").status, 200);
    home.wait_for_status(&run, "succeeded");
    let raised = events(&home, &run).iter().filter(|event| event["type"] == "gate_raised").count();
    assert!(raised <= 1_000, "{raised} requests were put to a person");
    let memory = home.peak_memory();
    assert!(memory < MAX_MEMORY_BYTES, "the daemon had {memory} bytes");
}

/// Answers of control characters, which take six bytes each as JSON, in four runs at once. A commit writes an answer
/// several times.
#[test]
fn long_answers_of_several_runs_are_bounded_by_their_size_as_json() {
    let (_folder, command) = hostile_engine(
        r#"
printf '{"type":"result","text":"'; yes '\u0001' | head -n 2000000 | tr -d '\n'; echo '"}'
"#,
    );
    let home = DaemonTestHome::with_env(&[("ABIDE_ENGINES_PARROT_COMMAND", &command)]);
    let runs: Vec<String> = (0..4).map(|_| home.create("parrot", "anything", json!({}))).collect();
    for run in &runs {
        let done = home.wait_for_status(run, "succeeded");
        let text = done["result"]["text"].as_str().expect("there is an answer");
        assert!(text.ends_with("bytes as JSON]"), "the omitted bytes are counted");
        let encoded = serde_json::to_string(text).expect("it is text").len();
        assert!((2 << 20..(2 << 20) + 200).contains(&encoded), "{encoded} bytes of JSON");
    }
    let memory = home.peak_memory();
    assert!(memory < MAX_MEMORY_BYTES, "the daemon had {memory} bytes");
}

/// A request in one line that exceeds the line limit of 16 MiB. It is refused, and the turn continues.
#[test]
fn a_request_in_a_line_beyond_the_bound_is_refused_and_the_turn_continues() {
    let (_folder, command) = hostile_engine(
        r#"
printf '{"type":"gate","id":"g0","prompt":"p","kind":"command","command":"'
head -c 20000000 /dev/zero | tr '\0' x; echo '"}'
read answer
case "$answer" in *'"approved":false'*) echo '{"type":"result","text":"refused"}';; esac
"#,
    );
    let home = DaemonTestHome::with_env(&[("ABIDE_ENGINES_PARROT_COMMAND", &command)]);
    let run = home.create("parrot", "anything", json!({}));
    let done = home.wait_for_status(&run, "succeeded");
    assert_eq!(done["result"]["text"], "refused");
    let warned = |event: &Value| event["data"]["text"].as_str().is_some_and(|text| text.contains("too long"));
    assert!(events(&home, &run).iter().any(warned), "the run tells of it");
}

/// The same with the request's id after the limit, so that it cannot be refused. The turn fails and the process is
/// ended, because it would wait for ever.
#[test]
fn a_request_beyond_the_bound_that_cannot_be_refused_fails_the_turn() {
    let (folder, command) = hostile_engine(
        r#"
echo $$ > "$(dirname "$0")/pid"
printf '{"type":"gate","prompt":"'
head -c 20000000 /dev/zero | tr '\0' x; echo '","id":"g0"}'
read answer
sleep 1000
"#,
    );
    let home = DaemonTestHome::with_env(&[("ABIDE_ENGINES_PARROT_COMMAND", &command)]);
    let run = home.create("parrot", "anything", json!({}));
    let failed = home.wait_for_status(&run, "failed");
    assert_eq!(failed["error"]["code"], "ENGINE_FAILED");
    let message = failed["error"]["message"].as_str().expect("it says why");
    assert!(message.contains("parrot") && message.contains("16 MiB"), "{message}");
    let pid = fs::read_to_string(folder.path().join("pid")).expect("it was started");
    let is_gone = || !std::path::Path::new("/proc").join(pid.trim()).exists();
    abide_testkit::wait::until("the process to be gone", is_gone);
}
