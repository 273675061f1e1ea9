//! The server: a thread with a listener, a script and a record of requests.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    answer::{AnswerContent, AnswerForm},
    answer_pace,
    received::ReceivedRequest,
    record::{AnswerEnd, AnswerEndGuard, AnswerSource, ExchangeLog, ModelExchange, OtherRequest},
    reply::{self, PreparedReply},
    script::ModelScript,
    watched_value::WatchedValue,
    wire::{AnswerMode, ModelProtocol},
};

/// A model server. Dropping it closes all connections and ends its thread.
#[derive(Debug)]
pub struct ModelServer {
    shared: Arc<ModelServerState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ModelServerState {
    port: u16,
    script: Mutex<ModelScript>,
    record: Arc<WatchedValue<ExchangeLog>>,
}

/// The maximum size of a request body. Agent programs send whole conversations with files.
const MAX_REQUEST_BYTES: usize = 256 << 20;

impl ModelServer {
    /// Starts on a free port.
    pub fn start(script: ModelScript) -> Self {
        Self::start_on(0, script)
    }

    /// Starts on a given port, such as that of a stopped server, so that a test can simulate an outage.
    ///
    /// # Panics
    /// If the port is in use.
    pub fn start_on(port: u16, script: ModelScript) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let listener = listener.expect("a port on the loopback interface is free");
        listener.set_nonblocking(true).expect("a socket of ours can be told not to block");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let record = Arc::new(WatchedValue::new(ExchangeLog::default()));
        let shared = Arc::new(ModelServerState { port, script: Mutex::new(script), record });
        let (stop, stopped) = oneshot::channel();
        let state = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("model".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime needs only what every process may have");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.expect("the socket is ours and does not block");
                let serving = axum::serve(listener, Router::new().fallback(serve).with_state(state));
                tokio::select! {
                    ended = serving => ended.expect("serving has no end of its own"),
                    _ = stopped => {}
                }
            });
            // Dropping the runtime drops the connections, including stalled ones.
        });
        let thread = Some(thread.expect("a thread can be started"));
        Self { shared, stop: Some(stop), thread }
    }

    pub fn port(&self) -> u16 {
        self.shared.port
    }

    /// Returns the URL of `path` on this server. Programs expect it with or without the API version.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    /// Replaces the script for later requests.
    pub fn set_script(&self, script: ModelScript) {
        *self.shared.script.lock().unwrap_or_else(PoisonError::into_inner) = script;
    }

    /// Returns all requests so far with their answers.
    pub fn exchanges(&self) -> Vec<ModelExchange> {
        self.shared.record.read(|record| record.exchanges.clone())
    }

    /// Returns all requests so far, including side requests and refused ones.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests_where(|_| true)
    }

    /// Returns the requests that were turns of a conversation.
    pub fn turns(&self) -> Vec<ReceivedRequest> {
        self.requests_where(|exchange| exchange.answer_source.is_turn())
    }

    /// Returns the side requests.
    pub fn side_requests(&self) -> Vec<ReceivedRequest> {
        self.requests_where(|exchange| {
            matches!(
                exchange.answer_source,
                AnswerSource::DefaultSideRequest | AnswerSource::ScriptedSideRequest
            )
        })
    }

    /// Returns the violations of the message order in all requests.
    pub fn faults(&self) -> Vec<String> {
        let faults = self.exchanges().into_iter().filter_map(|exchange| match exchange.answer_source {
            AnswerSource::Faulty(faults) => Some(faults),
            AnswerSource::Scripted
            | AnswerSource::Default
            | AnswerSource::ScriptedSideRequest
            | AnswerSource::DefaultSideRequest
            | AnswerSource::Unauthorised => None,
        });
        faults.flatten().collect()
    }

    /// Returns the number of turns whose current prompt contains `text`. More than one means that a prompt was sent
    /// twice.
    pub fn prompt_count(&self, text: &str) -> usize {
        self.turns().iter().filter(|request| request.prompt_contains(text)).count()
    }

    /// Returns the requests to other paths than those of the model protocols.
    pub fn other_requests(&self) -> Vec<OtherRequest> {
        self.shared.record.read(|record| record.other_requests.clone())
    }

    /// Blocks until a turn for which `wanted` returns true has arrived, and returns the first such turn. Side requests
    /// are left out because they quote the conversation; [`Self::wait_until`] includes them.
    ///
    /// # Panics
    /// If none arrives within the timeout.
    pub fn wait_for(&self, matches: impl Fn(&ReceivedRequest) -> bool) -> ReceivedRequest {
        let exchange = self.shared.record.wait(|record| {
            first(record, |exchange| exchange.answer_source.is_turn() && matches(&exchange.request))
        });
        self.expect_found(exchange).request
    }

    /// Like [`Self::wait_for`], without blocking the thread.
    ///
    /// # Panics
    /// If none arrives within the timeout.
    pub async fn wait_for_async(&self, matches: impl Fn(&ReceivedRequest) -> bool) -> ReceivedRequest {
        let record = &self.shared.record;
        let exchange = record
            .wait_async(|record| {
                first(record, |exchange| exchange.answer_source.is_turn() && matches(&exchange.request))
            })
            .await;
        self.expect_found(exchange).request
    }

    /// Blocks until `wanted` returns true for an exchange, for example one that ended in a certain way, and returns the
    /// first.
    ///
    /// # Panics
    /// If there is none within the timeout.
    pub fn wait_until(&self, matches: impl Fn(&ModelExchange) -> bool) -> ModelExchange {
        let exchange = self.shared.record.wait(|record| first(record, &matches));
        self.expect_found(exchange)
    }

    /// Blocks without a timeout until the request with this index has arrived.
    pub fn await_exchange(&self, at: usize) -> ModelExchange {
        loop {
            if let Some(exchange) = self.shared.record.wait(|record| record.exchanges.get(at).cloned()) {
                return exchange;
            }
        }
    }

    fn expect_found(&self, exchange: Option<ModelExchange>) -> ModelExchange {
        let Some(exchange) = exchange else {
            let received: Vec<String> = self.requests().iter().map(ReceivedRequest::last_user_text).collect();
            panic!("the expected request never came; received so far: {received:?}");
        };
        exchange
    }

    fn requests_where(&self, matches: impl Fn(&ModelExchange) -> bool) -> Vec<ReceivedRequest> {
        self.shared.record.read(|record| {
            record
                .exchanges
                .iter()
                .filter(|exchange| matches(exchange))
                .map(|exchange| exchange.request.clone())
                .collect()
        })
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        // If the thread has panicked, the receiver is gone and the join fails; the test has failed already.
        if let Some(stop) = self.stop.take() {
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn first(record: &ExchangeLog, matches: impl Fn(&ModelExchange) -> bool) -> Option<ModelExchange> {
    record.exchanges.iter().find(|exchange| matches(exchange)).cloned()
}

async fn serve(State(shared): State<Arc<ModelServerState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let Ok(body) = to_bytes(body, MAX_REQUEST_BYTES).await else {
        return json_response(StatusCode::PAYLOAD_TOO_LARGE, json!({ "error": "too long" }));
    };
    let raw: Value = serde_json::from_slice(&body).unwrap_or_default();
    let protocol = if parts.method == Method::POST { ModelProtocol::of(&path, &raw) } else { None };
    let Some((wire, want)) = protocol.filter(|_| raw.is_object()) else {
        let visit = OtherRequest { method: parts.method.to_string(), path: path.clone() };
        shared.record.update(|record| record.other_requests.push(visit));
        return other_response(&path);
    };
    let key = key(&parts.headers, &parts.uri);
    if want == AnswerMode::Count {
        let visit = OtherRequest { method: parts.method.to_string(), path };
        shared.record.update(|record| record.other_requests.push(visit));
        return json_response(StatusCode::OK, wire.count(reply::tokens(&raw)));
    }
    let received =
        ReceivedRequest { streaming: want == AnswerMode::Stream, key, ..wire.parse_request(&path, raw) };
    answer(&shared, received).await
}

async fn answer(shared: &ModelServerState, mut request: ReceivedRequest) -> Response {
    let (answer, request) = shared.record.update(|record| {
        request.index = record.exchanges.len();
        let mut script = shared.script.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, treatment) = script.answer(&request);
        record.exchanges.push(ModelExchange {
            request: request.clone(),
            answer_source: treatment,
            end: AnswerEnd::Open,
        });
        (answer, request)
    });
    let ending = AnswerEndGuard::new(Arc::clone(&shared.record), request.index);
    tokio::time::sleep(answer.pacing.delay).await;
    if let Some(gate) = &answer.pacing.gate_before {
        gate.pass().await;
    }
    let mut response = Response::builder();
    let (kind, pieces) = match answer.content {
        AnswerContent::Parts(parts) => {
            let mut reply = PreparedReply::new(&request, shared.port, &parts, answer.usage);
            reply.finish = answer.finish;
            if request.streaming && answer.form == AnswerForm::AsAsked {
                ("text/event-stream", request.protocol.stream(&reply, &request))
            } else {
                ("application/json", vec![request.protocol.unstreamed(&reply, &request).to_string()])
            }
        }
        AnswerContent::Status { code, message, retry_after } => {
            response = response.status(code);
            if let Some(seconds) = retry_after {
                response = response.header(header::RETRY_AFTER, seconds);
            }
            ("application/json", vec![request.protocol.error(code, &message).to_string()])
        }
        AnswerContent::Raw { code, body } => {
            response = response.status(code);
            ("text/plain", vec![body])
        }
    };
    let body = answer_pace::body(pieces, &answer.pacing, ending);
    response.header(header::CONTENT_TYPE, kind).body(body).expect("a script gives statuses that exist")
}

/// Responds to other paths. Programs accept any response as long as it comes quickly.
fn other_response(path: &str) -> Response {
    let path = path.trim_end_matches('/');
    if path.ends_with("/models") {
        let model = json!({ "id": "stub", "object": "model", "created": 0, "owned_by": "abide" });
        return json_response(StatusCode::OK, json!({ "object": "list", "data": [model], "models": [] }));
    }
    if path.is_empty() {
        return json_response(StatusCode::OK, json!({}));
    }
    json_response(
        StatusCode::NOT_FOUND,
        json!({ "error": { "message": "nothing is here", "type": "not_found_error" } }),
    )
}

fn json_response(status: StatusCode, body: Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn key(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let bearer = || header("authorization")?.strip_prefix("Bearer ").map(str::to_owned);
    let query = || uri.query()?.split('&').find_map(|pair| pair.strip_prefix("key=")).map(str::to_owned);
    header("x-api-key").or_else(|| header("x-goog-api-key")).or_else(bearer).or_else(query)
}
