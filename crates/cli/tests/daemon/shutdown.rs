//! `abide down`: the effect on each run, the printed summary, and the behaviour after the next start.

use serde_json::{Value, json};

use crate::harness::{DaemonTestHome, ReplyPath};

const BUSY: &str = "append log before\nprogress busy\nsleep 600\nappend log never";
const GATE: &str = "append log before\ngate May I?\nappend log after $reply";

/// Returns the entry of a run in the output of `abide down`.
fn stopped_entry<'a>(stopped: &'a Value, run: &str) -> &'a Value {
    let runs = stopped["runs"].as_array().map_or(&[][..], Vec::as_slice);
    runs.iter().find(|entry| entry["run_id"] == run).unwrap_or(&Value::Null)
}

fn summary(entry: &Value) -> [&str; 3] {
    ["activity_before_stop", "status", "stopped"].map(|name| match entry[name].as_bool() {
        Some(true) => "yes",
        Some(false) => "no",
        None => entry[name].as_str().unwrap_or_default(),
    })
}

#[test]
fn a_turn_at_work_is_interrupted_and_a_person_says_how_it_continues() {
    for engine in ["parrot", "parrot-sticky"] {
        let mut home = DaemonTestHome::new();
        let run = home.create(engine, BUSY, json!({}));
        home.wait_for_progress(&run, "busy");
        let stopped = home.shut_down();
        assert_eq!(summary(stopped_entry(&stopped, &run)), ["turn", "waiting_user", "yes"], "{stopped:#}");
        assert_eq!(home.keepers(), Vec::<String>::new());
        home.up();
        let waiting = home.wait_for_status(&run, "waiting_user");
        assert_eq!(home.turns(&run)[0]["execution_status"], "interrupted");
        let question = &home.questions(&run)[0];
        assert_eq!(question["asked_by"], "abide", "{question}");
        let options: Vec<&Value> =
            question["options"].as_array().expect("it has options").iter().map(|it| &it["label"]).collect();
        assert_eq!(options, ["continue", "stop"]);
        home.reply(&waiting, "append log more", ReplyPath::CommandLine);
        if engine == "parrot" {
            let done = home.wait_for_status(&run, "succeeded");
            assert_eq!(done["turn_index"], 2);
            assert_eq!(home.log_lines(), ["before", "more"], "the session continues in a new turn");
        } else {
            // Its session was lost with its process, so the task is started again, as the question says.
            assert!(question["prompt"].as_str().unwrap_or_default().contains("starts the task again"));
            home.wait_for_progress(&run, "busy");
            home.post_action(&run, "cancel");
            home.wait_for_status(&run, "canceled");
        }
    }
}

#[test]
fn to_continue_resumes_the_session_and_to_stop_ends_the_run() {
    let mut home = DaemonTestHome::new();
    let continues = home.create("parrot", BUSY, json!({}));
    let gives_up = home.create("parrot", BUSY, json!({}));
    home.wait_for_progress(&continues, "busy");
    home.wait_for_progress(&gives_up, "busy");
    home.shut_down();
    home.up();
    let waiting = home.wait_for_status(&continues, "waiting_user");
    home.reply(&waiting, "continue", ReplyPath::Http);
    let done = home.wait_for_status(&continues, "succeeded");
    let text = done["result"]["text"].as_str().unwrap_or_default().to_owned();
    assert!(text.starts_with("heard: The last turn was stopped"), "{text}");
    let waiting = home.wait_for_status(&gives_up, "waiting_user");
    home.reply(&waiting, "stop", ReplyPath::CommandLine);
    assert_eq!(home.wait_for_status(&gives_up, "canceled")["error"]["code"], "CANCELED_BY_USER");
}

#[test]
fn an_auto_run_fails_with_stopped_by_shutdown() {
    for engine in ["parrot", "parrot-sticky"] {
        let mut home = DaemonTestHome::new();
        let run = home.create_in("auto", engine, BUSY);
        home.wait_for_progress(&run, "busy");
        let stopped = home.shut_down();
        assert_eq!(summary(stopped_entry(&stopped, &run)), ["turn", "failed", "yes"], "{stopped:#}");
        assert_eq!(stopped_entry(&stopped, &run)["error"]["code"], "STOPPED_BY_SHUTDOWN");
        home.up();
        let failed = home.wait_for_status(&run, "failed");
        assert_eq!(failed["error"]["code"], "STOPPED_BY_SHUTDOWN");
        assert_eq!(home.turns(&run)[0]["execution_status"], "interrupted");
        assert_eq!(home.log_lines(), ["before"]);
    }
}

