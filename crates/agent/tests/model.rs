//! The model client with a model server on loopback: replies, failures, and the messages for the user.
//!
//! The parsers have unit tests beside their code.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use abide_agent::definition::ModelConfig;
use abide_agent::model::{
    ApiKey, ChatMessage, FinishReason, ModelClient, ModelError, ModelReply, ModelRequest, ModelToolCall,
    ReplyDelta, RetryPolicy, TokenUsage,
};
use abide_testkit::model::{AnswerEnd, ModelScript, ModelServer, ScriptedAnswer, TestGate};
use serde_json::json;

const TOOL: &str = r#"{"type":"function","function":{"name":"ls","parameters":{"type":"object"}}}"#;

fn config(base_url: &str) -> ModelConfig {
    ModelConfig {
        base_url: base_url.to_owned(),
        name: "stub".to_owned(),
        api_key_env: None,
        context_tokens: 1000,
        temperature: None,
        max_output_tokens: None,
        timeout_sec: 60,
        max_retries: 3,
    }
}

/// A client with short waits between attempts.
fn client(config: &ModelConfig, key: Option<ApiKey>, stop: &Arc<AtomicBool>) -> ModelClient {
    let retry_policy =
        RetryPolicy { initial_backoff: Duration::from_millis(1), ..RetryPolicy::from_config(config) };
    ModelClient::new(config, key, Arc::clone(stop))
        .expect("the configuration is sound")
        .with_retry_policy(retry_policy)
}

/// The result of a request, and the pieces that were reported during it.
struct AskResult {
    outcome: Result<ModelReply, ModelError>,
    text: String,
    retries: Vec<(u32, u32, Duration, String)>,
}

fn ask_with(client: &mut ModelClient) -> AskResult {
    let (mut text, mut retries) = (String::new(), Vec::new());
    let message = ChatMessage::User("go".to_owned()).to_json();
    let request = ModelRequest { messages: &[&message], tools: &[TOOL] };
    let outcome = client.complete(&request, &mut |piece| match piece {
        ReplyDelta::Text(more) => text.push_str(more),
        ReplyDelta::Retry { attempt, max_attempts, wait, reason } => {
            text.clear();
            retries.push((attempt, max_attempts, wait, reason.to_owned()));
        }
        ReplyDelta::Reasoning(_) | ReplyDelta::Call(_) => {}
    });
    AskResult { outcome, text, retries }
}

fn ask(server: &ModelServer) -> AskResult {
    ask_with(&mut client(&config(&server.url("/v1")), None, &Arc::default()))
}

fn start_strict_server(script: ModelScript) -> ModelServer {
    ModelServer::start(script.require_message_order())
}

fn stopped_text(text: &str) -> (Option<String>, FinishReason) {
    (Some(text.to_owned()), FinishReason::Stop)
}

fn text_and_finish(result: &AskResult) -> (Option<String>, FinishReason) {
    let reply = result.outcome.as_ref().expect("there is an answer");
    (reply.text.clone(), reply.finish_reason.clone())
}

