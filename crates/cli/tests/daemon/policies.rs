//! Unattended runs: at the deadline the question's policy replies exactly once, through the same path as a person (D5)
//! (D6) (D7).

use serde_json::{Value, json};

use crate::harness::{DaemonEnding, DaemonTestHome, ENDINGS};

const ENGINES: [&str; 2] = ["parrot", "parrot-sticky"];

/// Creates a run with this question, and restarts the daemon during the wait.
fn create_asking_run(engine: &str, question: &str, ending: DaemonEnding) -> (DaemonTestHome, String) {
    let mut home = DaemonTestHome::new();
    let prompt = format!("append log before\nask {question}\nappend log after $reply\nsay done");
    let options = json!({ "interactive_require_user_reply": false, "session_timeout_sec": 1 });
    let run = home.create(engine, &prompt, options);
    let waiting = home.wait_for_status(&run, "waiting_user");
    assert!(waiting["wait_deadline_at"].is_string(), "{waiting}");
    home.restart(ending);
    (home, run)
}

#[test]
fn the_engine_decides_for_itself() {
    for (engine, ending) in ENGINES.into_iter().zip(ENDINGS) {
        let (home, run) = create_asking_run(engine, "open_text/engine_judgement Which name?", ending);
        let done = home.wait_for_status(&run, "succeeded");
        assert_eq!(done["auto_decision_count"], 1);
        assert!(done["last_auto_decision_at"].is_string());
        let question = &home.questions(&run)[0];
        assert_eq!(question["resolution_mode"], "auto_decide_timeout");
        assert_eq!(question["auto_decide_reason"], "user_no_reply");
        let lines = home.log_lines();
        assert!(lines.len() == 2 && lines[1].contains("Decide it yourself"), "{engine}: {lines:?}");
        // The automatic reply is reported (D6) in the events, in `abide logs` and in the daemon's log.
        let events = home.get(&format!("/v1/runs/{run}/events"));
        let replies: Vec<&Value> = events["items"]
            .as_array()
            .expect("a page")
            .iter()
            .filter(|it| it["type"] == "reply_arrived")
            .collect();
        let [reply] = replies[..] else { panic!("{events:#}") };
        let envelope =
            ["source", "interaction_id", "reason", "policy"].map(|name| reply["data"][name].clone());
        let expected = [
            json!("auto_decide_timeout"),
            question["interaction_id"].clone(),
            json!("user_no_reply"),
            json!("engine_judgement"),
        ];
        assert_eq!(envelope, expected, "{reply}");
        let instruction = reply["data"]["instruction"].as_str().unwrap_or_default();
        assert!(instruction.contains("Decide it yourself"), "{reply}");
        let logs = home.run(&["logs", &run]).stdout;
        for word in ["auto_decide_timeout", "user_no_reply", "engine_judgement", instruction] {
            assert!(logs.contains(word), "{word}: {logs}");
            assert!(home.log_text().contains(word), "{word}");
        }
        home.wait_for_no_keeper();
    }
}

#[test]
fn the_safe_option_is_taken_or_no() {
    for (engine, ending) in ENGINES.into_iter().zip(ENDINGS) {
        let (home, run) =
            create_asking_run(engine, "choose_one/safe_default Which? | drop | keep (safe)", ending);
        home.wait_for_status(&run, "succeeded");
        assert_eq!(home.log_lines(), ["before", "after keep"], "{engine}");
        let (home, run) = create_asking_run(engine, "confirm/safe_default Really?", ending);
        home.wait_for_status(&run, "succeeded");
        let lines = home.log_lines();
        assert!(lines[1].starts_with("after No."), "{engine}: {lines:?}");
    }
}

#[test]
fn abort_ends_the_run_instead_of_inventing_an_answer() {
    for (engine, ending) in ENGINES.into_iter().zip(ENDINGS) {
        let (home, run) = create_asking_run(engine, "confirm/abort Really?", ending);
        let over = home.wait_for_status(&run, "canceled");
        assert_eq!(over["error"]["code"], "INTERACTION_ABORTED");
        assert_eq!(home.log_lines(), ["before"]);
        let question = &home.questions(&run)[0];
        assert_eq!((&question["state"], &question["reply"]), (&json!("closed"), &Value::Null));
        home.wait_for_no_keeper();
    }
}

#[test]
fn a_risk_is_never_taken_by_a_timeout() {
    for (engine, ending) in ENGINES.into_iter().zip(ENDINGS) {
        for policy in ["engine_judgement", "safe_default"] {
            let (home, run) = create_asking_run(
                engine,
                &format!("risk_ack/{policy} Delete everything? | yes (safe) | no"),
                ending,
            );
            home.wait_for_status(&run, "succeeded");
            let lines = home.log_lines();
            assert!(lines.len() == 2 && lines[1].starts_with("after No."), "{engine} {policy}: {lines:?}");
            assert_eq!(home.questions(&run)[0]["resolution_mode"], "auto_decide_timeout");
        }
    }
}
