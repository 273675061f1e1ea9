//! `abide verify` and `abide backup`, with and without a running daemon.

use serde_json::Value;

use crate::place::{OperatorTestHome, text};

fn verified(place: &OperatorTestHome, store: &str) -> Value {
    let setting = format!("store=sqlite:{store}");
    let output = place.abide(&["--set", &setting, "verify", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

#[test]
fn a_backup_of_a_running_daemon_verifies_and_holds_its_runs() {
    let place = OperatorTestHome::new("");
    let daemon = place.up(&[]);
    let run = daemon.run("ask open_text What now?");
    daemon.reaches(&run, "waiting_user");
    assert!(place.told(&["verify"]).contains("all as it should be"));
    let copy = place.path().join("copies.db");
    let copied = place.told(&["backup", copy.to_str().unwrap()]);
    assert!(copied.contains("copies.db"), "{copied}");
    let refused = place.abide(&["backup", copy.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("exists already"), "{}", text(&refused.stderr));
    let found = verified(&place, copy.to_str().unwrap());
    assert_eq!((found["ok"].as_bool(), found["runs"].as_u64()), (Some(true), Some(1)), "{found}");
    let refused = place.abide(&["verify", "--repair"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("abide down --keep"), "{}", text(&refused.stderr));
    // A daemon on the backup continues at the time of the copy.
    let later = daemon.run("say later");
    daemon.reaches(&later, "succeeded");
    let refused = place.abide(&["restore", copy.to_str().unwrap(), "--json"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("ALREADY_RUNNING"), "{}", text(&refused.stderr));
    daemon.down(&place);
    let restored: Value =
        serde_json::from_str(&place.told(&["restore", copy.to_str().unwrap(), "--json"])).unwrap();
    let kept = restored["kept"].as_str().unwrap();
    assert_eq!(verified(&place, kept)["runs"], 2, "what was there is kept: {restored}");
    assert_eq!(restored["missing"]["first"].as_u64(), restored["entries"].as_u64().map(|it| it + 1));
    let again = place.up(&[]);
    let found = again.reaches(&run, "waiting_user");
    let question = found["pending_interaction_id"].as_str().unwrap();
    again.post(&format!("/v1/interactions/{question}/reply"), &serde_json::json!({ "text": "go on" }));
    again.reaches(&run, "succeeded");
}

#[test]
fn tables_that_were_tampered_with_are_found_named_and_repaired() {
    let place = OperatorTestHome::new("");
    let daemon = place.up(&[]);
    let run = daemon.run("say hello");
    daemon.reaches(&run, "succeeded");
    daemon.down(&place);
    let database = rusqlite::Connection::open(place.path().join("abide.db")).unwrap();
    database.execute("UPDATE runs SET status = 'failed'", []).unwrap();
    database.execute("DELETE FROM turns", []).unwrap();
    drop(database);
    let output = place.abide(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let (said, advice) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains(&run) && said.contains("not as it should be"), "{said}{advice}");
    assert!(advice.contains("abide verify --repair"), "{advice}");
    let repaired = place.told(&["verify", "--repair"]);
    assert!(repaired.contains("derived anew") && repaired.contains("all as it should be"), "{repaired}");
    assert!(place.told(&["verify"]).contains("all as it should be"));
    let daemon = place.up(&[]);
    daemon.reaches(&run, "succeeded");
}

#[test]
fn a_home_without_a_store_is_not_given_one_by_looking() {
    let place = OperatorTestHome::new("");
    for words in [&["verify"][..], &["backup", "copy.db"]] {
        let output = place.abide(words);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("there is no"), "{}", text(&output.stderr));
    }
    assert!(!place.path().join("abide.db").exists());
}
