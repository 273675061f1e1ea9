//! The terminal methods over HTTP: a single call by POST, or a JSON-RPC conversation over a WebSocket.
//!
//! All clients share the daemon's runtime. Sessions belong to the daemon and outlive the connection that created them;
//! missed output can be read with `exec.output`. The conversation itself is in `terminal_socket`.

use std::sync::Arc;

use abide_terminal::{ClientFlow, EventListener, MAX_PAGE_BYTES, ScreenSource, TerminalCall, TerminalEvent};
use abide_wire::rpc as wire;
use axum::{
    extract::{Extension, Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc::unbounded_channel;

use super::{
    HttpState,
    body::RawJson,
    budget,
    credential_watch::CredentialWatch,
    guard::RequestCredential,
    problem::{HttpProblem, ProblemCode},
    terminal_socket,
    websocket::{self, WebSocketUpgrade},
};
use crate::{access::Principal, rpc::RpcConnection};

/// Calls a terminal method.
///
/// `x-terminal-methods` has the parameters and the result of each method. `exec.stream` needs the WebSocket.
#[utoipa::path(
    post, path = "/v1/rpc", tag = "terminals", operation_id = "call",
    request_body = wire::JsonRpcRequest,
    responses(
        (status = 200, description = "The response, with a result or an error of the method.", body = wire::JsonRpcResponse),
        (status = 204, description = "A notification (a request without an id) was accepted."),
        (status = 400, description = "`INVALID_REQUEST`: not a single request, or a method that needs the WebSocket"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn call(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    RawJson(body): RawJson,
) -> Result<Response, HttpProblem> {
    check_request(&body)?;
    let terminals = interface.0.terminals.clone();
    let (event_sender, mut event_receiver) = unbounded_channel();
    let listener: EventListener = Arc::new(move |event| {
        // The receiver is dropped when the client has disconnected.
        event_sender.send(event).ok();
        ClientFlow::Continue
    });
    let mut connection = RpcConnection::new(terminals.register_client());
    let mut parsed_call = None;
    connection.on_line(&body, |call| parsed_call = Some(call));
    // A command may run for long, and its request is not needed any more.
    drop(body);
    let mut reservation = None;
    if let Some(call) = parsed_call {
        // A command may run for long, so memory for its result is reserved only when the result is available.
        let expected = expected_bytes(&call);
        if expected > 0 {
            reservation = interface.0.budget.reserve(&credential.0, expected).await;
        }
        terminals.call_for(call, listener);
        if let Some(event) = event_receiver.recv().await {
            if expected == 0 {
                reservation = interface.0.budget.reserve(&credential.0, serialized_bytes(&event)).await;
            }
            connection.on_event(event);
        }
    }
    if connection.output.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], budget::reserved_body(connection.output, reservation))
        .into_response())
}

/// Maximum memory of a result relative to its size: the result, its text, and the escaped form of the text.
const SERIALIZED_SIZE_FACTOR: usize = 8;
/// Memory of an event besides its output, in bytes.
const EVENT_BYTES: usize = 512;

/// Returns the memory needed to serialise an event: the event, the text of its output, and the escaped form.
pub(super) fn serialized_bytes(event: &TerminalEvent) -> usize {
    let written = |byte: &u8| match byte {
        // A control character is one byte of text and `\u0000`, if it has no shorter escape.
        b'\n' | b'\r' | b'\t' | 8 | 12 | b'"' | b'\\' => 3,
        0..0x20 => 7,
        // Each byte of invalid UTF-8 becomes a replacement character of three bytes.
        0x80.. => 6,
        // Base64 is a third longer than its input.
        _ => 3,
    };
    let [first, second] = event.outputs();
    // The output of some events, such as a list of sessions, is not bytes but values.
    let values = event.output_bytes().saturating_sub(first.len() + second.len());
    let text = first.iter().chain(second).map(written).sum::<usize>();
    EVENT_BYTES + event.output_bytes() + 2 * values + text + drawing_bytes(event)
}

fn drawing_bytes(event: &TerminalEvent) -> usize {
    match event {
        TerminalEvent::Screen(reply) => reply.result.as_ref().as_ref().map_or(0, ScreenSource::drawing_bytes),
        TerminalEvent::Session(_)
        | TerminalEvent::Sessions(_)
        | TerminalEvent::Destroyed(_)
        | TerminalEvent::CommandFinished(_)
        | TerminalEvent::StreamStarted(_)
        | TerminalEvent::Done(_)
        | TerminalEvent::StopRequested(_)
        | TerminalEvent::Output(_)
        | TerminalEvent::Stats(_)
        | TerminalEvent::Chunk(..) => 0,
    }
}

/// Returns the maximum memory of the response to a call, if it is known and the response is immediate; otherwise 0.
fn expected_bytes(call: &TerminalCall) -> usize {
    let page = usize::try_from(MAX_PAGE_BYTES).unwrap_or(usize::MAX);
    match call {
        TerminalCall::Output(_, range, _) => {
            usize::try_from(range.limit).map_or(page, |limit| limit.min(page)) * SERIALIZED_SIZE_FACTOR
        }
        // The largest screen takes the whole budget of a credential.
        TerminalCall::Screen(..) => usize::MAX,
        TerminalCall::Create(..)
        | TerminalCall::Info(..)
        | TerminalCall::List(_)
        | TerminalCall::Destroy { .. }
        | TerminalCall::Run(..)
        | TerminalCall::Stream(..)
        | TerminalCall::Input { .. }
        | TerminalCall::Cancel(..)
        | TerminalCall::Resize(..)
        | TerminalCall::Stats(_) => 0,
    }
}

/// Rejects invalid requests and methods that need a WebSocket.
fn check_request(body: &[u8]) -> Result<(), HttpProblem> {
    let request: wire::JsonRpcRequest = serde_json::from_slice(body)
        .map_err(|error| HttpProblem::invalid(format!("not a JSON-RPC 2.0 request: {error}")))?;
    let named = request.id.is_none_or(|id| id.is_string() || id.is_number());
    if request.jsonrpc != "2.0" || !named {
        return Err(HttpProblem::invalid("jsonrpc must be \"2.0\" and id a string or number"));
    }
    if request.method == "exec.stream" {
        return Err(HttpProblem::invalid(
            "exec.stream needs the WebSocket, GET /v1/rpc; exec.run and exec.output do not",
        ));
    }
    Ok(())
}

/// Opens a WebSocket for terminal methods.
///
/// Each message is one JSON-RPC object. Requests are served concurrently, and streams are sent as notifications. The
/// server closes the connection with code 1008 when the token or sign-in is revoked, rotated or expires.
#[utoipa::path(
    get, path = "/v1/rpc", tag = "terminals", operation_id = "connect",
    responses(
        (status = 101, description = "The WebSocket is open."),
        (status = 426, description = "`UPGRADE_REQUIRED`: the request does not ask for a WebSocket"),
    ),
)]
pub(super) async fn connect(
    State(interface): State<HttpState>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let Some(WebSocketUpgrade { response, connection }) = websocket::upgrade(request, RPC_SUBPROTOCOL) else {
        return Err(HttpProblem::new(
            ProblemCode::UpgradeRequired,
            "ask for a WebSocket, or make single calls with POST /v1/rpc",
        ));
    };
    let permit = interface.0.streams.clone().try_acquire_owned().map_err(|_| {
        HttpProblem::new(
            ProblemCode::TooManyConnections,
            "too many streams are open (setting http.max_streams); close some",
        )
    })?;
    let watch = CredentialWatch::new(interface.clone(), principal);
    tokio::spawn(async move {
        // An error means that the client has disconnected.
        if let Ok(stream) = connection.await {
            terminal_socket::serve(interface, watch, TokioIo::new(stream)).await;
        }
        drop(permit);
    });
    Ok(response)
}

/// Subprotocol that pages offer beside the one with their key, so that the server has one to select.
const RPC_SUBPROTOCOL: &str = "abide.rpc";
