//! Large output: committed output is released, and a restart continues from the last checkpoint.

use std::{fs, path::Path};

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::stage::{DaemonEnding, DaemonTestHome};

/// More than the retention of a spool, and enough for many checkpoints.
const SCRIPT: &str = "append log 1\nprint 200000000\nappend log 2\nsay done";

type CheckpointChange = fn(&mut Value);

/// Waits until the stored checkpoint differs from `last`.
fn next_checkpoint(place: &Path, last: &[u8]) -> Vec<u8> {
    wait::until_some("a checkpoint is stored", || {
        let stored = fs::read(place.join("checkpoint")).ok()?;
        (!stored.is_empty() && stored != last).then_some(stored)
    })
}

/// Starts a run, and ends the daemon after the first output was released.
fn released(stage: &mut DaemonTestHome) -> String {
    let run = stage.create("parrot", SCRIPT, json!({}));
    let place = stage.home.place_of(&run, 1);
    next_checkpoint(&place, b"");
    wait::until("the first output is released", || place.exists() && !place.join("spool.0").exists());
    stage.down(DaemonEnding::Killed);
    run
}

#[test]
fn e7_a_turn_with_much_output_survives_restarts_and_its_output_does_not_pile_up() {
    let mut stage = DaemonTestHome::new();
    let run = released(&mut stage);
    let place = stage.home.place_of(&run, 1);
    let checkpoint = fs::read(place.join("checkpoint")).unwrap();
    assert!(checkpoint.len() < 100 << 10, "a checkpoint has {} bytes", checkpoint.len());
    stage.up();
    next_checkpoint(&place, &checkpoint);
    stage.restart(DaemonEnding::Killed);
    let done = stage.wait(&run, "succeeded");
    assert_eq!(
        (&done["result"]["text"], stage.lines()),
        (&json!("done"), vec!["1".to_owned(), "2".to_owned()])
    );
    assert_eq!(stage.pids(&run).len(), 1);
    let turns = stage.get(&format!("/v1/runs/{run}/turns"));
    assert_eq!(turns["items"][0]["execution_status"], "completed", "{turns}");
    stage.wait_for_no_keeper();
}

#[test]
fn e8_a_checkpoint_that_cannot_be_used_ends_the_turn_and_says_why() {
    let changes: [(&str, CheckpointChange); 2] = [
        ("parrot/0", |checkpoint| checkpoint["version"] = json!("parrot/0")),
        ("older than", |checkpoint| checkpoint["committed"] = json!(1u64 << 60)),
    ];
    for (reason, change) in changes {
        let mut stage = DaemonTestHome::new();
        let run = released(&mut stage);
        let path = stage.home.place_of(&run, 1).join("checkpoint");
        let mut checkpoint: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut checkpoint);
        fs::write(&path, checkpoint.to_string()).unwrap();
        stage.up();
        let asked = stage.wait(&run, "waiting_user");
        let turns = stage.get(&format!("/v1/runs/{run}/turns"));
        let turn = &turns["items"][0];
        assert_eq!(turn["execution_status"], "recovery_required", "{turn}");
        assert_eq!(turn["error"]["code"], "RECOVERY_FAILED", "{turn}");
        assert!(turn["error"]["message"].as_str().is_some_and(|why| why.contains(reason)), "{turn}");
        assert!(asked["pending_interaction_id"].is_string());
        stage.wait_for_no_keeper();
    }
}

#[test]
fn a_checkpoint_of_another_version_is_ignored_where_the_first_byte_is_kept() {
    let mut stage = DaemonTestHome::new();
    let run = stage.create("parrot", "print 100000\nsleep 1\nsay done", json!({}));
    stage.wait(&run, "running");
    stage.wait_for_keeper(&run);
    stage.down(DaemonEnding::Killed);
    fs::write(stage.home.place_of(&run, 1).join("checkpoint"), "{}").unwrap();
    stage.up();
    assert_eq!(stage.wait(&run, "succeeded")["result"]["text"], "done");
}
