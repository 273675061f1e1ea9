//! The terminal methods over HTTP: a single call by POST, or a JSON-RPC conversation over a WebSocket.
//!
//! All clients share the daemon's runtime. A client that does not read its WebSocket applies backpressure to the
//! sessions of its calls until the server's timeout disconnects it. Responses and streams count alike. Sessions belong
//! to the daemon and outlive the connection that created them; missed output can be read with `exec.output`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use abide_terminal::{ClientFlow, EventListener, MAX_PAGE_BYTES, TerminalCall, TerminalEvent};
use abide_wire::rpc as wire;
use axum::{
    body::Bytes,
    extract::{
        Extension, FromRequestParts, Request, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket, close_code},
    },
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, unbounded_channel},
    watch,
};

use super::{
    HttpState, StopMode,
    body::RawJson,
    budget::{self, ByteReservation},
    guard::RequestCredential,
    problem::{HttpProblem, ProblemCode},
};
use crate::rpc::RpcConnection;

/// Makes one call of a terminal method.
///
/// Streams are offered over the WebSocket only.
#[utoipa::path(
    post, path = "/v1/rpc", tag = "terminals", operation_id = "call",
    request_body = wire::JsonRpcRequest,
    responses(
        (status = 200, description = "The answer, which may be an error of the method's.", body = wire::JsonRpcResponse),
        (status = 204, description = "A request without an id was taken and gets no answer."),
        (status = 400, description = "`INVALID_REQUEST`: not one request, or one that needs the WebSocket"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn call(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    RawJson(sent): RawJson,
) -> Result<Response, HttpProblem> {
    check(&sent)?;
    let terminals = interface.0.terminals.clone();
    let (say, mut said) = unbounded_channel();
    let listener: EventListener = Arc::new(move |event| {
        // The receiver is dropped when the client has disconnected.
        say.send(event).ok();
        ClientFlow::Go
    });
    let mut talk = RpcConnection::default();
    let mut made = None;
    talk.hear(&sent, |ticket, call| made = Some((ticket, call)));
    let mut reservation = None;
    if let Some((ticket, call)) = made {
        // A command may run for long, so memory for its result is reserved only when the result is available.
        let expected = expected_bytes(&call);
        if expected > 0 {
            reservation = interface.0.budget.reserve(&credential.0, expected * WRITTEN_OUT).await;
        }
        terminals.attend(terminals.client(), ticket, call, listener);
        if let Some(event) = said.recv().await {
            if expected == 0 {
                reservation = interface.0.budget.reserve(&credential.0, written_bytes(&event)).await;
            }
            talk.take(event);
        }
    }
    if talk.out.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], budget::body(talk.out, reservation)).into_response())
}

/// Maximum memory of a result relative to its size: the result itself plus its escaped form.
const WRITTEN_OUT: usize = 7;

/// Returns the memory needed to serialise an event: the event itself plus its escaped form.
fn written_bytes(event: &TerminalEvent) -> usize {
    let escaped = |byte: &u8| match byte {
        b'\n' | b'\r' | b'\t' | 8 | 12 | b'"' | b'\\' => 2,
        0..0x20 => 6,
        // Each byte of invalid UTF-8 becomes a replacement character of three bytes.
        0x80.. => 3,
        _ => 1,
    };
    event.output_bytes() + event.outputs().into_iter().flatten().map(escaped).sum::<usize>()
}

/// Returns the maximum size of the response to a call, if it is known and the response is immediate; otherwise 0.
fn expected_bytes(call: &TerminalCall) -> usize {
    let page = usize::try_from(MAX_PAGE_BYTES).unwrap_or(usize::MAX);
    match call {
        TerminalCall::Output(range) => usize::try_from(range.limit).map_or(page, |limit| limit.min(page)),
        TerminalCall::Screen(_) => page,
        TerminalCall::Create(_)
        | TerminalCall::Info(_)
        | TerminalCall::List
        | TerminalCall::Destroy { .. }
        | TerminalCall::Run(_)
        | TerminalCall::Stream(_)
        | TerminalCall::Input { .. }
        | TerminalCall::Cancel(_)
        | TerminalCall::Resize(..)
        | TerminalCall::Stats => 0,
    }
}

