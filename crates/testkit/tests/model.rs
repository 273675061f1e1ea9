//! Tests the loopback model over a socket, including scripted delays and truncation.
//!
//! The formats of the protocols are tested next to their modules.
#![cfg(feature = "model")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use abide_testkit::model::{
    AnswerEnd, AnswerSource, ModelScript, ModelServer, ReceivedRequest, ScriptedAnswer, TestGate,
};
use serde_json::{Value, json};

/// Sends a request without waiting for the response.
fn send(server: &ModelServer, path: &str, key: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the server reads");
    stream.write_all(body.as_bytes()).expect("the server reads");
    stream
}

/// Reads a response to its end: the status, the body, and whether the body was complete.
fn receive(mut stream: TcpStream) -> (u16, String, bool) {
    let mut bytes = Vec::new();
    // A truncated response may end with a reset after the data.
    stream.read_to_end(&mut bytes).ok();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    let (_, mut rest) = text.split_once("\r\n\r\n").unwrap_or_default();
    let mut body = String::new();
    loop {
        let Some((size, after)) = rest.split_once("\r\n") else { return (status, body, false) };
        let size = usize::from_str_radix(size, 16).expect("the body is chunked");
        if size == 0 {
            return (status, body, true);
        }
        let Some(chunk) = after.get(..size) else { return (status, body, false) };
        body.push_str(chunk);
        rest = after.get(size + 2..).unwrap_or_default();
    }
}

fn chat(text: &str) -> Value {
    let tool = json!({ "type": "function", "function": { "name": "bash" } });
    json!({ "model": "m", "messages": [{ "role": "user", "content": text }], "tools": [tool] })
}

fn streamed(text: &str) -> Value {
    let mut request = chat(text);
    request["stream"] = json!(true);
    request
}

fn ask(server: &ModelServer, body: &Value) -> (u16, String, bool) {
    receive(send(server, "/v1/chat/completions", "k", body))
}

fn answer_text(body: &str) -> Value {
    let body: Value = serde_json::from_str(body).expect("the body is JSON");
    body["choices"][0]["message"]["content"].clone()
}

#[test]
fn the_default_answer_proves_what_was_remembered() {
    let server = ModelServer::start(ModelScript::new());
    let (status, body, ended) = ask(&server, &chat("hello"));
    assert_eq!((status, ended), (200, true));
    assert_eq!(answer_text(&body), "STUB users=1 last=<hello> history=[hello]");
    assert_eq!(server.turns()[0].key.as_deref(), Some("k"));
}

#[test]
fn rules_come_before_the_queue_and_the_queue_before_the_default() {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("a"), ScriptedAnswer::say("once"))
        .when(|request| request.prompt_contains("b"), ScriptedAnswer::say("always"))
        .then(ScriptedAnswer::say("first"))
        .then(ScriptedAnswer::say("second"))
        .with_default(ScriptedAnswer::say("rest"));
    let server = ModelServer::start(script);
    let answers: Vec<Value> =
        ["a", "b", "a", "b", "c", "c"].iter().map(|text| answer_text(&ask(&server, &chat(text)).1)).collect();
    assert_eq!(answers, ["once", "always", "first", "always", "second", "rest"]);
    assert_eq!(server.prompt_count("a"), 2);
}

#[test]
fn a_side_request_takes_nothing_from_the_script() {
    let server = ModelServer::start(ModelScript::new().then(ScriptedAnswer::say("for the turn")));
    let title = json!({ "model": "m", "messages": [{ "role": "user", "content": "a title for: hello" }] });
    assert_eq!(answer_text(&ask(&server, &title).1), "STUB");
    assert_eq!(answer_text(&ask(&server, &chat("hello")).1), "for the turn");
    assert_eq!((server.side_requests().len(), server.turns().len(), server.requests().len()), (1, 1, 2));
}

