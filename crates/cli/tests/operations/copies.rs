//! `abide verify` and `abide backup`, with and without a running daemon.

use serde_json::Value;

use crate::place::{OperatorTestHome, text};

fn verified(home: &OperatorTestHome, store: &str) -> Value {
    let setting = format!("store=sqlite:{store}");
    let output = home.abide(&["--set", &setting, "verify", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

#[test]
fn a_backup_of_a_running_daemon_verifies_and_holds_its_runs() {
    let home = OperatorTestHome::new("");
    let daemon = home.up(&[]);
    let run = daemon.run("ask open_text What now?");
    daemon.wait_for_status(&run, "waiting_user");
    assert!(home.run_ok(&["verify"]).contains(": consistent"));
    let copy = home.path().join("copies.db");
    let copied = home.run_ok(&["backup", copy.to_str().unwrap()]);
    assert!(copied.contains("copies.db"), "{copied}");
    let refused = home.abide(&["backup", copy.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("exists already"), "{}", text(&refused.stderr));
    let found = verified(&home, copy.to_str().unwrap());
    assert_eq!((found["ok"].as_bool(), found["runs"].as_u64()), (Some(true), Some(1)), "{found}");
    let refused = home.abide(&["verify", "--repair"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("abide down --keep"), "{}", text(&refused.stderr));
    // A daemon on the backup continues at the time of the copy.
    let later = daemon.run("say later");
    daemon.wait_for_status(&later, "succeeded");
    let refused = home.abide(&["restore", copy.to_str().unwrap(), "--json"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("ALREADY_RUNNING"), "{}", text(&refused.stderr));
    daemon.down(&home);
    let restored: Value =
        serde_json::from_str(&home.run_ok(&["restore", copy.to_str().unwrap(), "--json"])).unwrap();
    let previous = restored["previous"].as_str().unwrap();
    assert_eq!(verified(&home, previous)["runs"], 2, "the previous database is kept: {restored}");
    assert_eq!(restored["missing"]["first"].as_u64(), restored["entries"].as_u64().map(|it| it + 1));
    let again = home.up(&[]);
    let found = again.wait_for_status(&run, "waiting_user");
    let question = found["pending_interaction_id"].as_str().unwrap();
    again.post(&format!("/v1/interactions/{question}/reply"), &serde_json::json!({ "text": "continue" }));
    again.wait_for_status(&run, "succeeded");
}

#[test]
fn tables_that_were_tampered_with_are_found_named_and_repaired() {
    let home = OperatorTestHome::new("");
    let daemon = home.up(&[]);
    let run = daemon.run("say hello");
    daemon.wait_for_status(&run, "succeeded");
    daemon.down(&home);
    let database = rusqlite::Connection::open(home.path().join("abide.db")).unwrap();
    database.execute("UPDATE runs SET status = 'failed'", []).unwrap();
    database.execute("DELETE FROM turns", []).unwrap();
    drop(database);
    let output = home.abide(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let (said, advice) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains(&run) && said.contains("inconsistent"), "{said}{advice}");
    assert!(advice.contains("abide verify --repair"), "{advice}");
    let repaired = home.run_ok(&["verify", "--repair"]);
    assert!(repaired.contains("rebuilt") && repaired.contains(": consistent"), "{repaired}");
    assert!(home.run_ok(&["verify"]).contains(": consistent"));
    let daemon = home.up(&[]);
    daemon.wait_for_status(&run, "succeeded");
}

#[test]
fn a_home_without_a_store_is_not_given_one_by_looking() {
    let home = OperatorTestHome::new("");
    for words in [&["verify"][..], &["backup", "copy.db"]] {
        let output = home.abide(words);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("there is no"), "{}", text(&output.stderr));
    }
    assert!(!home.path().join("abide.db").exists());
}
