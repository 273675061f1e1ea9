//! Tests of runs, questions and messages: idempotent requests and correct views.

use serde_json::{Value, json};

use crate::{client::TestRequest, fixture::HttpFixture};

fn with_key(key: &str, body: &Value) -> TestRequest {
    TestRequest::post("/v1/runs", body).header("idempotency-key", key)
}

#[tokio::test]
async fn the_same_key_and_body_are_one_run_also_for_another_daemon() {
    let fixture = HttpFixture::open().await;
    let body = json!({ "engine": "any", "prompt": "x", "labels": { "a": "1", "b": "2" } });
    let first = fixture.send(with_key("k", &body)).await;
    assert_eq!(first.status, 201);
    let id = first.json()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(first.header("location"), Some(format!("/v1/runs/{id}").as_str()));
    let fixture = fixture.reopen().await;
    let again = r#"{ "prompt":"x", "labels":{"b":"2","a":"1"}, "engine":"any" }"#;
    let again = TestRequest::text("/v1/runs", again)
        .header("content-type", "application/json; charset=utf-8")
        .header("idempotency-key", "k");
    let again = fixture.send(again).await;
    assert_eq!((again.status, again.json()["run_id"].as_str()), (200, Some(id.as_str())));
    let other = fixture.send(with_key("k", &json!({ "engine": "any", "prompt": "y" }))).await;
    assert_eq!(other.problem(), (409, "IDEMPOTENCY_CONFLICT".to_owned()));
    let runs = fixture.get("/v1/runs").await.json();
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);
}

/// Issue 14: a token with `run` alone cannot read runs.
#[tokio::test]
async fn a_repeated_request_without_the_permission_to_read_returns_the_run_as_created() {
    let fixture = HttpFixture::open().await;
    let token = fixture.post("/v1/tokens", json!({ "name": "ci", "permissions": ["run"] })).await.json();
    let body = json!({ "engine": "any", "prompt": "x", "labels": { "a": "1" }, "execution_mode": "auto" });
    let mut created = fixture.send(with_key("k", &body)).await.json();
    fixture.advance_clock(1);
    let canceled = format!("/v1/runs/{}/cancel", created["run_id"].as_str().unwrap());
    assert_eq!(fixture.post(&canceled, json!({})).await.status, 200);
    let repeated = with_key("k", &body).token(token["secret"].as_str().unwrap()).send(fixture.address).await;
    assert_eq!(repeated.status, 200);
    created["queue_position"] = Value::Null;
    assert_eq!(repeated.json(), created);
    let read = fixture.send(with_key("k", &body)).await.json();
    assert_eq!((&read["status"], read["error"].is_object()), (&json!("canceled"), true));
}

