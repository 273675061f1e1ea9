//! `abide down`: the effect on each run, the printed summary, and the behaviour after the next start.

use serde_json::{Value, json};

use crate::stage::{DaemonTestHome, ReplyPath};

const BUSY: &str = "append log before\nprogress busy\nsleep 600\nappend log never";
const GATE: &str = "append log before\ngate May I?\nappend log after $reply";

/// Returns the entry of a run in the output of `abide down`.
fn told<'a>(stopped: &'a Value, run: &str) -> &'a Value {
    let runs = stopped["runs"].as_array().map_or(&[][..], Vec::as_slice);
    runs.iter().find(|told| told["run_id"] == run).unwrap_or(&Value::Null)
}

fn summary(told: &Value) -> [&str; 3] {
    ["was", "status", "stopped"].map(|name| match told[name].as_bool() {
        Some(true) => "yes",
        Some(false) => "no",
        None => told[name].as_str().unwrap_or_default(),
    })
}

#[test]
fn a_turn_at_work_is_interrupted_and_a_person_says_how_it_goes_on() {
    for engine in ["parrot", "parrot-sticky"] {
        let mut stage = DaemonTestHome::new();
        let run = stage.create(engine, BUSY, json!({}));
        stage.wait_for_progress(&run, "busy");
        let stopped = stage.shut_down();
        assert_eq!(summary(told(&stopped, &run)), ["turn", "waiting_user", "yes"], "{stopped:#}");
        assert_eq!(stage.home.keepers(), Vec::<String>::new());
        stage.up();
        let waiting = stage.wait(&run, "waiting_user");
        assert_eq!(stage.turns(&run)[0]["execution_status"], "interrupted");
        let question = &stage.questions(&run)[0];
        assert_eq!(question["asked_by"], "abide", "{question}");
        let options: Vec<&Value> =
            question["options"].as_array().expect("it has options").iter().map(|it| &it["label"]).collect();
        assert_eq!(options, ["continue", "stop"]);
        stage.reply(&waiting, "append log more", ReplyPath::CommandLine);
        if engine == "parrot" {
            let done = stage.wait(&run, "succeeded");
            assert_eq!(done["turn_index"], 2);
            assert_eq!(stage.lines(), ["before", "more"], "the session goes on in a new turn");
        } else {
            // Its session was lost with its process, so the task is started again, as the question says.
            assert!(question["prompt"].as_str().unwrap_or_default().contains("starts the task again"));
            stage.wait_for_progress(&run, "busy");
            stage.order(&run, "cancel");
            stage.wait(&run, "canceled");
        }
    }
}

#[test]
fn to_continue_resumes_the_session_and_to_stop_ends_the_run() {
    let mut stage = DaemonTestHome::new();
    let goes_on = stage.create("parrot", BUSY, json!({}));
    let gives_up = stage.create("parrot", BUSY, json!({}));
    stage.wait_for_progress(&goes_on, "busy");
    stage.wait_for_progress(&gives_up, "busy");
    stage.shut_down();
    stage.up();
    let waiting = stage.wait(&goes_on, "waiting_user");
    stage.reply(&waiting, "continue", ReplyPath::Http);
    let done = stage.wait(&goes_on, "succeeded");
    let heard = done["result"]["text"].as_str().unwrap_or_default().to_owned();
    assert!(heard.starts_with("heard: The last turn was stopped"), "{heard}");
    let waiting = stage.wait(&gives_up, "waiting_user");
    stage.reply(&waiting, "stop", ReplyPath::CommandLine);
    assert_eq!(stage.wait(&gives_up, "canceled")["error"]["code"], "CANCELED_BY_USER");
}

#[test]
fn an_auto_run_fails_with_stopped_by_shutdown() {
    for engine in ["parrot", "parrot-sticky"] {
        let mut stage = DaemonTestHome::new();
        let run = stage.create_in("auto", engine, BUSY);
        stage.wait_for_progress(&run, "busy");
        let stopped = stage.shut_down();
        assert_eq!(summary(told(&stopped, &run)), ["turn", "failed", "yes"], "{stopped:#}");
        assert_eq!(told(&stopped, &run)["error"]["code"], "STOPPED_BY_SHUTDOWN");
        stage.up();
        let failed = stage.wait(&run, "failed");
        assert_eq!(failed["error"]["code"], "STOPPED_BY_SHUTDOWN");
        assert_eq!(stage.turns(&run)[0]["execution_status"], "interrupted");
        assert_eq!(stage.lines(), ["before"]);
    }
}

#[test]
fn a_chat_becomes_idle_and_goes_on_with_the_next_message() {
    for engine in ["parrot", "parrot-sticky"] {
        let mut stage = DaemonTestHome::new();
        let run = stage.create_in("chat", engine, BUSY);
        stage.wait_for_progress(&run, "busy");
        let stopped = stage.shut_down();
        assert_eq!(summary(told(&stopped, &run)), ["turn", "idle", "yes"], "{stopped:#}");
        stage.up();
        stage.wait(&run, "idle");
        stage.send(&run, "append log again\nprogress there", "queue");
        stage.wait_for_progress(&run, "there");
        let idle = stage.wait(&run, "idle");
        assert_eq!(
            (idle["turn_index"].as_u64(), stage.lines()),
            (Some(2), vec!["before".to_owned(), "again".to_owned()])
        );
    }
}