/// Rejects invalid requests and methods that need a WebSocket.
fn check(sent: &[u8]) -> Result<(), HttpProblem> {
    let request: wire::JsonRpcRequest = serde_json::from_slice(sent)
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
/// Every message is one JSON-RPC object. Requests are served at the same time, and streams come as notifications.
#[utoipa::path(
    get, path = "/v1/rpc", tag = "terminals", operation_id = "connect",
    responses(
        (status = 101, description = "The WebSocket is open."),
        (status = 426, description = "`UPGRADE_REQUIRED`: this is for WebSockets"),
    ),
)]
pub(super) async fn connect(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    request: Request,
) -> Result<Response, HttpProblem> {
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &interface).await.map_err(|_| {
        HttpProblem::new(
            ProblemCode::UpgradeRequired,
            "ask for a WebSocket, or make single calls with POST /v1/rpc",
        )
    })?;
    let place = interface.0.streams.clone().try_acquire_owned().map_err(|_| {
        HttpProblem::new(
            ProblemCode::TooManyConnections,
            "too many streams are open (setting http.max_streams); close some",
        )
    })?;
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .max_message_size(interface.0.settings.max_body_bytes)
        .max_frame_size(interface.0.settings.max_body_bytes);
    Ok(upgrade.on_upgrade(async move |socket| {
        serve(interface, credential, socket).await;
        drop(place);
    }))
}

/// Subprotocol that pages offer beside the one with their key, so that the server has one to select.
const PROTOCOL: &str = "abide.rpc";

/// Unread bytes above which the sessions of the client's calls are paused.
const HOLD_AT: usize = 1 << 20;
/// The same limit while all clients together exceed theirs.
const HOLD_AT_WHEN_FULL: usize = HOLD_AT / 16;
/// Unread bytes above which no further requests of the client are read.
const STOP_AT: usize = 4 << 20;

/// Unread bytes of one client, in responses and streams. Shared by the runtime's thread and the client's task.
#[derive(Debug)]
struct ClientBacklog {
    interface: HttpState,
    bytes: AtomicUsize,
    /// Whether a session is paused because of this client.
    holds: AtomicBool,
}

impl ClientBacklog {
    fn new(interface: HttpState) -> Self {
        Self { interface, bytes: AtomicUsize::new(0), holds: AtomicBool::new(false) }
    }

    fn add(&self, event: &TerminalEvent) -> ClientFlow {
        let more = event.output_bytes();
        if more == 0 {
            return ClientFlow::Go;
        }
        let has_room = self.interface.0.budget.add_streamed(more);
        let bytes = self.bytes.fetch_add(more, Ordering::AcqRel) + more;
        if bytes < if has_room { HOLD_AT } else { HOLD_AT_WHEN_FULL } {
            return ClientFlow::Go;
        }
        self.holds.store(true, Ordering::Release);
        ClientFlow::Hold
    }

    /// Subtracts sent bytes. Returns whether paused sessions may resume.
    fn remove(&self, told: usize) -> bool {
        let left = self.bytes.fetch_sub(told, Ordering::AcqRel) - told;
        self.interface.0.budget.remove_streamed(told);
        left < HOLD_AT_WHEN_FULL / 2 && self.holds.swap(false, Ordering::AcqRel)
    }

    fn takes_requests(&self) -> bool {
        self.bytes.load(Ordering::Acquire) < STOP_AT
    }
}

impl Drop for ClientBacklog {
    fn drop(&mut self) {
        self.interface.0.budget.remove_streamed(*self.bytes.get_mut());
    }
}