/// Issue 14, item 2: the path is resolved once, so a link changed later cannot redirect a run.
#[tokio::test]
async fn a_workspace_is_stored_without_the_links_that_led_to_it() {
    let fixture = HttpFixture::open().await;
    let place = fixture.temp_dir.path().canonicalize().unwrap();
    let (real, link) = (place.join("real"), place.join("link"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let body = json!({ "engine": "any", "prompt": "x", "workspace": link.join("../link/.") });
    let run = fixture.post("/v1/runs", body).await.json();
    assert_eq!(run["workspace"], json!(real));
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/", &link).unwrap();
    let shown = fixture.get(&format!("/v1/runs/{}", run["run_id"].as_str().unwrap())).await.json();
    assert_eq!(shown["workspace"], json!(real));
}

#[tokio::test]
async fn a_run_is_shown_with_everything_that_it_was_asked_to_be() {
    let fixture = HttpFixture::open().await;
    let workspace = fixture.temp_dir.path().canonicalize().unwrap();
    let workspace = workspace.to_str().unwrap();
    let options = json!({
        "interactive_require_user_reply": false, "session_timeout_sec": 5, "turn_timeout_sec": 6,
        "on_busy": "steer", "model": "m", "sandbox": "read-only",
    });
    let run = fixture
        .post(
            "/v1/runs",
            json!({
                "engine": "any", "prompt": "x", "workspace": workspace, "execution_mode": "chat",
                "conversation_ref": "c", "labels": { "team": "red" }, "options": options,
            }),
        )
        .await
        .json();
    let id = run["run_id"].as_str().unwrap();
    assert_eq!(
        run,
        json!({
            "run_id": id, "engine": "any", "workspace": workspace, "execution_mode": "chat", "status": "queued",
            "error": null, "turn_index": 0, "pending_interaction_id": null, "profile": null, "engine_session": null,
            "wait_deadline_at": null,
            "auto_decision_count": 0, "last_auto_decision_at": null, "conversation_ref": "c", "result": null,
            "labels": { "team": "red" }, "options": options, "skill": null, "queue_position": 1, "stalled_since": null,
            "blocked_reason": null,
            "created_at": run["created_at"], "updated_at": run["created_at"],
        })
    );
    assert!(run["created_at"].as_str().unwrap().starts_with("1970-01-01T00:00:00."));
    assert_eq!(fixture.get(&format!("/v1/runs/{id}")).await.json(), run);
    let second = fixture.create_queued_run("y").await;
    assert_eq!(fixture.get(&format!("/v1/runs/{second}")).await.json()["queue_position"], 2);
}

#[tokio::test]
async fn lists_come_in_pages_and_by_status() {
    let fixture = HttpFixture::open().await;
    let mut run_ids = Vec::new();
    for number in 0..5 {
        run_ids.insert(0, fixture.create_queued_run(&number.to_string()).await);
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/runs?limit=2&status=queued".to_owned());
    loop {
        let page = fixture.get(&path).await.json();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.iter().map(|run| run["run_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/runs?limit=2&status=queued&cursor={next}");
    }
    assert_eq!(seen, run_ids);
    assert_eq!(
        fixture.get("/v1/runs?status=running").await.json(),
        json!({ "items": [], "next_cursor": null })
    );
    let status = fixture.get("/v1/status").await.json();
    assert_eq!((status["runs"]["queued"].clone(), status["queued"].clone()), (json!(5), json!(5)));
}

#[tokio::test]
async fn only_the_first_reply_is_accepted() {
    let fixture = HttpFixture::open().await;
    let (run, interaction) = fixture.create_asking_run().await;
    let inbox = fixture.get("/v1/interactions?state=open").await.json();
    let open = &inbox["items"][0];
    assert_eq!(open["interaction_id"], interaction.to_string());
    assert_eq!(open["options"], json!([{ "label": "this", "safe": true, "approves": null }]));
    assert_eq!(open["ui_hints"], json!({ "columns": 2 }));
    assert_eq!((open["state"].clone(), open["asked_by"].clone()), (json!("open"), json!("turn_end")));
    let path = format!("/v1/interactions/{interaction}/reply");
    let reply =
        |text: &str, key: Option<&str>| fixture.post(&path, json!({ "text": text, "idempotency_key": key }));
    assert_eq!(reply("that", Some("k")).await.json(), json!({ "resolution": "accepted" }));
    assert_eq!(reply("that", Some("k")).await.json(), json!({ "resolution": "idempotent" }));
    assert_eq!(reply("other", Some("k")).await.problem(), (409, "IDEMPOTENCY_CONFLICT".to_owned()));
    assert_eq!(reply("that", None).await.problem(), (409, "STALE_INTERACTION".to_owned()));
    let history = fixture.get(&format!("/v1/runs/{run}/interactions")).await.json();
    let answered = &history["items"][0];
    assert_eq!(answered["state"], "answered");
    assert_eq!((answered["reply"].clone(), answered["resolved_by"].clone()), (json!("that"), json!("api")));
    assert_eq!(answered["resolution_mode"], "user_reply");
    assert_eq!(fixture.get("/v1/interactions").await.json()["items"], json!([]));
    let turns = fixture.get(&format!("/v1/runs/{run}/turns")).await.json();
    assert_eq!(turns["items"][0]["attempts"][0]["exit_code"], 0);
    assert_eq!(turns["items"][0]["reply"], "so far");
}

#[tokio::test]
async fn a_message_is_taken_once_and_the_ledger_knows_it() {
    let fixture = HttpFixture::open().await;
    let id = fixture.create_queued_run("x").await;
    let path = format!("/v1/runs/{id}/messages");
    let first = fixture.post(&path, json!({ "text": "more", "message_id": "m" })).await;
    let taken = |duplicate: bool| json!({ "message_id": "m", "execution_status": "received", "duplicate": duplicate });
    assert_eq!((first.status, first.json()), (202, taken(false)));
    let again = fixture.post(&path, json!({ "text": "more", "message_id": "m" })).await;
    assert_eq!((again.status, again.json()), (202, taken(true)));
    let ledger = fixture.get("/v1/inbound/api/m").await.json();
    assert_eq!((ledger["run_id"].as_str(), ledger["turn_id"].clone()), (Some(id.as_str()), Value::Null));
    let fresh = fixture.post(&path, json!({ "text": "more" })).await.json();
    assert!(fresh["message_id"].as_str().unwrap().starts_with("msg_"));
    let other = fixture.create_queued_run("y").await;
    let elsewhere =
        fixture.post(&format!("/v1/runs/{other}/messages"), json!({ "text": "z", "message_id": "m" })).await;
    assert_eq!(elsewhere.problem(), (409, "IDEMPOTENCY_CONFLICT".to_owned()));
}

#[tokio::test]
async fn stopping_a_finished_run_is_no_error() {
    let fixture = HttpFixture::open().await;
    let id = fixture.create_queued_run("x").await;
    let order = |action: &str| fixture.send(TestRequest::method("POST", format!("/v1/runs/{id}/{action}")));
    assert_eq!(order("interrupt").await.json(), json!({ "accepted": false }));
    assert_eq!(order("cancel").await.json(), json!({ "accepted": true }));
    assert_eq!(order("cancel").await.json(), json!({ "accepted": false }));
    assert_eq!(order("interrupt").await.json(), json!({ "accepted": false }));
    let run = fixture.get(&format!("/v1/runs/{id}")).await.json();
    assert_eq!(
        (run["status"].clone(), run["error"]["code"].clone()),
        (json!("canceled"), json!("CANCELED_BY_USER"))
    );
    let late = fixture.post(&format!("/v1/runs/{id}/messages"), json!({ "text": "z" })).await;
    assert_eq!(late.problem(), (409, "RUN_FINISHED".to_owned()));
}

/// I66: for `choose_one`, a reply that is only the number of an option becomes that option's label.
#[tokio::test]
async fn the_number_of_an_option_is_taken_as_its_label() {
    use abide_domain::interaction::InteractionKind;

    let fixture = HttpFixture::open().await;
    for (kind, text, taken) in [
        (InteractionKind::ChooseOne, " 1 ", "this"),
        (InteractionKind::ChooseOne, "2", "2"),
        (InteractionKind::ChooseOne, "0", "0"),
        (InteractionKind::ChooseOne, "1 of them", "1 of them"),
        (InteractionKind::OpenText, "1", "1"),
    ] {
        let (run, question) = fixture.create_run_asking_kind(kind).await;
        let path = format!("/v1/interactions/{question}/reply");
        for _ in 0..2 {
            let reply = json!({ "text": text, "idempotency_key": "k" });
            assert_eq!(fixture.post(&path, reply).await.status, 200, "{text:?}");
        }
        let shown = fixture.get(&format!("/v1/runs/{run}/interactions")).await.json();
        assert_eq!(shown["items"][0]["reply"], taken, "{text:?}: {shown}");
    }
}