#[test]
fn a_request_inside_a_turn_is_void_and_a_resumable_run_asks() {
    for mode in ["interactive", "chat"] {
        let mut stage = DaemonTestHome::new();
        let run = stage.create_in(mode, "parrot", GATE);
        stage.wait(&run, "waiting_user");
        let stopped = stage.shut_down();
        assert_eq!(summary(told(&stopped, &run)), ["wait", "waiting_user", "yes"], "{stopped:#}");
        stage.up();
        let waiting = stage.wait(&run, "waiting_user");
        let questions = stage.questions(&run);
        assert_eq!((questions.len(), &questions[0]["state"]), (2, &json!("closed")));
        assert_eq!((&questions[0]["closed_because"], &questions[0]["reply"]), (&json!("void"), &Value::Null));
        stage.reply(&waiting, "continue", ReplyPath::Http);
        stage.wait(&run, if mode == "chat" { "idle" } else { "succeeded" });
        assert_eq!((stage.turns(&run).len(), stage.lines()), (2, vec!["before".to_owned()]));
    }
}

#[test]
fn a_sticky_wait_fails_with_stopped_by_shutdown() {
    for (mode, script) in [
        ("interactive", "append log before\nask open_text What now?"),
        ("interactive", GATE),
        ("chat", GATE),
        ("chat", "append log before"),
    ] {
        let mut stage = DaemonTestHome::new();
        let run = stage.create_in(mode, "parrot-sticky", script);
        stage.wait(&run, if script.contains('?') { "waiting_user" } else { "idle" });
        let stopped = stage.shut_down();
        assert_eq!(summary(told(&stopped, &run)), ["wait", "failed", "yes"], "{stopped:#}");
        stage.up();
        let failed = stage.wait(&run, "failed");
        assert_eq!(failed["error"]["code"], "STOPPED_BY_SHUTDOWN", "{failed}");
        assert!(stage.questions(&run).iter().all(|question| question["state"] == "closed"));
        assert_eq!(stage.lines(), ["before"]);
    }
}

#[test]
fn what_holds_no_process_stays() {
    let mut stage = DaemonTestHome::new();
    let asking = stage.create("parrot", "ask open_text What now?\nsay It is $reply.", json!({}));
    let waiting = stage.wait(&asking, "waiting_user");
    // All slots are in use, so the last run is queued.
    let busy: Vec<String> = (0..4).map(|_| stage.create("parrot", BUSY, json!({}))).collect();
    for run in &busy {
        stage.wait_for_progress(run, "busy");
    }
    let queued = stage.create("parrot", "say done", json!({}));
    stage.wait(&queued, "queued");
    let stopped = stage.shut_down();
    assert_eq!((told(&stopped, &asking), told(&stopped, &queued)), (&Value::Null, &Value::Null));
    stage.up();
    assert_eq!(stage.wait(&queued, "succeeded")["result"]["text"], "done");
    let still = stage.wait(&asking, "waiting_user");
    assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
    stage.reply(&still, "red", ReplyPath::Http);
    assert_eq!(stage.wait(&asking, "succeeded")["result"]["text"], "It is red.");
}

#[test]
fn an_engine_that_ignores_the_stop_is_ended() {
    let mut stage = DaemonTestHome::new();
    let run = stage.create("parrot", "hang", json!({}));
    stage.wait_for_progress(&run, "hangs");
    let stopped = stage.shut_down();
    assert_eq!(summary(told(&stopped, &run)), ["turn", "waiting_user", "yes"], "{stopped:#}");
    assert_eq!(stage.home.keepers(), Vec::<String>::new());
    let left = stage.home.processes();
    assert!(left.iter().all(|left| !left.command.contains("__parrot")), "{left:?}");
}

#[test]
fn people_are_told_what_became_of_each_run() {
    let mut stage = DaemonTestHome::new();
    let asks = stage.create("parrot", BUSY, json!({}));
    let fails = stage.create_in("auto", "parrot", BUSY);
    stage.wait_for_progress(&asks, "busy");
    stage.wait_for_progress(&fails, "busy");
    let end = stage.home.run(&["down"]);
    assert_eq!(end.code, Some(0), "{end:?}");
    let line =
        |run: &str| end.stdout.lines().find(|line| line.starts_with(run)).unwrap_or_default().to_owned();
    assert!(line(&asks).ends_with("its turn was stopped; it asks whether to continue or stop"), "{end:?}");
    assert!(line(&fails).ends_with("(STOPPED_BY_SHUTDOWN)"), "{end:?}");
    stage.forget_daemon();
}
