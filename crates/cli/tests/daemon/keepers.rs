//! Keepers that die or are stopped: their records are used (E7), and an unresponsive keeper affects only its own run.

use std::time::{Duration, Instant};

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::harness::{DaemonEnding, DaemonTestHome, ReplyPath};

/// The maximum duration of a start on a busy machine. Waiting for unresponsive keepers would take longer.
const MAX_START_TIME: Duration = Duration::from_secs(8);

#[test]
fn e7_a_turn_that_ended_while_neither_daemon_nor_keeper_lived_ends_as_it_did() {
    for (last, status, code) in [
        ("say done", "succeeded", Value::Null),
        ("ask open_text What now?", "waiting_user", Value::Null),
        ("fail no luck", "failed", json!("ENGINE_FAILED")),
        ("crash", "failed", json!("ENGINE_FAILED")),
    ] {
        let mut home = DaemonTestHome::new();
        let script = format!("append log 1\nsleep 1\nprint 100000\nappend log 2\n{last}");
        let run = home.create("parrot", &script, json!({}));
        wait::until("the script has begun", || home.log_lines() == ["1"]);
        home.down(DaemonEnding::Killed);
        let record = home.keeper_dir(&run, 1).join("exit.json");
        wait::until("the end is recorded", || record.exists());
        let keeper = home.keeper_of(&run, 1).expect("it waits to be collected");
        home.kill(&keeper);
        home.up();
        let over = home.wait_for_status(&run, status);
        assert_eq!(over["error"]["code"], code, "{last}: {over}");
        if status == "succeeded" {
            assert_eq!(over["result"]["text"], "done");
        }
        assert_eq!(home.log_lines(), ["1", "2"], "{last}");
        assert_eq!(home.pids(&run).len(), 1, "{last}");
        home.wait_for_no_keeper();
    }
}

/// A sticky process does not exit at the end of its turn, so no exit is recorded. Its output tells how the turn ended.
#[test]
fn e7_a_turn_of_a_held_process_that_ended_before_its_keeper_died_ends_as_it_did() {
    for (last, status, code) in [
        ("say done", "succeeded", Value::Null),
        ("ask open_text What now?", "failed", json!("INTERACTION_PROCESS_LOST")),
        ("fail no luck", "failed", json!("ENGINE_FAILED")),
    ] {
        let mut home = DaemonTestHome::new();
        let script = format!("append log 1\nsleep 1\nappend log 2\n{last}");
        let run = home.create("parrot-sticky", &script, json!({}));
        wait::until("the script has begun", || home.log_lines() == ["1"]);
        home.down(DaemonEnding::Killed);
        let spool = home.keeper_dir(&run, 1).join("spool.0");
        wait::until("the turn has ended", || {
            let printed = std::fs::read(&spool).unwrap_or_default();
            let printed = String::from_utf8_lossy(&printed);
            ["result", "failed"].iter().any(|end| printed.contains(&format!("{{\"type\":\"{end}\"")))
        });
        let keeper = home.keeper_of(&run, 1).expect("it holds its process");
        home.kill(&keeper);
        home.up();
        let over = home.wait_for_status(&run, status);
        assert_eq!(over["error"]["code"], code, "{last}: {over}");
        if status == "succeeded" {
            assert_eq!(over["result"]["text"], "done");
        }
        assert_eq!(home.log_lines(), ["1", "2"], "{last}");
        home.wait_for_no_keeper();
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test asserts a duration")]
fn a12_keepers_that_do_not_answer_cost_their_own_runs_only_and_continue_when_they_do() {
    let mut home = DaemonTestHome::new();
    let works = home.create("parrot", "sleep 5\nsay worked", json!({}));
    let waits = home.create("parrot-sticky", "ask open_text Which?\nsay It is $reply.", json!({}));
    let dies = home.create("parrot", "sleep 1000\nsay never", json!({}));
    home.wait_for_status(&waits, "waiting_user");
    for run in [&works, &dies] {
        wait::until("its process is known", || !home.pids(run).is_empty());
    }
    let keepers = [&works, &waits, &dies].map(|run| home.wait_for_keeper(run));
    home.down(DaemonEnding::Killed);
    for keeper in &keepers {
        home.signal(keeper, "STOP");
    }
    let began = Instant::now();
    home.up();
    assert!(began.elapsed() < MAX_START_TIME, "{:?}", began.elapsed());
    // Other runs are served.
    let other = home.create("parrot", "say other", json!({}));
    assert_eq!(home.wait_for_status(&other, "succeeded")["result"]["text"], "other");
    for run in [&works, &dies] {
        let turn = home.wait_for_turn(run, "pending_recovery");
        assert_eq!(turn["runtime_status"], "lost", "{turn}");
    }
    // A waiting run can still be answered, and a stopped one can be cancelled.
    let waiting = home.wait_for_status(&waits, "waiting_user");
    home.reply(&waiting, "red", ReplyPath::Http);
    let canceled =
        home.client().and_then(|client| client.post(&format!("/v1/runs/{dies}/cancel"), &json!({})));
    assert_eq!(canceled.expect("the daemon answers").status, 200);
    home.wait_for_status(&dies, "canceled");
    for keeper in &keepers[..2] {
        home.signal(keeper, "CONT");
    }
    assert_eq!(home.wait_for_status(&works, "succeeded")["result"]["text"], "worked");
    assert_eq!(home.wait_for_status(&waits, "succeeded")["result"]["text"], "It is red.");
    home.wait_for_no_keeper();
    assert_eq!(home.processes().iter().filter(|process| process.command.contains("parrot")).count(), 0);
}
