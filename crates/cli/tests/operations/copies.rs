//! `abide verify` and `abide backup`, with and without a running daemon.

use abide_testkit::daemon::TestHome;
use serde_json::Value;

use crate::new_home;

fn verified(home: &TestHome, store: &str) -> Value {
    let setting = format!("store=sqlite:{store}");
    let output = home.run(&["--set", &setting, "verify", "--json"]);
    serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{}", output.stderr))
}

#[test]
fn a_backup_of_a_running_daemon_verifies_and_holds_its_runs() {
    let home = new_home("");
    let daemon = home.start();
    let run = home.run_parrot("ask open_text What now?");
    home.wait_for_status(&run, "waiting_user");
    assert!(home.run_ok(&["verify"]).contains(": consistent"));
    let copy = home.path().join("copies.db");
    let copied = home.run_ok(&["backup", copy.to_str().unwrap()]);
    assert!(copied.contains("copies.db"), "{copied}");
    let refused = home.run(&["backup", copy.to_str().unwrap()]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("already exists"), "{}", refused.stderr);
    let verified_copy = verified(&home, copy.to_str().unwrap());
    assert_eq!(
        (verified_copy["ok"].as_bool(), verified_copy["runs"].as_u64()),
        (Some(true), Some(1)),
        "{verified_copy}"
    );
    let refused = home.run(&["verify", "--repair"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("abide down --keep"), "{}", refused.stderr);
    // A daemon on the backup continues at the time of the copy.
    let later = home.run_parrot("say later");
    home.wait_for_status(&later, "succeeded");
    let refused = home.run(&["restore", copy.to_str().unwrap(), "--json"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("ALREADY_RUNNING"), "{}", refused.stderr);
    home.down(daemon);
    let restored: Value =
        serde_json::from_str(&home.run_ok(&["restore", copy.to_str().unwrap(), "--json"])).unwrap();
    let previous = restored["previous"].as_str().unwrap();
    assert_eq!(verified(&home, previous)["runs"], 2, "the previous database is kept: {restored}");
    assert_eq!(restored["missing"]["first"].as_u64(), restored["entries"].as_u64().map(|it| it + 1));
    let _again = home.start();
    let run_view = home.wait_for_status(&run, "waiting_user");
    let question = run_view["pending_interaction_id"].as_str().unwrap();
    home.post(&format!("/v1/interactions/{question}/reply"), &serde_json::json!({ "text": "continue" }));
    home.wait_for_status(&run, "succeeded");
}

#[test]
fn tables_that_were_tampered_with_are_found_named_and_repaired() {
    let home = new_home("");
    let daemon = home.start();
    let run = home.run_parrot("say hello");
    home.wait_for_status(&run, "succeeded");
    home.down(daemon);
    let database = rusqlite::Connection::open(home.path().join("abide.db")).unwrap();
    database.execute("UPDATE runs SET status = 'failed'", []).unwrap();
    database.execute("DELETE FROM turns", []).unwrap();
    drop(database);
    let output = home.run(&["verify"]);
    assert_eq!(output.code, Some(1));
    let (report, advice) = (output.stdout, output.stderr);
    assert!(report.contains(&run) && report.contains("inconsistent"), "{report}{advice}");
    assert!(advice.contains("abide verify --repair"), "{advice}");
    let repaired = home.run_ok(&["verify", "--repair"]);
    assert!(repaired.contains("rebuilt") && repaired.contains(": consistent"), "{repaired}");
    assert!(home.run_ok(&["verify"]).contains(": consistent"));
    let _daemon = home.start();
    home.wait_for_status(&run, "succeeded");
}

#[test]
fn a_home_without_a_store_is_not_given_one_by_looking() {
    let home = new_home("");
    for words in [&["verify"][..], &["backup", "copy.db"]] {
        let output = home.run(words);
        assert_eq!(output.code, Some(1));
        assert!(output.stderr.contains("does not exist"), "{}", output.stderr);
    }
    assert!(!home.path().join("abide.db").exists());
}
