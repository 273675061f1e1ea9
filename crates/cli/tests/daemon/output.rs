//! Large output: committed output is released, and a restart continues from the last checkpoint.

use std::{fs, path::Path};

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::harness::{DaemonEnding, DaemonTestHome};

/// More than the retention of a spool, and enough for many checkpoints.
const SCRIPT: &str = "append log 1\nprint 200000000\nappend log 2\nsay done";

type CheckpointChange = fn(&mut Value);

/// Waits until the stored checkpoint differs from `last`.
fn next_checkpoint(keeper_dir: &Path, last: &[u8]) -> Vec<u8> {
    wait::until_some("a checkpoint is stored", || {
        let stored = fs::read(keeper_dir.join("checkpoint")).ok()?;
        (!stored.is_empty() && stored != last).then_some(stored)
    })
}

/// Starts a run, and ends the daemon after the first output was released.
fn run_until_released(home: &mut DaemonTestHome) -> String {
    let run = home.create("parrot", SCRIPT, json!({}));
    let keeper_dir = home.keeper_dir(&run, 1);
    next_checkpoint(&keeper_dir, b"");
    wait::until("the first output is released", || {
        keeper_dir.exists() && !keeper_dir.join("spool.0").exists()
    });
    home.down(DaemonEnding::Killed);
    run
}

#[test]
fn e7_a_turn_with_much_output_survives_restarts_and_its_output_does_not_pile_up() {
    let mut home = DaemonTestHome::new();
    let run = run_until_released(&mut home);
    let keeper_dir = home.keeper_dir(&run, 1);
    let checkpoint = fs::read(keeper_dir.join("checkpoint")).unwrap();
    assert!(checkpoint.len() < 100 << 10, "a checkpoint has {} bytes", checkpoint.len());
    home.up();
    next_checkpoint(&keeper_dir, &checkpoint);
    home.restart(DaemonEnding::Killed);
    let done = home.wait_for_status(&run, "succeeded");
    assert_eq!(
        (&done["result"]["text"], home.log_lines()),
        (&json!("done"), vec!["1".to_owned(), "2".to_owned()])
    );
    assert_eq!(home.pids(&run).len(), 1);
    let turns = home.get(&format!("/v1/runs/{run}/turns"));
    assert_eq!(turns["items"][0]["execution_status"], "completed", "{turns}");
    home.wait_for_no_keeper();
}

#[test]
fn e8_a_checkpoint_that_cannot_be_used_ends_the_turn_and_says_why() {
    let changes: [(&str, CheckpointChange); 2] = [
        ("parrot/0", |checkpoint| checkpoint["version"] = json!("parrot/0")),
        ("older than", |checkpoint| checkpoint["committed"] = json!(1u64 << 60)),
    ];
    for (reason, change) in changes {
        let mut home = DaemonTestHome::new();
        let run = run_until_released(&mut home);
        let path = home.keeper_dir(&run, 1).join("checkpoint");
        let mut checkpoint: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut checkpoint);
        fs::write(&path, checkpoint.to_string()).unwrap();
        home.up();
        let run_view = home.wait_for_status(&run, "waiting_user");
        let turns = home.get(&format!("/v1/runs/{run}/turns"));
        let turn = &turns["items"][0];
        assert_eq!(turn["execution_status"], "recovery_required", "{turn}");
        assert_eq!(turn["error"]["code"], "RECOVERY_FAILED", "{turn}");
        assert!(turn["error"]["message"].as_str().is_some_and(|why| why.contains(reason)), "{turn}");
        assert!(run_view["pending_interaction_id"].is_string());
        home.wait_for_no_keeper();
    }
}

#[test]
fn a_checkpoint_of_another_version_is_ignored_where_the_first_byte_is_kept() {
    let mut home = DaemonTestHome::new();
    let run = home.create("parrot", "print 100000\nsleep 1\nsay done", json!({}));
    home.wait_for_status(&run, "running");
    home.wait_for_keeper(&run);
    home.down(DaemonEnding::Killed);
    fs::write(home.keeper_dir(&run, 1).join("checkpoint"), "{}").unwrap();
    home.up();
    assert_eq!(home.wait_for_status(&run, "succeeded")["result"]["text"], "done");
}
