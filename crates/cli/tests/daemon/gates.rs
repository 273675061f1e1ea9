//! Approvals within a turn keep their process on both engines (A8). Only a person's yes approves.

use serde_json::{Value, json};

use crate::harness::{DaemonTestHome, ENDINGS, ReplyPath};

const SCRIPT: &str = "append log before\ngate May I?\nappend log after $reply\nsay done";

#[test]
fn a_gate_stays_open_over_a_restart_and_its_own_process_is_answered() {
    for (ending, door) in ENDINGS.into_iter().zip([ReplyPath::Http, ReplyPath::CommandLine]) {
        for engine in ["parrot", "parrot-sticky"] {
            let mut home = DaemonTestHome::new();
            let run = home.create(engine, SCRIPT, json!({}));
            let waiting = home.wait_for_status(&run, "waiting_user");
            // Strict: an engine that needs its process to wait has a deadline, the other one has none.
            assert_eq!(waiting["wait_deadline_at"].is_null(), engine == "parrot", "{waiting}");
            home.restart(ending);
            let still = home.wait_for_status(&run, "waiting_user");
            assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
            home.reply(&still, "yes", door);
            home.wait_for_status(&run, "succeeded");
            assert_eq!(home.log_lines(), ["before", "after yes"], "{engine} {ending:?}");
            assert_eq!(home.pids(&run).len(), 1, "the process that asked is the one that continues");
            home.wait_for_no_keeper();
        }
    }
}

#[test]
fn an_unanswered_approval_is_declined_by_policy() {
    for ending in ENDINGS {
        for engine in ["parrot", "parrot-sticky"] {
            let mut home = DaemonTestHome::new();
            let options = json!({ "interactive_require_user_reply": false, "session_timeout_sec": 1 });
            let run = home.create(engine, SCRIPT, options);
            home.wait_for_status(&run, "waiting_user");
            home.restart(ending);
            let done = home.wait_for_status(&run, "succeeded");
            assert_eq!(done["auto_decision_count"], 1);
            let question = &home.questions(&run)[0];
            assert_eq!(question["resolution_mode"], "auto_decide_timeout");
            assert_ne!(question["auto_decide_reason"], Value::Null);
            let lines = home.log_lines();
            assert!(lines.len() == 2 && lines[1].starts_with("after No."), "{engine}: {lines:?}");
        }
    }
}