#[test]
fn text_and_calls_have_token_usage() {
    let answer = ScriptedAnswer::say("one moment, please").then_call("ls", json!({ "path": "." }));
    let server =
        start_strict_server(ModelScript::new().then(answer.then_call("ls", json!({})).with_usage(120, 30)));
    let completion = ask(&server);
    assert_eq!(completion.text, "one moment, please");
    let reply = completion.outcome.unwrap();
    assert_eq!(reply.text.as_deref(), Some("one moment, please"));
    assert_eq!(reply.finish_reason, FinishReason::ToolCalls);
    assert_eq!(reply.usage, Some(TokenUsage { input_tokens: 120, output_tokens: 30, cached_tokens: 0 }));
    let arguments: Vec<&str> = reply.calls.iter().map(|call| call.arguments.as_str()).collect();
    assert_eq!(arguments, [r#"{"path":"."}"#, "{}"]);
    assert_ne!(reply.calls[0].id, reply.calls[1].id);
    assert_eq!(server.requests()[0].raw["stream_options"]["include_usage"], true);
}

#[test]
fn an_answer_can_be_sent_back() {
    let server = start_strict_server(
        ModelScript::new()
            .then(ScriptedAnswer::call("ls", json!("{\"path\": ")))
            .then(ScriptedAnswer::say("I see")),
    );
    let mut client = client(&config(&server.url("/")), None, &Arc::default());
    let reply = ask_with(&mut client).outcome.unwrap();
    assert!(reply.calls[0].parsed_arguments().is_err());
    let call = ModelToolCall { name: "session.end".to_owned(), ..reply.calls[0].clone() };
    let result = ChatMessage::Tool { call_id: call.id.clone(), text: "no JSON".to_owned() };
    let messages = [
        ChatMessage::System("be brief".to_owned()).to_json(),
        ChatMessage::User("go".to_owned()).to_json(),
        ChatMessage::Assistant { text: reply.text, calls: vec![call] }.to_json(),
        result.to_json(),
    ];
    let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
    let reply = client.complete(&ModelRequest { messages: &messages, tools: &[TOOL] }, &mut |_| {}).unwrap();
    assert_eq!(reply.text.as_deref(), Some("I see"));
    assert_eq!(server.faults(), [""; 0]);
}

#[test]
fn a_single_json_object_instead_of_a_stream_is_a_reply() {
    let server = start_strict_server(
        ModelScript::new().then(ScriptedAnswer::say("hello").in_one_piece().with_usage(5, 6)),
    );
    let completion = ask(&server);
    assert_eq!(text_and_finish(&completion), stopped_text("hello"));
    assert_eq!(completion.text, "hello");
    assert_eq!(completion.outcome.unwrap().usage.map(|usage| usage.total()), Some(11));
}

#[test]
fn the_finish_reason_is_returned() {
    for (reason, finish) in
        [("length", FinishReason::Length), ("content_filter", FinishReason::ContentFilter)]
    {
        let server = start_strict_server(
            ModelScript::new().then(ScriptedAnswer::say("cut sho").with_finish_reason(reason)),
        );
        assert_eq!(text_and_finish(&ask(&server)), (Some("cut sho".to_owned()), finish));
    }
}

#[test]
fn retry_after_is_respected() {
    let server = start_strict_server(
        ModelScript::new()
            .then(ScriptedAnswer::status(429, "slow down").retry_after(1))
            .then(ScriptedAnswer::say("well")),
    );
    let completion = ask(&server);
    assert_eq!(text_and_finish(&completion), stopped_text("well"));
    assert_eq!(completion.retries, [(2, 4, Duration::from_secs(1), "429: slow down".to_owned())]);
}

#[test]
fn a_too_long_retry_after_fails_the_request() {
    let server = start_strict_server(
        ModelScript::new().then(ScriptedAnswer::status(429, "slow down").retry_after(3600)),
    );
    let completion = ask(&server);
    assert_eq!(server.requests().len(), 1);
    let expected = "the model server limits the rate (1 attempts): 429: slow down, and it asks to wait 3600 s; \
                    run the same command again later";
    assert_eq!(completion.outcome.unwrap_err().to_string(), expected);
}

#[test]
fn a_failing_server_is_retried_a_limited_number_of_times() {
    let failing =
        ModelScript::new().then(ScriptedAnswer::status(500, "oops")).then(ScriptedAnswer::raw(502, "<html>"));
    let server = start_strict_server(failing.then(ScriptedAnswer::say("well")));
    let completion = ask(&server);
    assert_eq!(text_and_finish(&completion), stopped_text("well"));
    let reasons: Vec<&str> = completion.retries.iter().map(|(.., reason)| reason.as_str()).collect();
    assert_eq!(reasons, ["500: oops", "502: an HTML page"]);

    let server = start_strict_server(ModelScript::new().with_default(ScriptedAnswer::status(503, "down")));
    let error = ask(&server).outcome.unwrap_err();
    assert_eq!(error, ModelError::Unavailable { attempts: 4, message: "503: down".to_owned() });
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_truncated_stream_is_never_a_reply() {
    let whole = "data: the whole answer goes out, event by event, in pieces";
    let length = {
        let server = start_strict_server(ModelScript::new().then(ScriptedAnswer::say(whole)));
        assert_eq!(text_and_finish(&ask(&server)), stopped_text(whole));
        // Approximate size of the body; each event has about 150 bytes.
        1500
    };
    for cut in (0..length).step_by(97) {
        let script = ModelScript::new()
            .then(ScriptedAnswer::say(whole).cut_after(cut))
            .then(ScriptedAnswer::say("again"));
        let server = start_strict_server(script);
        let completion = ask(&server);
        // If only the formal end is missing, the first reply counts; otherwise only the second.
        let (text, _) = text_and_finish(&completion);
        assert!(text.as_deref() == Some(whole) || text.as_deref() == Some("again"), "cut at {cut}: {text:?}");
        assert_eq!(Some(completion.text.as_str()), text.as_deref(), "cut at {cut}");
        assert_eq!(completion.retries.len(), usize::from(text.as_deref() == Some("again")), "cut at {cut}");
    }
}

#[test]
fn a_complete_reply_counts_although_the_connection_breaks() {
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\n";
    let server =
        start_strict_server(ModelScript::new().then(ScriptedAnswer::raw(200, body).cut_after(body.len())));
    assert_eq!(text_and_finish(&ask(&server)), stopped_text("hi"));
}

#[test]
fn a_stalled_stream_is_retried() {
    let gate = TestGate::new();
    let stalled = ScriptedAnswer::say("this will not be said to its end").held_midway(&gate);
    let server = start_strict_server(ModelScript::new().then(stalled).then(ScriptedAnswer::say("again")));
    let config = config(&server.url("/v1"));
    let policy = RetryPolicy {
        idle_timeout: Duration::from_millis(300),
        initial_backoff: Duration::ZERO,
        ..RetryPolicy::from_config(&config)
    };
    let mut client = ModelClient::new(&config, None, Arc::default()).unwrap().with_retry_policy(policy);
    let completion = ask_with(&mut client);
    assert_eq!(text_and_finish(&completion), stopped_text("again"));
    assert_eq!(completion.retries[0].3, "no data from the server for 0.3 s (model.timeout_sec)");
    server.wait_until(|exchange| exchange.end == AnswerEnd::Abandoned);
}

#[test]
fn a_slow_stream_is_not_stalled() {
    let slow =
        ScriptedAnswer::say("word by word, with time between them").paced_by(Duration::from_millis(20));
    let server = start_strict_server(ModelScript::new().then(slow));
    let completion = ask(&server);
    assert_eq!(
        (completion.retries.len(), completion.outcome.unwrap().finish_reason),
        (0, FinishReason::Stop)
    );
}

#[test]
fn an_error_inside_a_stream_is_no_answer() {
    let body = "data: {\"error\":{\"message\":\"overloaded\",\"code\":529}}\n\n";
    let server = start_strict_server(
        ModelScript::new().then(ScriptedAnswer::raw(200, body)).then(ScriptedAnswer::say("well")),
    );
    let completion = ask(&server);
    assert_eq!(text_and_finish(&completion), stopped_text("well"));
    assert_eq!(completion.retries[0].3, "529: overloaded");
}

#[test]
fn a_refused_connection_is_retried_and_then_reported() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let config = config(&format!("http://127.0.0.1:{port}/v1"));
    let completion = ask_with(&mut client(&config, None, &Arc::default()));
    assert_eq!(completion.retries.len(), 3);
    let expected = format!(
        "no complete answer after 4 attempts: cannot reach http://127.0.0.1:{port}/v1/chat/completions: \
         Connection refused (os error 111); run the same command again to continue"
    );
    assert_eq!(completion.outcome.unwrap_err().to_string(), expected);
}

#[test]
fn a_refused_key_is_reported_with_its_variable_and_never_shown() {
    let server = start_strict_server(ModelScript::new().require_key("right"));
    let config = config(&server.url("/v1"));
    let completion = ask_with(&mut client(&config, None, &Arc::default()));
    let expected = "the model server refused the key (401): the API key is wrong; no key was sent: \
                    name a variable in model.api_key_env, or set ABIDE_MODEL_API_KEY";
    assert_eq!(completion.outcome.unwrap_err().to_string(), expected);
    let key = ApiKey::new("sk-wrong", "MY_KEY");
    let error = ask_with(&mut client(&config, Some(key), &Arc::default())).outcome.unwrap_err().to_string();
    assert!(error.contains("the key is from MY_KEY") && !error.contains("sk-wrong"), "{error}");
    let key = ApiKey::new("right", "MY_KEY");
    assert!(ask_with(&mut client(&config, Some(key), &Arc::default())).outcome.is_ok());
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn a_server_that_repeats_the_key_does_not_get_it_into_a_message() {
    for code in [400, 401, 429, 500] {
        let server = start_strict_server(
            ModelScript::new().with_default(ScriptedAnswer::status(code, "bad key sk-secret given")),
        );
        let config = ModelConfig { max_retries: 1, ..config(&server.url("/v1")) };
        let mut client = client(&config, Some(ApiKey::new("sk-secret", "K")), &Arc::default());
        let completion = ask_with(&mut client);
        let shown = format!("{:?} {:?} {client:?}", completion.outcome, completion.retries);
        assert!(shown.contains("bad key *** given") && !shown.contains("sk-secret"), "{code}: {shown}");
    }
}

#[test]
fn an_unknown_model_is_reported_with_suggestions() {
    let unknown = || ScriptedAnswer::status(404, "The model `x` does not exist");
    for (name, advice) in [
        ("stubb", "did you mean \"stub\"? Set model.name, or ABIDE_MODEL"),
        ("gpt-4", "it has stub; set model.name, or ABIDE_MODEL"),
    ] {
        let server = start_strict_server(ModelScript::new().then(unknown()));
        let config = ModelConfig { name: name.to_owned(), ..config(&server.url("")) };
        let error = ask_with(&mut client(&config, None, &Arc::default())).outcome.unwrap_err();
        let message = "The model `x` does not exist".to_owned();
        let expected =
            ModelError::UnknownModel { model: name.to_owned(), message, advice: advice.to_owned() };
        assert_eq!(error, expected);
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn a_conversation_that_is_too_long_has_its_own_kind() {
    let message = "This model's maximum context length is 10 tokens";
    let server = start_strict_server(ModelScript::new().then(ScriptedAnswer::status(400, message)));
    let completion = ask(&server);
    assert_eq!(completion.outcome, Err(ModelError::ContextLength { message: message.to_owned() }));
    assert_eq!((completion.retries.len(), server.requests().len()), (0, 1));
}

#[test]
fn another_refusal_is_final() {
    let server =
        start_strict_server(ModelScript::new().then(ScriptedAnswer::status(400, "temperature is too high")));
    let error = ask(&server).outcome.unwrap_err().to_string();
    assert_eq!(error, "the model server refused the request (400): temperature is too high");
}

#[test]
fn refused_fields_are_omitted_or_renamed() {
    let script = ModelScript::new()
        .then(ScriptedAnswer::status(400, "Unrecognized request argument supplied: stream_options"))
        .then(ScriptedAnswer::status(400, "Unsupported parameter: use 'max_completion_tokens' instead"))
        .then(ScriptedAnswer::say("well"));
    let server = start_strict_server(script);
    let config = ModelConfig { max_output_tokens: Some(9), ..config(&server.url("/v1")) };
    let mut client = client(&config, None, &Arc::default());
    assert_eq!(text_and_finish(&ask_with(&mut client)), stopped_text("well"));
    assert!(ask_with(&mut client).outcome.is_ok());
    let requests = server.requests();
    assert_eq!(requests.len(), 4);
    assert_eq!(requests[3].raw["stream_options"], json!(null));
    assert_eq!(
        (&requests[3].raw["max_completion_tokens"], &requests[3].raw["max_tokens"]),
        (&json!(9), &json!(null))
    );
}

#[test]
fn the_stop_flag_interrupts_all_waits() {
    let gate = TestGate::new();
    let silent = ScriptedAnswer::say("never").held_by(&gate);
    let midway = ScriptedAnswer::say("the first half and then nothing more").held_midway(&gate);
    let waiting = ScriptedAnswer::status(429, "slow down").retry_after(500);
    for answer in [silent, midway, waiting] {
        let server = start_strict_server(ModelScript::new().then(answer));
        let stop = Arc::new(AtomicBool::new(false));
        let mut client = client(&config(&server.url("/v1")), None, &stop);
        let asking = std::thread::spawn(move || ask_with(&mut client).outcome);
        server.await_exchange(0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(asking.join().expect("asking does not panic"), Err(ModelError::Interrupted));
    }
}

/// A server that sends these responses to any requests. It returns the request lines.
fn canned_server(answers: Vec<&'static str>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let port = listener.local_addr().expect("a bound socket has an address").port();
    let serving = std::thread::spawn(move || {
        let serve = |answer: &str| {
            let (mut stream, _) = listener.accept().expect("the client connects");
            let mut request_bytes = Vec::new();
            let mut buffer = [0; 4096];
            // The bodies in these tests are shorter than the buffer and end with a brace.
            while !request_bytes.ends_with(b"}") {
                let read = stream.read(&mut buffer).expect("the client writes");
                request_bytes.extend_from_slice(&buffer[..read]);
            }
            stream.write_all(answer.as_bytes()).expect("the client reads");
            String::from_utf8_lossy(&request_bytes).lines().next().unwrap_or_default().to_owned()
        };
        answers.into_iter().map(serve).collect()
    });
    (port, serving)
}

#[test]
fn a_base_url_without_a_version_finds_the_place_that_answers() {
    let absent = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 9\r\n\r\nnot found";
    let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
                  data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let (port, serving) = canned_server(vec![absent, answer, answer]);
    let mut client = client(&config(&format!("http://127.0.0.1:{port}/")), None, &Arc::default());
    assert_eq!(text_and_finish(&ask_with(&mut client)), stopped_text("hi"));
    assert_eq!(text_and_finish(&ask_with(&mut client)), stopped_text("hi"));
    let lines = serving.join().expect("the server is content");
    let expected = [
        "POST /v1/chat/completions HTTP/1.1",
        "POST /chat/completions HTTP/1.1",
        "POST /chat/completions HTTP/1.1",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_missing_endpoint_is_reported_with_its_url() {
    let absent = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let (port, serving) = canned_server(vec![absent]);
    let mut client = client(&config(&format!("http://127.0.0.1:{port}/v9")), None, &Arc::default());
    let expected = format!(
        "no chat completions at http://127.0.0.1:{port}/v9/chat/completions (404): no reason given; \
         check model.base_url, or ABIDE_MODEL_BASE_URL"
    );
    assert_eq!(ask_with(&mut client).outcome.unwrap_err().to_string(), expected);
    serving.join().expect("the server is content");
}

#[test]
fn an_html_page_is_not_a_model_server() {
    let page = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html; charset=utf-8\r\n\r\n\
                <!doctype html><title>Open WebUI</title>";
    let (port, serving) = canned_server(vec![page, page]);
    let mut client = client(&config(&format!("http://127.0.0.1:{port}")), None, &Arc::default());
    let error = ask_with(&mut client).outcome.unwrap_err().to_string();
    assert!(error.contains("(200): an HTML page, \"Open WebUI\"; check model.base_url"), "{error}");
    serving.join().expect("the server is content");
}

#[test]
fn a_server_without_http_is_reported() {
    let (port, serving) = canned_server(vec!["SSH-2.0-OpenSSH\r\n"]);
    let config = ModelConfig { max_retries: 0, ..config(&format!("http://127.0.0.1:{port}/v1")) };
    let error = ask_with(&mut client(&config, None, &Arc::default())).outcome.unwrap_err();
    assert!(matches!(error, ModelError::Unavailable { attempts: 1, .. }), "{error:?}");
    serving.join().expect("the server is content");
}

#[test]
fn a_plain_http_server_is_distinguished_from_a_dead_one() {
    let server = start_strict_server(ModelScript::new());
    let url = server.url("/v1").replace("http://", "https://");
    let completion = ask_with(&mut client(&config(&url), None, &Arc::default()));
    let expected = format!(
        "cannot reach {url}/chat/completions: received corrupt message of type InvalidContentType; does the server speak \
         https? Perhaps model.base_url should begin with http://"
    );
    assert_eq!(completion.outcome.unwrap_err().to_string(), expected);
    assert_eq!(completion.retries, []);
}

#[test]
fn a_configuration_that_cannot_work_is_refused_before_anything_is_sent() {
    let wrong =
        |config: &ModelConfig, key| ModelClient::new(config, key, Arc::default()).unwrap_err().to_string();
    let base = wrong(&config("localhost:8080/v1"), None);
    assert!(
        base.starts_with("model.base_url \"localhost:8080/v1\": expected a URL that begins with"),
        "{base}"
    );
    let key = wrong(&config("http://127.0.0.1:1"), Some(ApiKey::new("a\nb", "MY_KEY")));
    assert_eq!(key, "the key in MY_KEY has characters that are not allowed in an HTTP header");
}
