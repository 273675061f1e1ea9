//! Strict runs: they wait for a person, with or without a process (A8), and report the outcome (A10).

use abide_testkit::wait;
use serde_json::{Value, json};

use crate::stage::{DaemonEnding, DaemonTestHome, ENDINGS, ReplyPath};

const SCRIPT: &str = "append log before\nask open_text What now?\nappend log after $reply\nsay It is $reply.";

#[test]
fn a_resumable_run_waits_without_a_process_and_goes_on_with_a_new_one() {
    for (ending, door) in ENDINGS.into_iter().zip([ReplyPath::Http, ReplyPath::CommandLine]) {
        let mut stage = DaemonTestHome::new();
        let run = stage.create("parrot", SCRIPT, json!({ "session_timeout_sec": 1 }));
        let waiting = stage.wait(&run, "waiting_user");
        assert_eq!(
            (&waiting["profile"]["kind"], &waiting["wait_deadline_at"]),
            (&json!("resumable"), &Value::Null)
        );
        stage.wait_for_no_keeper();
        stage.restart(ending);
        let still = stage.wait(&run, "waiting_user");
        assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
        assert_eq!(stage.get("/v1/status")["slots_held"], 0);
        stage.reply(&still, "red", door);
        let done = stage.wait(&run, "succeeded");
        assert_eq!(done["result"]["text"], "It is red.");
        assert_eq!(stage.lines(), ["before", "after red"], "{ending:?} {door:?}");
        let pids = stage.pids(&run);
        assert!(pids.len() == 2 && pids[0] != pids[1], "{pids:?}");
        stage.wait_for_no_keeper();
    }
}

#[test]
fn a_sticky_run_keeps_its_process_and_its_slot_and_the_same_process_is_answered() {
    for (ending, door) in ENDINGS.into_iter().zip([ReplyPath::CommandLine, ReplyPath::Http]) {
        let mut stage = DaemonTestHome::new();
        let run = stage.create("parrot-sticky", SCRIPT, json!({}));
        let waiting = stage.wait(&run, "waiting_user");
        assert_eq!(waiting["profile"]["kind"], "sticky_process");
        assert!(waiting["wait_deadline_at"].is_string(), "{waiting}");
        stage.restart(ending);
        let still = stage.wait(&run, "waiting_user");
        assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
        assert_eq!(still["wait_deadline_at"], waiting["wait_deadline_at"], "a restart gives no more time");
        assert_eq!(stage.get("/v1/status")["slots_held"], 1);
        stage.reply(&still, "red", door);
        let done = stage.wait(&run, "succeeded");
        assert_eq!(done["result"]["text"], "It is red.");
        assert_eq!(stage.lines(), ["before", "after red"], "{ending:?} {door:?}");
        let pids = stage.pids(&run);
        assert!(!pids.is_empty() && pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
        stage.wait_for_no_keeper();
    }
}

#[test]
fn a_sticky_run_that_nobody_answers_fails_with_its_process() {
    for ending in ENDINGS {
        let mut stage = DaemonTestHome::new();
        let run = stage.create("parrot-sticky", SCRIPT, json!({ "session_timeout_sec": 1 }));
        stage.wait(&run, "waiting_user");
        stage.restart(ending);
        let failed = stage.wait(&run, "failed");
        assert_eq!(failed["error"]["code"], "INTERACTION_WAIT_TIMEOUT");
        assert_eq!(failed["pending_interaction_id"], Value::Null);
        assert_eq!(stage.questions(&run)[0]["state"], "closed");
        assert_eq!(stage.lines(), ["before"]);
        stage.wait_for_no_keeper();
        assert_eq!(stage.get("/v1/status")["slots_held"], 0);
    }
}

#[test]
fn a_sticky_process_that_died_while_no_daemon_was_there_is_lost() {
    for (ending, keeper_too) in [(DaemonEnding::Killed, false), (DaemonEnding::Kept, true)] {
        let mut stage = DaemonTestHome::new();
        let run = stage.create("parrot-sticky", SCRIPT, json!({}));
        stage.wait(&run, "waiting_user");
        stage.down(ending);
        let processes = stage.home.processes();
        let mut victims: Vec<_> = processes.iter().filter(|left| left.command.contains("--sticky")).collect();
        if keeper_too {
            victims.extend(processes.iter().filter(|left| left.command.contains("__keeper")));
        }
        assert!(!victims.is_empty(), "{processes:?}");
        for victim in victims {
            stage.home.kill(victim);
        }
        stage.up();
        let failed = stage.wait(&run, "failed");
        assert_eq!(failed["error"]["code"], "INTERACTION_PROCESS_LOST", "{failed}");
        assert_eq!(stage.questions(&run)[0]["state"], "closed");
        stage.wait_for_no_keeper();
    }
}

#[test]
fn a_running_turn_survives_and_what_it_said_meanwhile_is_heard() {
    for ending in ENDINGS {
        for engine in ["parrot", "parrot-sticky"] {
            let mut stage = DaemonTestHome::new();
            // Long enough that the turn is running when the daemon ends, and has finished when the next daemon is
            // ready.
            let script = "append log 1\nsleep 4\nprogress on\nappend log 2\nsay done";
            let run = stage.create(engine, script, json!({}));
            stage.wait(&run, "running");
            wait::until("the turn is at work", || stage.lines() == ["1"]);
            stage.down(ending);
            assert_eq!(stage.lines(), ["1"], "the turn was over before the daemon");
            wait::until("the turn has gone on without a daemon", || stage.lines() == ["1", "2"]);
            stage.up();
            let done = stage.wait(&run, "succeeded");
            assert_eq!((&done["result"]["text"], stage.lines().len()), (&json!("done"), 2));
            assert_eq!(stage.pids(&run).len(), 1, "{engine} {ending:?}");
            stage.wait_for_no_keeper();
        }
    }
}
