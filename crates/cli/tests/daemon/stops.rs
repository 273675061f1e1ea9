//! Interrupt, supersede, steer and a lost turn, with the real binary (E8) (E9).

use abide_testkit::daemon::HomeProcess;
use serde_json::{Value, json};

use crate::stage::{DaemonTestHome, ReplyPath};

const BUSY: &str = "append log before\nprogress busy\nsleep 600\nappend log never";

#[test]
fn an_interrupt_stops_the_turn_and_the_session_goes_on_as_the_person_says() {
    for engine in ["parrot", "parrot-sticky"] {
        let stage = DaemonTestHome::new();
        let run = stage.create(engine, BUSY, json!({}));
        stage.wait_for_progress(&run, "busy");
        stage.order(&run, "interrupt");
        let waiting = stage.wait(&run, "waiting_user");
        assert_eq!(stage.turns(&run)[0]["execution_status"], "interrupted", "{engine}");
        stage.reply(&waiting, "append log after", ReplyPath::CommandLine);
        stage.wait(&run, "succeeded");
        let turns = stage.turns(&run);
        assert_eq!(
            (turns.len(), stage.lines()),
            (2, vec!["before".to_owned(), "after".to_owned()]),
            "{engine}"
        );
        // A sticky session continues in the same process.
        let pids = stage.pids(&run);
        assert_eq!(pids[0] == pids[1], engine == "parrot-sticky", "{pids:?}");
        stage.wait_for_no_keeper();
    }
}

#[test]
fn e9_a_message_supersedes_the_turn_and_nothing_of_it_is_shown() {
    for engine in ["parrot", "parrot-sticky"] {
        let stage = DaemonTestHome::new();
        let run = stage.create(engine, BUSY, json!({}));
        stage.wait_for_progress(&run, "busy");
        let message = stage.send(&run, "append log instead\nsay new", "supersede");
        let done = stage.wait(&run, "succeeded");
        assert_eq!(done["result"]["text"], "new", "{engine}");
        let turns = stage.turns(&run);
        let replaced = ["execution_status", "delivery_status", "superseded_by_message_id", "reply"];
        let expected = [json!("superseded"), json!("suppressed"), json!(message), Value::Null];
        assert_eq!(replaced.map(|name| turns[0][name].clone()), expected, "{engine}: {}", turns[0]);
        assert_eq!(turns[0]["superseded_by_turn_id"], turns[1]["turn_id"]);
        assert_eq!(
            (turns.len(), stage.lines()),
            (2, vec!["before".to_owned(), "instead".to_owned()]),
            "{engine}"
        );
        stage.wait_for_no_keeper();
    }
}

#[test]
fn a_message_steers_the_turn_at_work() {
    for engine in ["parrot", "parrot-sticky"] {
        let stage = DaemonTestHome::new();
        // The message arrives during the turn: the turn sleeps much longer than the delivery takes.
        let run = stage.create(engine, "progress asleep\nsleep 10\nsay done", json!({}));
        stage.wait_for_progress(&run, "asleep");
        let message = stage.send(&run, "append log steered\nsay more", "steer");
        let done = stage.wait(&run, "succeeded");
        let text = done["result"]["text"].as_str().unwrap_or_default();
        assert!(text.contains("done") && text.contains("more"), "{engine}: {text}");
        assert_eq!(stage.lines(), ["steered"], "{engine}");
        let turns = stage.turns(&run);
        assert_eq!(turns.len(), 1, "{engine}: it went into the turn at work");
        let inbound = stage.get(&format!("/v1/inbound/api/{message}"));
        assert_eq!(inbound["turn_id"], turns[0]["turn_id"], "{inbound}");
    }
}

#[test]
fn e8_a_turn_whose_keeper_dies_needs_a_person_and_is_never_run_again() {
    let stage = DaemonTestHome::new();
    let run = stage.create("parrot", BUSY, json!({}));
    stage.wait_for_progress(&run, "busy");
    let processes = stage.home.processes();
    let ours = |left: &&HomeProcess| left.command.contains("__keeper") || left.command.contains("__parrot");
    for victim in processes.iter().filter(ours) {
        stage.home.kill(victim);
    }
    let waiting = stage.wait(&run, "waiting_user");
    assert_eq!(stage.turns(&run)[0]["execution_status"], "recovery_required", "{:?}", stage.turns(&run));
    let questions = stage.questions(&run);
    assert_eq!((questions.len(), &questions[0]["asked_by"]), (1, &json!("abide")), "{questions:?}");
    stage.reply(&waiting, "continue", ReplyPath::Http);
    stage.wait(&run, "succeeded");
    assert_eq!(stage.lines(), ["before"], "what was lost is not run again");
    // An auto run asks no questions.
    let run = stage.create_in("auto", "parrot", BUSY);
    stage.wait_for_progress(&run, "busy");
    for victim in stage.home.processes().iter().filter(ours) {
        stage.home.kill(victim);
    }
    assert_eq!(stage.wait(&run, "failed")["error"]["code"], "RECOVERY_FAILED");
}
