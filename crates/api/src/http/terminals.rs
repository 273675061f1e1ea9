//! The terminal methods over HTTP: one request by POST, or a whole conversation over a WebSocket.
//!
//! All clients share the daemon's one runtime. A client that does not read its WebSocket holds back the sessions that it
//! has calls in, and is cut off by the server's patience. Answers count like streams. Sessions are the daemon's: they do not end with the connection
//! that made them, and what a stream would have told can be read later with `exec.output`.

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
        let _the_client_left = say.send(event);
        ClientFlow::Go
    });
    let mut talk = RpcConnection::default();
    let mut made = None;
    talk.hear(&sent, |ticket, call| made = Some((ticket, call)));
    let mut reservation = None;
    if let Some((ticket, call)) = made {
        // A command may take long, so room for its result is taken when it is there.
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

/// How many times more than itself a result takes at the most until its client has it: as it is, and written out with
/// escapes.
const WRITTEN_OUT: usize = 7;

/// How many bytes an event takes while it is written out: as it is, and with escapes.
fn written_bytes(event: &TerminalEvent) -> usize {
    let escaped = |byte: &u8| match byte {
        b'\n' | b'\r' | b'\t' | 8 | 12 | b'"' | b'\\' => 2,
        0..0x20 => 6,
        // Of what is no UTF-8, each byte becomes a character of three.
        0x80.. => 3,
        _ => 1,
    };
    event.output_bytes() + event.outputs().into_iter().flatten().map(escaped).sum::<usize>()
}

/// How many bytes a call is answered with at most, where that is known and the answer comes at once.
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

/// Refuses what is no request, or one that can only be met over a WebSocket.
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

/// What a page names beside the subprotocol with its key, so that there is one which can be chosen.
const PROTOCOL: &str = "abide.rpc";

/// With more than this unread by the client, the sessions that it has calls in are held back.
const HOLD_AT: usize = 1 << 20;
/// The same, while all clients together have too much unread.
const HOLD_AT_WHEN_FULL: usize = HOLD_AT / 16;
/// With more than this unread by the client, none of its requests are taken.
const STOP_AT: usize = 4 << 20;

/// What the runtime's thread and a client's task both know: how many bytes the client is still to be told, in answers
/// and streams.
#[derive(Debug)]
struct ClientBacklog {
    interface: HttpState,
    bytes: AtomicUsize,
    /// Whether a session is held back for it.
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

    /// Takes off what was told; says whether sessions that are held back may go on.
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
            // For a client that left, nothing is held back: what its commands print is in their spools.
            load.remove(bytes);
            ClientFlow::Go
        })
    };
    let mut stop = interface.0.stop.subscribe();
    let mut talk = RpcConnection::default();
    let mut next = None;
    loop {
        // Room for a large answer is taken before it is written out, and given back when the client has it.
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
    let _nobody_can_ask_any_more = stop.wait_for(|stop| *stop != StopMode::No).await;
}

/// From this size on, an event is written out only when there is room for it.
const LARGE_BYTES: usize = 64 << 10;

/// The event that was put aside, or the next one.
async fn following(
    next: &mut Option<TerminalEvent>,
    said: &mut UnboundedReceiver<TerminalEvent>,
) -> Option<TerminalEvent> {
    match next.take() {
        Some(event) => Some(event),
        None => said.recv().await,
    }
}

/// Takes what the runtime said, as much of it as there is and fits; says how many bytes of output that were. A large one
/// that follows is put aside: it needs room of its own.
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

/// Sends every line as a message of its own.
async fn tell(socket: &mut WebSocket, talk: &mut RpcConnection) -> Result<(), axum::Error> {
    let lines = Bytes::from(std::mem::take(&mut talk.out));
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        // The lines are JSON of our own making, so they are text.
        let Ok(text) = str::from_utf8(line) else { continue };
        socket.send(Message::text(text)).await?;
    }
    Ok(())
}

async fn close(socket: &mut WebSocket, code: u16, reason: &'static str) {
    let _gone_already = socket.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await;
}
