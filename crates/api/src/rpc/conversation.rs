//! The JSON-RPC state of one client: parses its lines into calls, and serialises runtime events into lines.
//!
//! It does no I/O: the caller reads and writes lines and makes the calls. Output for the client is in
//! [`RpcConnection::out`], one object per line.

use std::collections::BTreeMap;

use abide_terminal::{
    CallTicket, TerminalCall, TerminalError, TerminalErrorCode, TerminalEvent, TerminalReply, Utf8Pieces,
};
use abide_wire::terminal as wire;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::methods::{RawRpcRequest, RequestIdOnly, ResponseShape, parse};
use super::streams::ExecStreamState;
use crate::translate;

/// Maximum number of calls in progress.
const MAX_CALLS: usize = 10_000;

/// The state of one client.
#[derive(Default)]
pub(crate) struct RpcConnection {
    waiting: BTreeMap<CallTicket, PendingRpcRequest>,
    pub(super) streams: BTreeMap<CallTicket, ExecStreamState>,
    last: CallTicket,
    /// Output not yet written to the client.
    pub(crate) out: Vec<u8>,
}

/// A request without a response so far.
struct PendingRpcRequest {
    id: Option<Box<RawValue>>,
    shape: ResponseShape,
}

impl RpcConnection {
    /// Parses a line. A resulting call is passed to `call` with the ticket that its events will carry.
    pub(crate) fn hear(&mut self, line: &[u8], call: impl FnOnce(CallTicket, TerminalCall)) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let text = match str::from_utf8(line) {
            Ok(text) => text,
            Err(_) => return self.fail(None, PARSE_ERROR, "the line is no UTF-8", None),
        };
        if text.trim_start().starts_with('[') {
            return self.fail(None, INVALID_REQUEST, "batches are not served; send one object a line", None);
        }
        match serde_json::from_str::<RawRpcRequest<'_>>(text) {
            Ok(request) => self.request(request, call),
            Err(error) if error.is_data() => {
                let id = serde_json::from_str::<RequestIdOnly>(text).ok().and_then(|only| only.id);
                self.fail(id, INVALID_REQUEST, &format!("not a JSON-RPC 2.0 request: {error}"), None);
            }
            Err(error) => self.fail(None, PARSE_ERROR, &format!("not JSON: {error}"), None),
        }
    }

    /// Reports a line over the limit of `most` bytes.
    pub(crate) fn hear_too_much(&mut self, most: usize) {
        self.fail(None, INVALID_REQUEST, &format!("a line has at most {most} bytes"), None);
    }

    fn request(&mut self, request: RawRpcRequest<'_>, call: impl FnOnce(CallTicket, TerminalCall)) {
        let id = request.id.map(ToOwned::to_owned);
        let valid_id = id.as_ref().is_none_or(|id| !id.get().starts_with(['{', '[', 't', 'f']));
        if request.jsonrpc != "2.0" || !valid_id {
            return self.fail(
                id.filter(|_| valid_id),
                INVALID_REQUEST,
                "jsonrpc must be \"2.0\" and id a string or number",
                None,
            );
        }
        if self.waiting.len() >= MAX_CALLS {
            let error = TerminalError::new(
                TerminalErrorCode::ResourcePressure,
                format!("{MAX_CALLS} requests wait already"),
            );
            return self.refuse(id, &error);
        }
        if request.method == "system.ping" {
            return self.succeed(id, &json!({ "pong": true }));
        }
        match parse(&request.method, request.params) {
            Ok(Some((made, shape))) => {
                self.last += 1;
                self.waiting.insert(self.last, PendingRpcRequest { id, shape });
                call(self.last, made);
            }
            // A notification is never answered, not even with an error.
            Ok(None) if id.is_none() => {}
            Ok(None) => {
                self.fail(id, METHOD_NOT_FOUND, &format!("there is no method {}", request.method), None)
            }
            Err(error) => self.refuse(id, &error),
        }
    }

    /// Serialises an event of the runtime.
    pub(crate) fn take(&mut self, event: TerminalEvent) {
        match event {
            TerminalEvent::Reply(ticket, answer) => {
                if let Some(waiting) = self.waiting.remove(&ticket) {
                    self.reply(ticket, waiting, *answer);
                }
            }
            TerminalEvent::Chunk(ticket, chunk) => self.chunk(ticket, chunk),
        }
    }

    fn reply(
        &mut self,
        ticket: u64,
        waiting: PendingRpcRequest,
        answer: Result<TerminalReply, TerminalError>,
    ) {
        let PendingRpcRequest { id, shape } = waiting;
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return self.refuse(id, &error),
        };
        match (shape, reply) {
            (ResponseShape::Run(encoding), TerminalReply::Ran(result)) => {
                self.succeed(id, &translate::run_result(result, encoding))
            }
            (ResponseShape::Stream(encoding), TerminalReply::Streaming(session, exec)) => {
                let stream_id = format!("{session}.{exec}");
                let text = [Utf8Pieces::default(), Utf8Pieces::default()];
                let state = ExecStreamState { id: stream_id.clone(), seq: 0, encoding, text, ends: [0; 2] };
                self.streams.insert(ticket, state);
                self.succeed(id, &wire::ExecStreamResult { stream_id, exec_id: exec.to_string() });
            }
            (ResponseShape::Output(stream, encoding), TerminalReply::Output(piece)) => {
                self.succeed(id, &translate::output_piece(&piece, stream, encoding));
            }
            (ResponseShape::Created | ResponseShape::Plain, TerminalReply::Session(info)) => {
                self.succeed(id, &translate::session(info))
            }
            (_, TerminalReply::Sessions(all)) => {
                let sessions = all.into_iter().map(translate::session).collect();
                self.succeed(id, &wire::SessionListResult { sessions });
            }
            (_, TerminalReply::Destroyed(session)) => {
                self.succeed(id, &json!({ "session_id": session.as_str(), "state": "TERMINATED" }));
            }
            (_, TerminalReply::Done) => self.succeed(id, &json!({})),
            (_, TerminalReply::Cancelled) => self.succeed(id, &json!({ "cancelled": true })),
            (_, TerminalReply::Screen(screen)) => self.succeed(id, &translate::screen(&screen)),
            (_, TerminalReply::Stats(stats)) => self.succeed(
                id,
                &json!({
                    "sessions": stats.sessions, "running": stats.running, "terminated": stats.terminated,
                    "max_sessions": stats.max_sessions, "commands": stats.commands, "adopted": stats.adopted,
                }),
            ),
            (_, _) => self.refuse(
                id,
                &TerminalError::new(
                    TerminalErrorCode::Internal,
                    "the runtime gave another answer than was asked for",
                ),
            ),
        }
    }

    fn succeed(&mut self, id: Option<Box<RawValue>>, result: &impl Serialize) {
        // A request without an id is a notification and has no response.
        if let Some(id) = id {
            self.send(&RpcSuccess { jsonrpc: "2.0", id, result });
        }
    }

    fn refuse(&mut self, id: Option<Box<RawValue>>, error: &TerminalError) {
        let number = code_number(error.code);
        if id.is_some() {
            self.fail(id, number, &error.message, Some(json!({ "code": error.code.as_str() })));
        }
    }

    fn fail(&mut self, id: Option<Box<RawValue>>, code: i32, message: &str, data: Option<Value>) {
        let data = data.unwrap_or_else(|| json!({ "code": "INVALID_PARAMS" }));
        self.send(&json!({
            "jsonrpc": "2.0",
            "id": id.and_then(|id| serde_json::from_str::<Value>(id.get()).ok()),
            "error": { "code": code, "message": message, "data": data },
        }));
    }

    fn send(&mut self, message: &impl Serialize) {
        let start = self.out.len();
        if serde_json::to_writer(&mut self.out, message).is_err() {
            self.out.truncate(start);
            return;
        }
        self.out.push(b'\n');
    }
}

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const INTERNAL: i32 = -32603;
const REFUSED: i32 = -32000;

/// The only place that selects a JSON-RPC error code.
fn code_number(code: TerminalErrorCode) -> i32 {
    match code {
        TerminalErrorCode::InvalidParams => INVALID_PARAMS,
        TerminalErrorCode::Internal => INTERNAL,
        TerminalErrorCode::SessionNotFound
        | TerminalErrorCode::SessionBusy
        | TerminalErrorCode::SessionTerminated
        | TerminalErrorCode::MaxSessionsReached => REFUSED,
        TerminalErrorCode::ShellNotFound
        | TerminalErrorCode::ShellFailed
        | TerminalErrorCode::CwdUnusable
        | TerminalErrorCode::ResourcePressure => REFUSED,
    }
}

#[derive(Serialize)]
struct RpcSuccess<'a, R> {
    jsonrpc: &'static str,
    id: Box<RawValue>,
    result: &'a R,
}
