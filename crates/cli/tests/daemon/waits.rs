//! Strict runs: they wait for a person, with or without a process (A8), and report the outcome (A10).

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::harness::{DaemonEnding, DaemonTestHome, ENDINGS, ReplyPath};

const SCRIPT: &str = "append log before\nask open_text What now?\nappend log after $reply\nsay It is $reply.";

#[test]
fn a_resumable_run_waits_without_a_process_and_continues_with_a_new_one() {
    for (ending, door) in ENDINGS.into_iter().zip([ReplyPath::Http, ReplyPath::CommandLine]) {
        let mut home = DaemonTestHome::new();
        let run = home.create("parrot", SCRIPT, json!({ "session_timeout_sec": 1 }));
        let waiting = home.wait_for_status(&run, "waiting_user");
        assert_eq!(
            (&waiting["profile"]["kind"], &waiting["wait_deadline_at"]),
            (&json!("resumable"), &Value::Null)
        );
        home.wait_for_no_keeper();
        home.restart(ending);
        let still = home.wait_for_status(&run, "waiting_user");
        assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
        assert_eq!(home.get("/v1/status")["slots_held"], 0);
        home.reply(&still, "red", door);
        let done = home.wait_for_status(&run, "succeeded");
        assert_eq!(done["result"]["text"], "It is red.");
        assert_eq!(home.log_lines(), ["before", "after red"], "{ending:?} {door:?}");
        let pids = home.pids(&run);
        assert!(pids.len() == 2 && pids[0] != pids[1], "{pids:?}");
        home.wait_for_no_keeper();
    }
}

#[test]
fn a_sticky_run_keeps_its_process_and_its_slot_and_the_same_process_is_answered() {
    for (ending, door) in ENDINGS.into_iter().zip([ReplyPath::CommandLine, ReplyPath::Http]) {
        let mut home = DaemonTestHome::new();
        let run = home.create("parrot-sticky", SCRIPT, json!({}));
        let waiting = home.wait_for_status(&run, "waiting_user");
        assert_eq!(waiting["profile"]["kind"], "sticky_process");
        assert!(waiting["wait_deadline_at"].is_string(), "{waiting}");
        home.restart(ending);
        let still = home.wait_for_status(&run, "waiting_user");
        assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
        assert_eq!(still["wait_deadline_at"], waiting["wait_deadline_at"], "a restart gives no more time");
        assert_eq!(home.get("/v1/status")["slots_held"], 1);
        home.reply(&still, "red", door);
        let done = home.wait_for_status(&run, "succeeded");
        assert_eq!(done["result"]["text"], "It is red.");
        assert_eq!(home.log_lines(), ["before", "after red"], "{ending:?} {door:?}");
        let pids = home.pids(&run);
        assert!(!pids.is_empty() && pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
        home.wait_for_no_keeper();
    }
}

#[test]
fn an_unanswered_sticky_run_fails_and_ends_its_process() {
    for ending in ENDINGS {
        let mut home = DaemonTestHome::new();
        let run = home.create("parrot-sticky", SCRIPT, json!({ "session_timeout_sec": 1 }));
        home.wait_for_status(&run, "waiting_user");
        home.restart(ending);
        let failed = home.wait_for_status(&run, "failed");
        assert_eq!(failed["error"]["code"], "INTERACTION_WAIT_TIMEOUT");
        assert_eq!(failed["pending_interaction_id"], Value::Null);
        assert_eq!(home.questions(&run)[0]["state"], "closed");
        assert_eq!(home.log_lines(), ["before"]);
        home.wait_for_no_keeper();
        assert_eq!(home.get("/v1/status")["slots_held"], 0);
    }
}

#[test]
fn a_sticky_process_that_died_while_no_daemon_was_there_is_lost() {
    for (ending, keeper_too) in [(DaemonEnding::Killed, false), (DaemonEnding::Terminated, true)] {
        let mut home = DaemonTestHome::new();
        let run = home.create("parrot-sticky", SCRIPT, json!({}));
        home.wait_for_status(&run, "waiting_user");
        home.down(ending);
        let processes = home.processes();
        let mut victims: Vec<_> =
            processes.iter().filter(|process| process.command.contains("--sticky")).collect();
        if keeper_too {
            victims.extend(processes.iter().filter(|process| process.command.contains("__keeper")));
        }
        assert!(!victims.is_empty(), "{processes:?}");
        for victim in victims {
            home.kill(victim);
        }
        home.up();
        let failed = home.wait_for_status(&run, "failed");
        assert_eq!(failed["error"]["code"], "INTERACTION_PROCESS_LOST", "{failed}");
        assert_eq!(home.questions(&run)[0]["state"], "closed");
        home.wait_for_no_keeper();
    }
}

#[test]
fn a_running_turn_survives_and_its_output_is_processed() {
    for ending in ENDINGS {
        for engine in ["parrot", "parrot-sticky"] {
            let mut home = DaemonTestHome::new();
            // Long enough that the turn is running when the daemon ends, and has finished when the next daemon is
            // ready.
            let script = "append log 1\nsleep 4\nprogress on\nappend log 2\nsay done";
            let run = home.create(engine, script, json!({}));
            home.wait_for_status(&run, "running");
            wait::until("the turn is at work", || home.log_lines() == ["1"]);
            home.down(ending);
            assert_eq!(home.log_lines(), ["1"], "the turn was over before the daemon");
            wait::until("the turn has continued without a daemon", || home.log_lines() == ["1", "2"]);
            home.up();
            let done = home.wait_for_status(&run, "succeeded");
            assert_eq!((&done["result"]["text"], home.log_lines().len()), (&json!("done"), 2));
            assert_eq!(home.pids(&run).len(), 1, "{engine} {ending:?}");
            home.wait_for_no_keeper();
        }
    }
}
