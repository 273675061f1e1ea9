//! A run whose row cannot be read does not block other runs, and it is reported to the operator.

use serde_json::json;

use crate::harness::{DaemonEnding, DaemonTestHome};

#[test]
fn a_damaged_run_does_not_stop_the_deadlines_of_others() {
    let mut home = DaemonTestHome::new();
    let options = json!({ "interactive_require_user_reply": false, "session_timeout_sec": 2 });
    let asks = "ask open_text/engine_judgement What now?\nsay done";
    let damaged = home.create("parrot", asks, options.clone());
    home.wait_for_status(&damaged, "waiting_user");
    let sound = home.create("parrot", asks, options);
    home.wait_for_status(&sound, "waiting_user");
    home.down(DaemonEnding::Terminated);
    let store = rusqlite::Connection::open(home.path().join("abide.db")).expect("it opens");
    let changed = store
        .execute("UPDATE runs SET body = '{\"nothing\": 1}' WHERE run_id = ?1", [&damaged])
        .expect("it can be written");
    assert_eq!(changed, 1);
    drop(store);
    home.up();
    // Its deadline was the first.
    let done = home.wait_for_status(&sound, "succeeded");
    assert_eq!(done["auto_decision_count"], 1);
    let status = home.get("/v1/status");
    assert!(status["unprocessable_runs"][&damaged].is_string(), "{status}");
    assert!(home.run(&["status"]).stdout.contains(&damaged));
    assert!(home.log_text().contains(&damaged));
    // Retries have a backoff.
    let tries = home.log_text().matches(&damaged).count();
    assert!(tries < 20, "{tries} lines about it");
    let verified = home.run(&["verify"]);
    assert!(verified.code == Some(1) && verified.stdout.contains(&damaged), "{verified:?}");
}
