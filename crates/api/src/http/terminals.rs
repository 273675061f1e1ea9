//! The terminal methods over HTTP: one request by POST, or a whole conversation over a WebSocket.
//!
//! All clients share the daemon's one runtime. A client that does not read its WebSocket holds back its own streams and
//! nobody else's, and is cut off by the server's patience. Sessions are the daemon's: they do not end with the connection
//! that made them, and what a stream would have told can be read later with `exec.output`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use abide_terminal::{Chunk, Event, Flow, Listener};
use abide_wire::rpc as wire;
use axum::{
    body::Bytes,
    extract::{
        FromRequestParts, Request, State, WebSocketUpgrade,
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
    Interface, Stop,
    body::RawJson,
    problem::{Code, Problem},
};
use crate::rpc::Conversation;

/// Makes one call of a terminal method.
///
/// Streams are offered over the WebSocket only.
#[utoipa::path(
    post, path = "/v1/rpc", tag = "terminals", operation_id = "call",
    request_body = wire::Request,
    responses(
        (status = 200, description = "The answer, which may be an error of the method's.", body = wire::Response),
        (status = 204, description = "A request without an id was taken and gets no answer."),
        (status = 400, description = "`INVALID_REQUEST`: not one request, or one that needs the WebSocket"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn call(
    State(interface): State<Interface>,
    RawJson(sent): RawJson,
) -> Result<Response, Problem> {
    check(&sent)?;
    let terminals = interface.0.terminals.clone();
    let (say, mut said) = unbounded_channel();
    let listener: Listener = Arc::new(move |event| {
        let _the_client_left = say.send(event);
        Flow::Go
    });
    let mut talk = Conversation::default();
    let client = terminals.client();
    let mut waits = false;
    talk.hear(&sent, |ticket, call| {
        waits = true;
        terminals.attend(client, ticket, call, listener);
    });
    if waits && let Some(event) = said.recv().await {
        talk.take(event);
    }
    if talk.out.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], talk.out).into_response())
}

/// Refuses what is no request, or one that can only be met over a WebSocket.
fn check(sent: &[u8]) -> Result<(), Problem> {
    let request: wire::Request = serde_json::from_slice(sent)
        .map_err(|error| Problem::invalid(format!("not a JSON-RPC 2.0 request: {error}")))?;
    let named = request.id.is_none_or(|id| id.is_string() || id.is_number());
    if request.jsonrpc != "2.0" || !named {
        return Err(Problem::invalid("jsonrpc must be \"2.0\" and id a string or number"));
    }
    if request.method == "exec.stream" {
        return Err(Problem::invalid(
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
    State(interface): State<Interface>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &interface).await.map_err(|_| {
        Problem::new(Code::UpgradeRequired, "ask for a WebSocket, or make single calls with POST /v1/rpc")
    })?;
    let place = interface.0.streams.clone().try_acquire_owned().map_err(|_| {
        Problem::new(
            Code::TooManyConnections,
            "too many streams are open (setting http.max_streams); close some",
        )
    })?;
    let upgrade = upgrade
        .max_message_size(interface.0.settings.max_body_bytes)
        .max_frame_size(interface.0.settings.max_body_bytes);
    Ok(upgrade.on_upgrade(async move |socket| {
        serve(interface, socket).await;
        drop(place);
    }))
}

/// With more than this unread by the client, its streams are held back.
const HOLD_AT: usize = 1 << 20;

/// What the runtime's thread and a client's task both know.
#[derive(Debug, Default)]
struct Load {
    /// How many bytes of streams the client is still to be told.
    bytes: AtomicUsize,
    /// Whether a stream is held back for it.
    holds: AtomicBool,
}

impl Load {
    fn add(&self, event: &Event) -> Flow {
        let more = size(event);
        if more == 0 || self.bytes.fetch_add(more, Ordering::AcqRel) + more < HOLD_AT {
            return Flow::Go;
        }
        self.holds.store(true, Ordering::Release);
        Flow::Hold
    }

    /// Takes off what was told; says whether whoever is held back may go on.
    fn remove(&self, told: usize) -> bool {
        let left = self.bytes.fetch_sub(told, Ordering::AcqRel) - told;
        left < HOLD_AT / 2 && self.holds.swap(false, Ordering::AcqRel)
    }
}

fn size(event: &Event) -> usize {
    match event {
        Event::Chunk(_, Chunk::Output { bytes, .. }) => bytes.len(),
        Event::Chunk(_, Chunk::Exit(_)) | Event::Reply(..) => 0,
    }
}

async fn serve(interface: Interface, mut socket: WebSocket) {
    let terminals = interface.0.terminals.clone();
    let client = terminals.client();
    let load = Arc::new(Load::default());
    let (say, mut said) = unbounded_channel();
    let listener: Listener = {
        let load = load.clone();
        Arc::new(move |event| {
            let flow = load.add(&event);
            // For a client that left nobody is held back: what its commands print is in their spools.
            if say.send(event).is_ok() { flow } else { Flow::Go }
        })
    };
    let mut stop = interface.0.stop.subscribe();
    let mut talk = Conversation::default();
    loop {
        tokio::select! {
            received = socket.recv() => match received {
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
            Some(event) = said.recv() => {
                let told = hear(&mut talk, event, &mut said);
                if load.remove(told) {
                    terminals.release(client);
                }
            }
            () = stopped(&mut stop) => {
                close(&mut socket, close_code::AWAY, "the daemon is stopping").await;
                break;
            }
        }
        if tell(&mut socket, &mut talk).await.is_err() {
            break;
        }
    }
    drop(said);
    terminals.release(client);
}

async fn stopped(stop: &mut watch::Receiver<Stop>) {
    let _nobody_can_ask_any_more = stop.wait_for(|stop| *stop != Stop::No).await;
}

/// Takes what the runtime said, as much of it as there is and fits; says how many bytes of streams that were.
fn hear(talk: &mut Conversation, first: Event, said: &mut UnboundedReceiver<Event>) -> usize {
    let mut told = size(&first);
    talk.take(first);
    while talk.out.len() < HOLD_AT / 4
        && let Ok(event) = said.try_recv()
    {
        told += size(&event);
        talk.take(event);
    }
    told
}

/// Sends every line as a message of its own.
async fn tell(socket: &mut WebSocket, talk: &mut Conversation) -> Result<(), axum::Error> {
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
