//! Tests of error responses: each is a problem with a code.

use serde_json::json;

use crate::{
    client::TestRequest,
    fixture::{FORBIDDEN, HttpFixture},
};

#[tokio::test]
async fn every_error_is_a_problem_with_a_code() {
    let fixture = HttpFixture::with_config(|bounds| bounds.max_body_bytes = 4096).await;
    let id = fixture.create_queued_run("x").await;
    let new = |change: serde_json::Value| {
        let mut body = json!({ "engine": "any", "prompt": "x" });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        TestRequest::post("/v1/runs", &body)
    };
    let text = |text: &str| TestRequest::text("/v1/runs", text).header("content-type", "application/json");
    let file = fixture.temp_dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let [forbidden, link_to_forbidden] = [FORBIDDEN, "link"].map(|name| fixture.temp_dir.path().join(name));
    std::fs::create_dir(&forbidden).unwrap();
    std::os::unix::fs::symlink(&forbidden, &link_to_forbidden).unwrap();
    for (request, status, code) in [
        (TestRequest::get("/nowhere"), 404, "NOT_FOUND"),
        (TestRequest::method("DELETE", "/v1/runs"), 405, "METHOD_NOT_ALLOWED"),
        (TestRequest::method("TRACE", "/v1/runs"), 405, "METHOD_NOT_ALLOWED"),
        (TestRequest::get("/v1/runs/x"), 404, "RUN_NOT_FOUND"),
        (TestRequest::get("/v1/runs/%ff"), 404, "NOT_FOUND"),
        (TestRequest::get("/v1/runs/run_00000000000000000000000000"), 404, "RUN_NOT_FOUND"),
        (TestRequest::get("/v1/runs/run_00000000000000000000000000/turns"), 404, "RUN_NOT_FOUND"),
        (TestRequest::get("/v1/runs/run_00000000000000000000000000/interactions"), 404, "RUN_NOT_FOUND"),
        (TestRequest::get("/v1/runs/run_00000000000000000000000000/artifacts"), 404, "RUN_NOT_FOUND"),
        (TestRequest::get("/v1/runs/run_00000000000000000000000000/events"), 404, "RUN_NOT_FOUND"),
        (TestRequest::method("POST", "/v1/runs/run_00000000000000000000000000/cancel"), 404, "RUN_NOT_FOUND"),
        (TestRequest::get(format!("/v1/runs/{id}/artifacts/x")), 404, "ARTIFACT_NOT_FOUND"),
        (TestRequest::get("/v1/inbound/api/x"), 404, "MESSAGE_NOT_FOUND"),
        (TestRequest::get("/v1/inbound/api/%00"), 404, "MESSAGE_NOT_FOUND"),
        (
            TestRequest::post("/v1/interactions/x/reply", &json!({ "text": "y" })),
            404,
            "INTERACTION_NOT_FOUND",
        ),
        (TestRequest::get("/v1/runs?limit=0"), 400, "INVALID_REQUEST"),
        (TestRequest::get("/v1/runs?limit=501"), 400, "INVALID_REQUEST"),
        (TestRequest::get("/v1/runs?limit=many"), 400, "INVALID_REQUEST"),
        (TestRequest::get("/v1/runs?status=asleep"), 400, "INVALID_REQUEST"),
        (TestRequest::get("/v1/runs?statuss=idle"), 400, "UNKNOWN_OPTION"),
        (TestRequest::get("/v1/runs?cursor=nonsense"), 400, "INVALID_CURSOR"),
        (TestRequest::get("/v1/events?after=-1"), 400, "INVALID_REQUEST"),
        (TestRequest::get("/v1/events?after=999"), 400, "INVALID_CURSOR"),
        (TestRequest::get("/v1/events").header("last-event-id", "x"), 400, "INVALID_CURSOR"),
        (TestRequest::get("/v1/events").header("accept", "image/png"), 406, "NOT_ACCEPTABLE"),
        (TestRequest::get("/v1/rpc"), 426, "UPGRADE_REQUIRED"),
        (text("{"), 400, "INVALID_REQUEST"),
        (text("[]"), 400, "INVALID_REQUEST"),
        (text("{}"), 400, "INVALID_REQUEST"),
        (text(r#"{"engine":"any","prompt":"a\u0000b"}"#), 400, "INVALID_REQUEST"),
        (TestRequest::text("/v1/runs", "{}"), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (
            TestRequest::text("/v1/runs", "{}").header("content-type", "text/plain"),
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
        (new(json!({ "prompt": "x".repeat(5000) })), 413, "TOO_LARGE"),
        (new(json!({ "prompt": "" })), 400, "INVALID_REQUEST"),
        (new(json!({ "prompt": 1 })), 400, "INVALID_REQUEST"),
        (new(json!({ "engine": "another" })), 400, "UNKNOWN_ENGINE"),
        (new(json!({ "options": { "modell": "x" } })), 400, "UNKNOWN_OPTION"),
        (new(json!({ "options": { "session_timeout_sec": 0 } })), 400, "INVALID_REQUEST"),
        (new(json!({ "options": { "on_busy": "ignore" } })), 400, "INVALID_REQUEST"),
        (new(json!({ "options": [false, 7] })), 400, "INVALID_REQUEST"),
        (new(json!({ "options": { "model": "-" } })), 400, "INVALID_REQUEST"),
        (new(json!({ "options": { "model": "--dangerously-skip-permissions" } })), 400, "INVALID_REQUEST"),
        (new(json!({ "skill": "" })), 400, "INVALID_REQUEST"),
        (new(json!({ "skill": "/skills/--yolo" })), 400, "INVALID_REQUEST"),
        (new(json!({ "skill": "-/skills/review" })), 400, "INVALID_REQUEST"),
        (new(json!({ "workspace": "here" })), 400, "WORKSPACE_UNUSABLE"),
        (new(json!({ "workspace": "/no/such/place" })), 400, "WORKSPACE_UNUSABLE"),
        (new(json!({ "workspace": file })), 400, "WORKSPACE_UNUSABLE"),
        (new(json!({ "workspace": forbidden })), 400, "WORKSPACE_UNUSABLE"),
        (new(json!({ "workspace": link_to_forbidden })), 400, "WORKSPACE_UNUSABLE"),
        (new(json!({ "skill": forbidden })), 400, "WORKSPACE_UNUSABLE"),
        (new(json!({})).header("idempotency-key", "two words"), 400, "INVALID_REQUEST"),
        (
            TestRequest::post("/v1/rpc", &json!({ "jsonrpc": "2.0", "id": 1, "method": "exec.stream" })),
            400,
            "INVALID_REQUEST",
        ),
        (
            TestRequest::post("/v1/rpc", &json!({ "jsonrpc": "1.0", "id": 1, "method": "system.ping" })),
            400,
            "INVALID_REQUEST",
        ),
        (TestRequest::post("/v1/rpc", &json!([])), 400, "INVALID_REQUEST"),
    ] {
        let request_text = format!("{request:?}");
        let response = fixture.send(request).await;
        assert_eq!(response.problem(), (status, code.to_owned()), "{request_text}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    }
    let response = fixture.send(TestRequest::method("DELETE", "/v1/runs")).await;
    assert!(
        response.header("allow").is_some_and(|allowed| allowed.contains("GET") && allowed.contains("POST"))
    );
    let response = fixture.post("/v1/runs", json!({ "engine": "any", "prompt": "x", "workspce": "/" })).await;
    assert!(response.json()["detail"].as_str().unwrap().contains("did you mean `workspace`?"));
}

#[tokio::test]
async fn terminal_methods_answer_as_json_rpc_does() {
    let fixture = HttpFixture::open().await;
    let call = |body| fixture.post("/v1/rpc", body);
    let response = call(json!({ "jsonrpc": "2.0", "id": "a", "method": "system.ping" })).await;
    assert_eq!(response.json(), json!({ "jsonrpc": "2.0", "id": "a", "result": { "pong": true } }));
    let response = call(json!({ "jsonrpc": "2.0", "id": 1, "method": "session.explode" })).await;
    assert_eq!((response.status, response.json()["error"]["code"].clone()), (200, json!(-32601)));
    let response = call(
        json!({ "jsonrpc": "2.0", "id": 1, "method": "session.info", "params": { "session_id": "s-x" } }),
    );
    assert_eq!(response.await.json()["error"]["data"]["code"], "SESSION_NOT_FOUND");
    let response = call(json!({ "jsonrpc": "2.0", "id": 1, "method": "session.list" })).await;
    assert_eq!(response.json()["result"], json!({ "sessions": [] }));
    assert_eq!(call(json!({ "jsonrpc": "2.0", "method": "system.ping" })).await.status, 204);
}
