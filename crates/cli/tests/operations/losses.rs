//! Loss of acknowledged input: the daemon refuses to start without an explicit option, and accepts no more input when
//! its database is gone.

use std::fs;

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::place::{OperatorTestHome, text};

fn new_run() -> Value {
    json!({ "engine": "parrot", "prompt": "say hello", "execution_mode": "interactive" })
}

#[test]
fn lost_input_is_refused_until_it_is_accepted_and_processes_of_lost_runs_are_ended() {
    let place = OperatorTestHome::new("");
    let daemon = place.up(&[]);
    let body = json!({
        "engine": "parrot-sticky", "prompt": "ask open_text What now?", "execution_mode": "interactive",
    });
    let run = daemon.post("/v1/runs", &body)["run_id"].as_str().unwrap().to_owned();
    daemon.reaches(&run, "waiting_user");
    daemon.kill();
    let log = place.path().join("abide.db-wal");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    fs::write(&log, "").unwrap();

    let refused = place.abide(&["up", "--json"]);
    assert_eq!(refused.status.code(), Some(1));
    let told: Value = serde_json::from_str(&text(&refused.stderr)).unwrap();
    assert_eq!(told["code"], "INPUT_LOST");
    let detail = told["detail"].as_str().unwrap();
    for part in ["abide.db", "entry 0,", "abide restore FILE", "abide up --accept-loss"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    let refused = place.abide(&["up", "--detach"]);
    assert!(text(&refused.stderr).contains("--accept-loss"), "{}", text(&refused.stderr));
    let verified = place.abide(&["verify", "--json"]);
    assert_eq!(verified.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert!(told["advice"].as_str().unwrap().contains("--accept-loss"), "{told}");
    assert!(held(&place).iter().any(|name| name.starts_with(&run)), "its process is still held");

    let daemon = place.up_with(&["--accept-loss"], &[]);
    let (status, _) = daemon.answer(&format!("/v1/runs/{run}"), None);
    assert_eq!(status, 404);
    wait::until("its process is ended, for nobody can answer it any more", || held(&place).is_empty());
    let again = daemon.run("say hello");
    daemon.reaches(&again, "succeeded");
    let said = daemon.kill();
    assert!(said.contains("--accept-loss") && said.contains(&run), "{said}");
    drop(place.up(&[]));
    let told: Value = serde_json::from_str(&place.told(&["verify", "--json"])).unwrap();
    assert!(told["notes"][0].as_str().unwrap().contains("a loss was accepted at"), "{told}");
}

/// Returns the names of the runs' kept processes.
fn held(place: &OperatorTestHome) -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["keepers", "keepers/runs"] {
        let entries = fs::read_dir(place.path().join(folder)).into_iter().flatten();
        names.extend(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
    }
    names.retain(|name| name.starts_with("run_"));
    names
}

#[test]
fn a_daemon_in_the_background_can_be_told_to_accept_a_loss() {
    let place = OperatorTestHome::new("");
    let daemon = place.up(&[]);
    let run = daemon.run("say hello");
    daemon.reaches(&run, "succeeded");
    daemon.kill();
    fs::write(place.path().join("abide.db-wal"), "").unwrap();
    place.told(&["up", "--detach", "--accept-loss"]);
    assert_eq!(place.told(&["ls", "--json"]).trim(), "[]");
    place.told(&["down"]);
}

#[test]
fn a_daemon_whose_database_is_deleted_takes_no_more_input_and_says_why() {
    let place = OperatorTestHome::new("");
    let daemon = place.up(&[]);
    let run = daemon.run("say hello");
    daemon.reaches(&run, "succeeded");
    assert_eq!(daemon.answer("/readyz", None).0, 200);
    fs::remove_file(place.path().join("abide.db")).unwrap();
    let (status, problem) = daemon.answer("/v1/runs", Some(&new_run()));
    assert_eq!((status, problem["code"].as_str()), (503, Some("STORE_GONE")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("abide.db was deleted"), "{problem}");
    let (status, problem) = daemon.answer("/readyz", None);
    assert_eq!((status, problem["code"].as_str()), (503, Some("STORE_GONE")), "{problem}");
    let refused = place.abide(&["up"]);
    assert_eq!(refused.status.code(), Some(1), "no second daemon takes its place");
    wait::until("it is in the figures", || daemon.get("/metrics").contains("abide_ready 0"));
}

#[test]
fn a_deleted_database_is_told_in_the_log_and_its_daemon_can_be_stopped() {
    let place = OperatorTestHome::new("");
    place.told(&["up", "--detach"]);
    fs::remove_file(place.path().join("abide.db")).unwrap();
    let log = place.path().join("logs").join("daemon.log");
    wait::until("the log says so", || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        said.contains("no input is accepted") && said.contains("abide.db was deleted")
    });
    place.told(&["down", "--keep"]);
    assert!(!place.path().join("abide.db").exists(), "nothing is made in its place");
}

#[test]
fn an_idle_daemon_whose_home_is_deleted_says_so_within_seconds() {
    let place = OperatorTestHome::new("");
    let daemon = place.up(&[]);
    fs::remove_dir_all(place.path()).unwrap();
    let problem = wait::until_some("it notices", || {
        let (status, problem) = daemon.answer("/readyz", None);
        (status == 503).then_some(problem)
    });
    assert_eq!(problem["code"], "STORE_GONE", "{problem}");
    fs::create_dir_all(place.path()).unwrap();
}

#[test]
fn what_cannot_be_restored_is_refused_with_its_reason() {
    let place = OperatorTestHome::new("");
    fs::write(place.path().join("garbage"), [0x5a; 9000]).unwrap();
    for (file, code) in [("garbage", "STORE_DAMAGED"), ("none", "FAILED")] {
        let refused = place.abide(&["restore", file, "--json"]);
        assert_eq!(refused.status.code(), Some(1));
        // The first command in a home may print a message about its mode.
        let told: Value = serde_json::from_str(text(&refused.stderr).lines().last().unwrap()).unwrap();
        assert_eq!(told["code"], code, "{told}");
        assert!(!place.path().join("abide.db").exists());
    }
    let postgres = place.abide(&["--set", "store=postgres://nobody@127.0.0.1:1/none", "restore", "garbage"]);
    assert_eq!(postgres.status.code(), Some(1));
    assert!(text(&postgres.stderr).contains("pg_restore"), "{}", text(&postgres.stderr));
}
