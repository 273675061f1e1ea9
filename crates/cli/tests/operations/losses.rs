//! Loss of acknowledged input: the daemon refuses to start without an explicit option, and accepts no more input when
//! its database is gone.

use std::fs;

use abide_testkit::{daemon::TestHome, wait};
use serde_json::{Value, json};

use crate::new_home;

fn new_run() -> Value {
    json!({ "engine": "parrot", "prompt": "say hello", "execution_mode": "interactive" })
}

#[test]
fn lost_input_is_refused_until_it_is_accepted_and_processes_of_lost_runs_are_ended() {
    let home = new_home("");
    let daemon = home.start();
    let body = json!({
        "engine": "parrot-sticky", "prompt": "ask open_text What now?", "execution_mode": "interactive",
    });
    let run = home.post("/v1/runs", &body)["run_id"].as_str().unwrap().to_owned();
    home.wait_for_status(&run, "waiting_user");
    daemon.kill();
    let log = home.path().join("abide.db-wal");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    fs::write(&log, "").unwrap();

    let refused = home.run(&["up", "--json"]);
    assert_eq!(refused.code, Some(1));
    let report: Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!(report["code"], "INPUT_LOST");
    let detail = report["detail"].as_str().unwrap();
    for part in ["abide.db", "entry 0,", "abide restore FILE", "abide up --accept-loss"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    let refused = home.run(&["up", "--detach"]);
    assert!(refused.stderr.contains("--accept-loss"), "{}", refused.stderr);
    let verified = home.run(&["verify", "--json"]);
    assert_eq!(verified.code, Some(1));
    let report: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert!(report["advice"].as_str().unwrap().contains("--accept-loss"), "{report}");
    assert!(process_names(&home).iter().any(|name| name.starts_with(&run)), "its process is still held");

    let daemon = home.start_with(&["--accept-loss"], &[]);
    assert_eq!(home.try_get(&format!("/v1/runs/{run}")).status, 404);
    wait::until("its process is ended, because it can no longer be answered", || {
        process_names(&home).is_empty()
    });
    let again = home.run_parrot("say hello");
    home.wait_for_status(&again, "succeeded");
    let stderr = daemon.stderr();
    daemon.kill();
    assert!(stderr.contains("--accept-loss") && stderr.contains(&run), "{stderr}");
    drop(home.start());
    let report: Value = serde_json::from_str(&home.run_ok(&["verify", "--json"])).unwrap();
    assert!(report["notes"][0].as_str().unwrap().contains("a loss was accepted at"), "{report}");
}

/// Returns the names of the runs' kept processes.
fn process_names(home: &TestHome) -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["keepers", "keepers/runs"] {
        let entries = fs::read_dir(home.path().join(folder)).into_iter().flatten();
        names.extend(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
    }
    names.retain(|name| name.starts_with("run_"));
    names
}

#[test]
fn a_background_daemon_can_accept_a_loss() {
    let home = new_home("");
    let daemon = home.start();
    let run = home.run_parrot("say hello");
    home.wait_for_status(&run, "succeeded");
    daemon.kill();
    fs::write(home.path().join("abide.db-wal"), "").unwrap();
    home.run_ok(&["up", "--detach", "--accept-loss"]);
    assert_eq!(home.run_ok(&["ls", "--json"]).trim(), "[]");
    home.run_ok(&["down"]);
}

#[test]
fn a_daemon_whose_database_is_deleted_takes_no_more_input_and_says_why() {
    let home = new_home("");
    let _daemon = home.start();
    let run = home.run_parrot("say hello");
    home.wait_for_status(&run, "succeeded");
    assert_eq!(home.try_get("/readyz").status, 200);
    fs::remove_file(home.path().join("abide.db")).unwrap();
    let refused = home.try_post("/v1/runs", &new_run());
    assert_eq!((refused.status, refused.str_at("/code")), (503, "STORE_GONE"), "{}", refused.text);
    assert!(refused.str_at("/detail").contains("abide.db was deleted"), "{}", refused.text);
    let refused = home.try_get("/readyz");
    assert_eq!((refused.status, refused.str_at("/code")), (503, "STORE_GONE"), "{}", refused.text);
    let refused = home.run(&["up"]);
    assert_eq!(refused.code, Some(1), "no second daemon takes its place");
    wait::until("it is in the figures", || home.get_text("/metrics").contains("abide_ready 0"));
}

#[test]
fn a_deleted_database_is_logged_and_its_daemon_can_be_stopped() {
    let home = new_home("");
    home.run_ok(&["up", "--detach"]);
    fs::remove_file(home.path().join("abide.db")).unwrap();
    let log = home.path().join("logs").join("daemon.log");
    wait::until("the log says so", || {
        let log_text = fs::read_to_string(&log).unwrap_or_default();
        log_text.contains("no input is accepted") && log_text.contains("abide.db was deleted")
    });
    home.run_ok(&["down", "--keep"]);
    assert!(!home.path().join("abide.db").exists(), "nothing is made in its place");
}

#[test]
fn an_idle_daemon_whose_home_is_deleted_says_so_within_seconds() {
    let home = new_home("");
    let _daemon = home.start();
    let client = home.client().unwrap();
    fs::remove_dir_all(home.path()).unwrap();
    let problem = wait::until_some("it notices", || {
        let response = client.get("/readyz").unwrap();
        (response.status == 503).then_some(response)
    });
    assert_eq!(problem.str_at("/code"), "STORE_GONE", "{}", problem.text);
    fs::create_dir_all(home.path()).unwrap();
}

#[test]
fn an_invalid_backup_is_refused_with_the_reason() {
    let home = new_home("");
    fs::write(home.path().join("garbage"), [0x5a; 9000]).unwrap();
    for (file, code) in [("garbage", "STORE_DAMAGED"), ("none", "FAILED")] {
        let refused = home.run(&["restore", file, "--json"]);
        assert_eq!(refused.code, Some(1));
        // The first command in a home may print a message about its mode.
        let report: Value = serde_json::from_str(refused.stderr.lines().last().unwrap()).unwrap();
        assert_eq!(report["code"], code, "{report}");
        assert!(!home.path().join("abide.db").exists());
    }
    let postgres = home.run(&["--set", "store=postgres://unknown@127.0.0.1:1/none", "restore", "garbage"]);
    assert_eq!(postgres.code, Some(1));
    assert!(postgres.stderr.contains("pg_restore"), "{}", postgres.stderr);
}