async fn serve(interface: HttpState, credential: RequestCredential, mut socket: WebSocket) {
    let terminals = interface.0.terminals.clone();
    let client = terminals.client();
    let load = Arc::new(ClientBacklog::new(interface.clone()));
    let (say, mut said) = unbounded_channel();
    let listener: EventListener = {
        let load = load.clone();
        Arc::new(move |event| {
            let (flow, bytes) = (load.add(&event), event.output_bytes());
            if say.send(event).is_ok() {
                return flow;
            }
            // A disconnected client pauses no session; the output of its commands is in their spools.
            load.remove(bytes);
            ClientFlow::Go
        })
    };
    let mut stop = interface.0.stop.subscribe();
    let mut talk = RpcConnection::default();
    let mut next = None;
    loop {
        // Memory for a large response is reserved before it is serialised, and released when it is sent.
        let mut reservation: Option<ByteReservation> = None;
        tokio::select! {
            received = socket.recv(), if load.takes_requests() => match received {
                Some(Ok(Message::Text(text))) => talk.hear(text.as_bytes(), |ticket, call| {
                    terminals.attend(client, ticket, call, listener.clone());
                }),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Binary(_))) => {
                    close(&mut socket, close_code::UNSUPPORTED, "one JSON object a text message, please").await;
                    break;
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
            },
            Some(event) = following(&mut next, &mut said) => {
                if event.output_bytes() >= LARGE_BYTES {
                    reservation = interface.0.budget.reserve(&credential.0, written_bytes(&event)).await;
                }
                let told = hear(&mut talk, event, &mut said, &mut next);
                if load.remove(told) {
                    terminals.release(client);
                }
            }
            () = stopped(&mut stop) => {
                close(&mut socket, close_code::AWAY, "the daemon is stopping").await;
                break;
            }
        }
        if let Some(reservation) = &mut reservation {
            reservation.shrink_to(talk.out.len());
        }
        if tell(&mut socket, &mut talk).await.is_err() {
            break;
        }
    }
    said.close();
    while let Some(event) = next.take().or_else(|| said.try_recv().ok()) {
        load.remove(event.output_bytes());
    }
    terminals.leave(client);
}

async fn stopped(stop: &mut watch::Receiver<StopMode>) {
    // An error means that the sender is dropped: the daemon stops.
    stop.wait_for(|stop| *stop != StopMode::No).await.ok();
}

/// Size from which an event is serialised only after its memory is reserved.
const LARGE_BYTES: usize = 64 << 10;

/// Returns the deferred event, or the next one.
async fn following(
    next: &mut Option<TerminalEvent>,
    said: &mut UnboundedReceiver<TerminalEvent>,
) -> Option<TerminalEvent> {
    match next.take() {
        Some(event) => Some(event),
        None => said.recv().await,
    }
}

/// Takes pending events of the runtime, up to the limit. Returns the number of output bytes. A large event is deferred,
/// because it needs a reservation of its own.
fn hear(
    talk: &mut RpcConnection,
    first: TerminalEvent,
    said: &mut UnboundedReceiver<TerminalEvent>,
    next: &mut Option<TerminalEvent>,
) -> usize {
    let mut told = first.output_bytes();
    talk.take(first);
    while talk.out.len() < HOLD_AT / 4
        && let Ok(event) = said.try_recv()
    {
        if event.output_bytes() >= LARGE_BYTES {
            *next = Some(event);
            break;
        }
        told += event.output_bytes();
        talk.take(event);
    }
    told
}

/// Sends each line as one message.
async fn tell(socket: &mut WebSocket, talk: &mut RpcConnection) -> Result<(), axum::Error> {
    let lines = Bytes::from(std::mem::take(&mut talk.out));
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        // The lines are JSON that we serialised, so they are UTF-8.
        let Ok(text) = str::from_utf8(line) else { continue };
        socket.send(Message::text(text)).await?;
    }
    Ok(())
}

async fn close(socket: &mut WebSocket, code: u16, reason: &'static str) {
    // The client may have closed the connection already.
    socket.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await.ok();
}
