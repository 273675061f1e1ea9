//! Interrupt, supersede, steer and a lost turn, with the real binary (E8) (E9).

use abide_testkit::daemon::HomeProcess;
use serde_json::{Value, json};

use crate::harness::{DaemonTestHome, ReplyPath};

const BUSY: &str = "append log before\nprogress busy\nsleep 600\nappend log never";

#[test]
fn an_interrupt_stops_the_turn_and_the_session_continues_as_the_person_says() {
    for engine in ["parrot", "parrot-sticky"] {
        let home = DaemonTestHome::new();
        let run = home.create(engine, BUSY, json!({}));
        home.wait_for_progress(&run, "busy");
        home.post_action(&run, "interrupt");
        let waiting = home.wait_for_status(&run, "waiting_user");
        assert_eq!(home.turns(&run)[0]["execution_status"], "interrupted", "{engine}");
        home.reply(&waiting, "append log after", ReplyPath::CommandLine);
        home.wait_for_status(&run, "succeeded");
        let turns = home.turns(&run);
        assert_eq!(
            (turns.len(), home.log_lines()),
            (2, vec!["before".to_owned(), "after".to_owned()]),
            "{engine}"
        );
        // A sticky session continues in the same process.
        let pids = home.pids(&run);
        assert_eq!(pids[0] == pids[1], engine == "parrot-sticky", "{pids:?}");
        home.wait_for_no_keeper();
    }
}

#[test]
fn e9_a_message_supersedes_the_turn_and_nothing_of_it_is_shown() {
    for engine in ["parrot", "parrot-sticky"] {
        let home = DaemonTestHome::new();
        let run = home.create(engine, BUSY, json!({}));
        home.wait_for_progress(&run, "busy");
        let message = home.send_message(&run, "append log instead\nsay new", "supersede");
        let done = home.wait_for_status(&run, "succeeded");
        assert_eq!(done["result"]["text"], "new", "{engine}");
        let turns = home.turns(&run);
        let replaced = ["execution_status", "delivery_status", "superseded_by_message_id", "reply"];
        let expected = [json!("superseded"), json!("suppressed"), json!(message), Value::Null];
        assert_eq!(replaced.map(|name| turns[0][name].clone()), expected, "{engine}: {}", turns[0]);
        assert_eq!(turns[0]["superseded_by_turn_id"], turns[1]["turn_id"]);
        assert_eq!(
            (turns.len(), home.log_lines()),
            (2, vec!["before".to_owned(), "instead".to_owned()]),
            "{engine}"
        );
        home.wait_for_no_keeper();
    }
}

#[test]
fn a_message_steers_the_turn_at_work() {
    for engine in ["parrot", "parrot-sticky"] {
        let home = DaemonTestHome::new();
        // The message arrives during the turn: the turn sleeps much longer than the delivery takes.
        let run = home.create(engine, "progress asleep\nsleep 10\nsay done", json!({}));
        home.wait_for_progress(&run, "asleep");
        let message = home.send_message(&run, "append log steered\nsay more", "steer");
        let done = home.wait_for_status(&run, "succeeded");
        let text = done["result"]["text"].as_str().unwrap_or_default();
        assert!(text.contains("done") && text.contains("more"), "{engine}: {text}");
        assert_eq!(home.log_lines(), ["steered"], "{engine}");
        let turns = home.turns(&run);
        assert_eq!(turns.len(), 1, "{engine}: it went into the turn at work");
        let inbound = home.get(&format!("/v1/inbound/api/{message}"));
        assert_eq!(inbound["turn_id"], turns[0]["turn_id"], "{inbound}");
    }
}

#[test]
fn e8_a_turn_whose_keeper_dies_needs_a_person_and_is_never_run_again() {
    let home = DaemonTestHome::new();
    let run = home.create("parrot", BUSY, json!({}));
    home.wait_for_progress(&run, "busy");
    let processes = home.processes();
    let ours = |left: &&HomeProcess| left.command.contains("__keeper") || left.command.contains("__parrot");
    for victim in processes.iter().filter(ours) {
        home.kill(victim);
    }
    let waiting = home.wait_for_status(&run, "waiting_user");
    assert_eq!(home.turns(&run)[0]["execution_status"], "recovery_required", "{:?}", home.turns(&run));
    let questions = home.questions(&run);
    assert_eq!((questions.len(), &questions[0]["asked_by"]), (1, &json!("abide")), "{questions:?}");
    home.reply(&waiting, "continue", ReplyPath::Http);
    home.wait_for_status(&run, "succeeded");
    assert_eq!(home.log_lines(), ["before"], "a lost turn is not run again");
    // An auto run asks no questions.
    let run = home.create_in("auto", "parrot", BUSY);
    home.wait_for_progress(&run, "busy");
    for victim in home.processes().iter().filter(ours) {
        home.kill(victim);
    }
    assert_eq!(home.wait_for_status(&run, "failed")["error"]["code"], "RECOVERY_FAILED");
}
