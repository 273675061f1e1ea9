//! Keepers that die or are stopped: their records are used (E7), and an unresponsive keeper affects only its own run.

use std::time::{Duration, Instant};

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::stage::{DaemonEnding, DaemonTestHome, ReplyPath};

/// The maximum duration of a start on a busy machine. Waiting for unresponsive keepers would take longer.
const START: Duration = Duration::from_secs(8);

#[test]
fn e7_a_turn_that_ended_while_neither_daemon_nor_keeper_lived_ends_as_it_did() {
    for (last, status, code) in [
        ("say done", "succeeded", Value::Null),
        ("ask open_text What now?", "waiting_user", Value::Null),
        ("fail no luck", "failed", json!("ENGINE_FAILED")),
        ("crash", "failed", json!("ENGINE_FAILED")),
    ] {
        let mut stage = DaemonTestHome::new();
        let script = format!("append log 1\nsleep 1\nprint 100000\nappend log 2\n{last}");
        let run = stage.create("parrot", &script, json!({}));
        wait::until("the script has begun", || stage.lines() == ["1"]);
        stage.down(DaemonEnding::Killed);
        let record = stage.home.place_of(&run, 1).join("exit.json");
        wait::until("the end is recorded", || record.exists());
        let keeper = stage.home.keeper_of(&run, 1).expect("it waits to be collected");
        stage.home.kill(&keeper);
        stage.up();
        let over = stage.wait(&run, status);
        assert_eq!(over["error"]["code"], code, "{last}: {over}");
        if status == "succeeded" {
            assert_eq!(over["result"]["text"], "done");
        }
        assert_eq!(stage.lines(), ["1", "2"], "{last}");
        assert_eq!(stage.pids(&run).len(), 1, "{last}");
        stage.wait_for_no_keeper();
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
        let mut stage = DaemonTestHome::new();
        let script = format!("append log 1\nsleep 1\nappend log 2\n{last}");
        let run = stage.create("parrot-sticky", &script, json!({}));
        wait::until("the script has begun", || stage.lines() == ["1"]);
        stage.down(DaemonEnding::Killed);
        let spool = stage.home.place_of(&run, 1).join("spool.0");
        wait::until("the turn has ended", || {
            let printed = std::fs::read(&spool).unwrap_or_default();
            let printed = String::from_utf8_lossy(&printed);
            ["result", "failed"].iter().any(|end| printed.contains(&format!("{{\"type\":\"{end}\"")))
        });
        let keeper = stage.home.keeper_of(&run, 1).expect("it holds its process");
        stage.home.kill(&keeper);
        stage.up();
        let over = stage.wait(&run, status);
        assert_eq!(over["error"]["code"], code, "{last}: {over}");
        if status == "succeeded" {
            assert_eq!(over["result"]["text"], "done");
        }
        assert_eq!(stage.lines(), ["1", "2"], "{last}");
        stage.wait_for_no_keeper();
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what is claimed is a duration")]
fn a12_keepers_that_do_not_answer_cost_their_own_runs_only_and_go_on_when_they_do() {
    let mut stage = DaemonTestHome::new();
    let works = stage.create("parrot", "sleep 5\nsay worked", json!({}));
    let waits = stage.create("parrot-sticky", "ask open_text Which?\nsay It is $reply.", json!({}));
    let dies = stage.create("parrot", "sleep 1000\nsay never", json!({}));
    stage.wait(&waits, "waiting_user");
    for run in [&works, &dies] {
        wait::until("its process is known", || !stage.pids(run).is_empty());
    }
    let keepers = [&works, &waits, &dies].map(|run| stage.wait_for_keeper(run));
    stage.down(DaemonEnding::Killed);
    for keeper in &keepers {
        stage.home.signal(keeper, "STOP");
    }
    let began = Instant::now();
    stage.up();
    assert!(began.elapsed() < START, "{:?}", began.elapsed());
    // Other runs are served.
    let other = stage.create("parrot", "say other", json!({}));
    assert_eq!(stage.wait(&other, "succeeded")["result"]["text"], "other");
    for run in [&works, &dies] {
        let turn = stage.wait_for_turn(run, "pending_recovery");
        assert_eq!(turn["runtime_status"], "lost", "{turn}");
    }
    // A waiting run can still be answered, and a stopped one can be cancelled.
    let waiting = stage.wait(&waits, "waiting_user");
    stage.reply(&waiting, "red", ReplyPath::Http);
    let canceled =
        stage.home.client().and_then(|client| client.post(&format!("/v1/runs/{dies}/cancel"), &json!({})));
    assert_eq!(canceled.expect("the daemon answers").status, 200);
    stage.wait(&dies, "canceled");
    for keeper in &keepers[..2] {
        stage.home.signal(keeper, "CONT");
    }
    assert_eq!(stage.wait(&works, "succeeded")["result"]["text"], "worked");
    assert_eq!(stage.wait(&waits, "succeeded")["result"]["text"], "It is red.");
    stage.wait_for_no_keeper();
    assert_eq!(stage.home.processes().iter().filter(|left| left.command.contains("parrot")).count(), 0);
}