#[test]
fn a_chat_becomes_idle_and_continues_with_the_next_message() {
    for engine in ["parrot", "parrot-sticky"] {
        let mut home = DaemonTestHome::new();
        let run = home.create_in("chat", engine, BUSY);
        home.wait_for_progress(&run, "busy");
        let stopped = home.shut_down();
        assert_eq!(summary(stopped_entry(&stopped, &run)), ["turn", "idle", "yes"], "{stopped:#}");
        home.up();
        home.wait_for_status(&run, "idle");
        home.send_message(&run, "append log again\nprogress there", "queue");
        home.wait_for_progress(&run, "there");
        let idle = home.wait_for_status(&run, "idle");
        assert_eq!(
            (idle["turn_index"].as_u64(), home.log_lines()),
            (Some(2), vec!["before".to_owned(), "again".to_owned()])
        );
    }
}

#[test]
fn a_request_inside_a_turn_is_void_and_a_resumable_run_asks() {
    for mode in ["interactive", "chat"] {
        let mut home = DaemonTestHome::new();
        let run = home.create_in(mode, "parrot", GATE);
        home.wait_for_status(&run, "waiting_user");
        let stopped = home.shut_down();
        assert_eq!(summary(stopped_entry(&stopped, &run)), ["wait", "waiting_user", "yes"], "{stopped:#}");
        home.up();
        let waiting = home.wait_for_status(&run, "waiting_user");
        let questions = home.questions(&run);
        assert_eq!((questions.len(), &questions[0]["state"]), (2, &json!("closed")));
        assert_eq!((&questions[0]["closed_because"], &questions[0]["reply"]), (&json!("void"), &Value::Null));
        home.reply(&waiting, "continue", ReplyPath::Http);
        home.wait_for_status(&run, if mode == "chat" { "idle" } else { "succeeded" });
        assert_eq!((home.turns(&run).len(), home.log_lines()), (2, vec!["before".to_owned()]));
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
        let mut home = DaemonTestHome::new();
        let run = home.create_in(mode, "parrot-sticky", script);
        home.wait_for_status(&run, if script.contains('?') { "waiting_user" } else { "idle" });
        let stopped = home.shut_down();
        assert_eq!(summary(stopped_entry(&stopped, &run)), ["wait", "failed", "yes"], "{stopped:#}");
        home.up();
        let failed = home.wait_for_status(&run, "failed");
        assert_eq!(failed["error"]["code"], "STOPPED_BY_SHUTDOWN", "{failed}");
        assert!(home.questions(&run).iter().all(|question| question["state"] == "closed"));
        assert_eq!(home.log_lines(), ["before"]);
    }
}

#[test]
fn runs_without_a_process_are_unchanged() {
    let mut home = DaemonTestHome::new();
    let asking = home.create("parrot", "ask open_text What now?\nsay It is $reply.", json!({}));
    let waiting = home.wait_for_status(&asking, "waiting_user");
    // All slots are in use, so the last run is queued.
    let busy: Vec<String> = (0..4).map(|_| home.create("parrot", BUSY, json!({}))).collect();
    for run in &busy {
        home.wait_for_progress(run, "busy");
    }
    let queued = home.create("parrot", "say done", json!({}));
    home.wait_for_status(&queued, "queued");
    let stopped = home.shut_down();
    assert_eq!(
        (stopped_entry(&stopped, &asking), stopped_entry(&stopped, &queued)),
        (&Value::Null, &Value::Null)
    );
    home.up();
    assert_eq!(home.wait_for_status(&queued, "succeeded")["result"]["text"], "done");
    let still = home.wait_for_status(&asking, "waiting_user");
    assert_eq!(still["pending_interaction_id"], waiting["pending_interaction_id"]);
    home.reply(&still, "red", ReplyPath::Http);
    assert_eq!(home.wait_for_status(&asking, "succeeded")["result"]["text"], "It is red.");
}

#[test]
fn an_engine_that_ignores_the_stop_is_ended() {
    let mut home = DaemonTestHome::new();
    let run = home.create("parrot", "hang", json!({}));
    home.wait_for_progress(&run, "hangs");
    let stopped = home.shut_down();
    assert_eq!(summary(stopped_entry(&stopped, &run)), ["turn", "waiting_user", "yes"], "{stopped:#}");
    assert_eq!(home.keepers(), Vec::<String>::new());
    let processes = home.processes();
    assert!(processes.iter().all(|process| !process.command.contains("__parrot")), "{processes:?}");
}

#[test]
fn the_result_of_each_run_is_printed() {
    let mut home = DaemonTestHome::new();
    let asks = home.create("parrot", BUSY, json!({}));
    let fails = home.create_in("auto", "parrot", BUSY);
    home.wait_for_progress(&asks, "busy");
    home.wait_for_progress(&fails, "busy");
    let end = home.run(&["down"]);
    assert_eq!(end.code, Some(0), "{end:?}");
    let line =
        |run: &str| end.stdout.lines().find(|line| line.starts_with(run)).unwrap_or_default().to_owned();
    assert!(line(&asks).ends_with("its turn was stopped; it asks whether to continue or stop"), "{end:?}");
    assert!(line(&fails).ends_with("(STOPPED_BY_SHUTDOWN)"), "{end:?}");
    home.drop_daemon();
}