#[test]
fn a_side_request_may_have_a_rule_of_its_own() {
    let yes = ScriptedAnswer::say(r#"{"outcome":"allow"}"#);
    let verdict = move |_: &ReceivedRequest| Some(yes.clone());
    let server =
        ModelServer::start(ModelScript::new().decide_side(verdict).then(ScriptedAnswer::raw(502, "<html>")));
    let review = chat("The following is the Codex agent history whose request action you are assessing.");
    assert_eq!(answer_text(&ask(&server, &review).1), r#"{"outcome":"allow"}"#);
    assert_eq!(server.exchanges()[0].answer_source, AnswerSource::ScriptedSideRequest);
    assert_eq!(ask(&server, &chat("hello")), (502, "<html>".to_owned(), true));
}

#[test]
fn a_key_may_be_demanded() {
    let server = ModelServer::start(ModelScript::new().require_key("secret"));
    let (status, ..) = receive(send(&server, "/v1/chat/completions", "wrong", &chat("hello")));
    assert_eq!(status, 401);
    let (status, ..) = receive(send(&server, "/v1/chat/completions", "secret", &chat("hello")));
    assert_eq!(status, 200);
    assert_eq!(server.exchanges()[0].answer_source, AnswerSource::Unauthorised);
}

#[test]
fn messages_out_of_order_are_refused_with_the_reason() {
    let server = ModelServer::start(ModelScript::new().require_message_order());
    let mut request = chat("hello");
    request["messages"] = json!([{ "role": "tool", "tool_call_id": "c1", "content": "x" }]);
    let (status, body, _) = ask(&server, &request);
    assert_eq!(status, 400);
    let fault = "messages[0]: the result of c1 follows no open call of that id";
    assert!(body.contains(fault));
    assert_eq!(server.faults(), [fault]);
}

#[test]
fn an_answer_may_come_in_one_piece_and_for_another_reason() {
    let script =
        ModelScript::new().then(ScriptedAnswer::say("cut sho").with_finish_reason("length").in_one_piece());
    let server = ModelServer::start(script);
    let (_, body, _) = ask(&server, &streamed("hello"));
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["message"]["content"], "cut sho");
}

#[test]
fn a_held_answer_comes_when_its_gate_opens() {
    let gate = TestGate::new();
    let server = ModelServer::start(ModelScript::new().then(ScriptedAnswer::say("late").held_by(&gate)));
    let stream = send(&server, "/v1/chat/completions", "k", &chat("hello"));
    assert_eq!(server.wait_for(|request| request.prompt_contains("hello")).index, 0);
    gate.wait_reached();
    assert_eq!(server.exchanges()[0].end, AnswerEnd::Open);
    gate.open();
    assert_eq!(answer_text(&receive(stream).1), "late");
    assert_eq!(server.wait_until(|exchange| exchange.end != AnswerEnd::Open).end, AnswerEnd::Complete);
}

#[test]
fn an_answer_held_midway_has_begun() {
    let gate = TestGate::new();
    let answer = ScriptedAnswer::say("the first half and the second half of it").held_midway(&gate);
    let server = ModelServer::start(ModelScript::new().then(answer));
    let mut stream = send(&server, "/v1/chat/completions", "k", &streamed("hello"));
    gate.wait_reached();
    let mut begun = [0; 15];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    gate.open();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"));
}

#[test]
fn a_program_that_leaves_is_noticed() {
    let gate = TestGate::new();
    let server = ModelServer::start(ModelScript::new().then(ScriptedAnswer::say("never").held_midway(&gate)));
    let stream = send(&server, "/v1/chat/completions", "k", &streamed("hello"));
    gate.wait_reached();
    drop(stream);
    let end = server.wait_until(|exchange| exchange.end != AnswerEnd::Open).end;
    assert_eq!(end, AnswerEnd::Abandoned);
}

#[test]
fn a_cut_answer_stops_at_its_byte() {
    let server =
        ModelServer::start(ModelScript::new().then(ScriptedAnswer::say("a long story").cut_after(100)));
    let (status, body, ended) = ask(&server, &streamed("hello"));
    assert_eq!((status, body.len(), ended), (200, 100, false));
    assert_eq!(server.wait_until(|exchange| exchange.end != AnswerEnd::Open).end, AnswerEnd::Cut);
}

#[test]
fn a_slow_answer_is_whole() {
    let answer = ScriptedAnswer::say("in a few pieces").paced_by(Duration::from_millis(1)).with_usage(7, 8);
    let server = ModelServer::start(ModelScript::new().then(answer));
    let mut request = streamed("hello");
    request["stream_options"] = json!({ "include_usage": true });
    let (_, body, ended) = ask(&server, &request);
    assert!(ended && body.contains(r#""prompt_tokens":7"#));
}

#[test]
fn an_error_has_the_format_of_its_protocol() {
    let refused = || ScriptedAnswer::status(429, "slow down").retry_after(3);
    let server = ModelServer::start(ModelScript::new().with_default(refused()));
    let (status, body, _) = ask(&server, &chat("hello"));
    assert_eq!((status, body.contains("rate_limit_error")), (429, true));
    let body = json!({ "contents": [], "tools": [{ "functionDeclarations": [{ "name": "x" }] }] });
    let (status, body, _) = receive(send(&server, "/v1beta/models/g:generateContent", "k", &body));
    assert_eq!((status, body.contains("RESOURCE_EXHAUSTED")), (429, true));
}

#[test]
fn a_server_may_go_and_come_back_on_its_port() {
    let server = ModelServer::start(ModelScript::new());
    let port = server.port();
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    let server = ModelServer::start_on(port, ModelScript::new());
    assert_eq!(ask(&server, &chat("hello")).0, 200);
}

#[test]
fn other_paths_are_answered_and_recorded() {
    let server = ModelServer::start(ModelScript::new());
    let body = json!({ "messages": [] });
    let mut stream = send(&server, "/v1/messages/count_tokens?beta=true", "k", &body);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("input_tokens"));
    assert_eq!(server.other_requests()[0].path, "/v1/messages/count_tokens");
    assert_eq!(server.requests(), []);
}

#[tokio::test]
async fn a_test_with_async_can_wait_as_well() {
    let gate = TestGate::new();
    let server = ModelServer::start(ModelScript::new().then(ScriptedAnswer::say("late").held_by(&gate)));
    let stream = send(&server, "/v1/chat/completions", "k", &chat("hello"));
    assert!(server.wait_for_async(|request| request.prompt_contains("hello")).await.offers("bash"));
    gate.wait_reached_async().await;
    gate.open();
    assert_eq!(answer_text(&receive(stream).1), "late");
}
