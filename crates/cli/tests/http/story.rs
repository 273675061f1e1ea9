//! A complete run of the scripted engine, over HTTP only.

use abide_testkit::daemon::DaemonExit;
use serde_json::json;

use crate::{new_home, stop};

#[test]
fn a_run_asks_is_answered_through_a_restart_and_ends() {
    let home = new_home();
    let daemon = home.start();
    let prompt = "progress looking\nsay hi\nask choose_one Which? | red | green (safe)\n\
        append .abide/artifacts/log.txt $reply\nsay got $reply";
    let run = home.create_run(&json!({ "engine": "parrot", "prompt": prompt }));
    let path = format!("/v1/runs/{run}/events");
    let mut events = home.event_stream(&path, 0);
    let event = events.find(|event| event["data"]["outcome"] == "asked").unwrap();
    assert_eq!(
        event["data"]["question"]["options"][1],
        json!({ "label": "green", "safe": true, "approves": null })
    );
    let inbox = home.get("/v1/interactions?state=open");
    let interaction = inbox["items"][0]["interaction_id"].as_str().unwrap().to_owned();
    assert_eq!(home.get(&format!("/v1/runs/{run}"))["pending_interaction_id"], interaction);
    assert_eq!(daemon.terminate(), DaemonExit::Exited(Some(0)));
    assert_eq!(events.next(), None, "a stream ends when the daemon goes");

    let daemon = home.start();
    let cursor = event["seq"].as_u64().unwrap();
    let mut events = home.event_stream(&path, cursor);
    let reply = format!("/v1/interactions/{interaction}/reply");
    let replied = home.try_post(&reply, &json!({ "text": "green", "idempotency_key": "k" }));
    assert_eq!((replied.status, replied.body), (200, json!({ "resolution": "accepted" })));
    let arrived = events.next().unwrap();
    assert_eq!(
        (arrived["type"].clone(), arrived["data"]["text"].clone()),
        (json!("reply_arrived"), json!("green"))
    );
    assert!(events.any(|event| event["data"]["outcome"] == "completed"));
    let ended = home.get(&format!("/v1/runs/{run}"));
    assert_eq!(
        (ended["status"].clone(), ended["result"]["text"].clone()),
        (json!("succeeded"), json!("got green"))
    );
    let turns = home.get(&format!("/v1/runs/{run}/turns"));
    assert_eq!(turns["items"].as_array().unwrap().len(), 2);
    assert_eq!(turns["items"][1]["interaction_id"], interaction);
    let files = home.get(&format!("/v1/runs/{run}/artifacts"));
    assert_eq!(files["items"][0]["path"], "log.txt");
    assert_eq!(home.get_text(&format!("/v1/runs/{run}/artifacts/log.txt")), "green\n");
    stop(&home, daemon);
}

#[test]
fn a_token_that_may_only_start_runs_gets_no_result_from_a_repeated_request() {
    let home = new_home();
    let daemon = home.start();
    let token = home.run_json(&["token", "new", "ci", "--permit", "run"]);
    let owner = home.client().unwrap();
    let ci = owner.with_token(token["secret"].as_str());
    let body = json!({ "engine": "parrot", "prompt": "say hi", "execution_mode": "auto" });
    let created = owner.post_with_key("/v1/runs", "k", &body).unwrap();
    let mut events = home.event_stream(&format!("/v1/runs/{}/events", created.str_at("/run_id")), 0);
    assert!(events.any(|event| event["data"]["outcome"] == "completed"));
    let read = owner.post_with_key("/v1/runs", "k", &body).unwrap();
    assert_eq!((read.status, read.str_at("/result/text")), (200, "hi"));
    let repeated = ci.post_with_key("/v1/runs", "k", &body).unwrap();
    assert_eq!((repeated.status, repeated.str_at("/run_id")), (200, created.str_at("/run_id")));
    assert_eq!((&repeated.body["status"], &repeated.body["result"]), (&json!("queued"), &json!(null)));
    stop(&home, daemon);
}

#[test]
fn secrets_are_in_no_answer_and_no_event() {
    const SECRET: &str = "s3cret-value-of-an-engine";
    let home = new_home();
    let config = format!("[engines.parrot]\nenv = {{ SOME_KEY = \"{SECRET}\" }}\n");
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let daemon = home.start();
    let run = home.create_run(&json!({ "engine": "parrot", "prompt": "say hi" }));
    home.event_stream(&format!("/v1/runs/{run}/events"), 0)
        .find(|event| event["type"] == "turn_ended")
        .unwrap();
    let token = std::fs::read_to_string(home.path().join("token")).unwrap();
    for path in ["/v1/events", "/v1/engines", "/v1/status", "/v1/runs", "/v1/nowhere", "/openapi.json"] {
        let text = home.try_get(path).text;
        assert!(!text.is_empty() && !text.contains(SECRET) && !text.contains(&token), "{path}");
    }
    stop(&home, daemon);
}

#[test]
fn an_address_that_others_can_reach_is_refused_unless_it_is_asked_for() {
    let home = new_home();
    let refused = home.run(&["up", "--listen", "0.0.0.0:0"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("http.allow_remote"), "{}", refused.stderr);
}

#[test]
fn a_stop_reports_the_ended_runs() {
    let home = new_home();
    let daemon = home.start();
    let run = home.create_run(&json!({ "engine": "parrot", "prompt": "progress now\nsleep 600" }));
    home.event_stream(&format!("/v1/runs/{run}/events"), 0)
        .find(|event| event["type"] == "progressed")
        .unwrap();
    let stopped = stop(&home, daemon);
    assert_eq!(stopped["turns"], json!([run]));
}

#[test]
fn engines_are_listed_with_how_they_wait_and_what_they_can_do() {
    let home = new_home();
    let config = "[engines.codex]\nenabled = false\n[engines.claude]\ncommand = [\"/no/such/claude\"]\n";
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let daemon = home.start();
    let engines = home.get("/v1/engines")["items"].clone();
    let engine = |name: &str| {
        let entry = engines.as_array().unwrap().iter().find(|engine| engine["name"] == name);
        entry.unwrap_or_else(|| panic!("{name} is not in {engines}")).clone()
    };
    let parrot = engine("parrot");
    assert_eq!((&parrot["available"], &parrot["wait_mode"]), (&json!(true), &json!("resumable")), "{parrot}");
    assert_eq!(parrot["version"], env!("CARGO_PKG_VERSION"), "{parrot}");
    assert!(parrot["abilities"].as_array().unwrap().contains(&json!("resume")), "{parrot}");
    let sticky = engine("parrot-sticky");
    assert_eq!(
        (&sticky["available"], &sticky["wait_mode"]),
        (&json!(true), &json!("sticky_process")),
        "{sticky}"
    );
    assert!(!sticky["abilities"].as_array().unwrap().contains(&json!("resume")), "{sticky}");
    let missing = engine("claude");
    assert_eq!((&missing["available"], &missing["wait_mode"]), (&json!(false), &json!(null)), "{missing}");
    assert!(missing["probe"].as_str().unwrap().contains("/no/such/claude"), "{missing}");
    assert!(!engines.to_string().contains("codex"), "a disabled engine is not listed");
    stop(&home, daemon);
}
