//! The JSON-RPC state of one client: parses its lines into calls, and serialises runtime events into lines.
//!
//! It does no I/O: the caller reads and writes lines and makes the calls. Output for the client is in
//! [`RpcConnection::output`], one object per line.

use std::collections::BTreeMap;

use abide_terminal::{
    CallTicket, MAX_META_BYTES, TerminalCall, TerminalError, TerminalErrorCode, TerminalEvent, TerminalReply,
    Utf8Pieces,
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
    pending_requests: BTreeMap<CallTicket, PendingRpcRequest>,
    pub(super) streams: BTreeMap<CallTicket, ExecStreamState>,
    last_ticket: CallTicket,
    waiting_bytes: usize,
    /// Output not yet written to the client.
    pub(crate) output: Vec<u8>,
}

/// A request without a response so far.
struct PendingRpcRequest {
    id: Option<Box<RawValue>>,
    shape: ResponseShape,
    /// Counted in [`RpcConnection::waiting_bytes`].
    bytes: usize,
}

/// Approximate memory of a request without a reply besides its id, in bytes.
const REQUEST_BYTES: usize = 512;
/// Returns the maximum memory of a reply that is not counted as output.
fn reply_bytes(call: &TerminalCall) -> usize {
    match call {
        TerminalCall::Create(_) | TerminalCall::Info(_) => MAX_META_BYTES,
        // The size of these replies is counted, or is small.
        TerminalCall::List
        | TerminalCall::Destroy { .. }
        | TerminalCall::Run(_)
        | TerminalCall::Stream(_)
        | TerminalCall::Input { .. }
        | TerminalCall::Cancel(_)
        | TerminalCall::Output(_)
        | TerminalCall::Screen(_)
        | TerminalCall::Resize(..)
        | TerminalCall::Stats => 0,
    }
}

/// Maximum length of a request's id, in bytes of JSON.
const MAX_ID_BYTES: usize = 1024;
/// Maximum length of an error message. Longer ones quote the request.
const MAX_MESSAGE_BYTES: usize = 1024;

impl RpcConnection {
    /// Parses a line. A resulting call is passed to `call` with the ticket that its events will carry.
    pub(crate) fn on_line(&mut self, line: &[u8], call: impl FnOnce(CallTicket, TerminalCall)) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let text = match str::from_utf8(line) {
            Ok(text) => text,
            Err(_) => return self.send_error(None, PARSE_ERROR, "the line is not UTF-8", None),
        };
        if text.trim_start().starts_with('[') {
            return self.send_error(
                None,
                INVALID_REQUEST,
                "batches are not served; send one object a line",
                None,
            );
        }
        match serde_json::from_str::<RawRpcRequest<'_>>(text) {
            Ok(request) => self.on_request(request, call),
            Err(error) if error.is_data() => {
                let id = serde_json::from_str::<RequestIdOnly>(text).ok().and_then(|only| only.id);
                let id = id.filter(|id| id.get().len() <= MAX_ID_BYTES);
                self.send_error(id, INVALID_REQUEST, &format!("not a JSON-RPC 2.0 request: {error}"), None);
            }
            Err(error) => self.send_error(None, PARSE_ERROR, &format!("not JSON: {error}"), None),
        }
    }

    /// Reports a line over the limit of `most` bytes.
    pub(crate) fn on_line_too_long(&mut self, max_bytes: usize) {
        self.send_error(None, INVALID_REQUEST, &format!("a line has at most {max_bytes} bytes"), None);
    }

    /// Returns the approximate memory of the requests without a reply.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    fn on_request(&mut self, request: RawRpcRequest<'_>, call: impl FnOnce(CallTicket, TerminalCall)) {
        if request.id.is_some_and(|id| id.get().len() > MAX_ID_BYTES) {
            let message = format!("an id has at most {MAX_ID_BYTES} bytes");
            return self.send_error(None, INVALID_REQUEST, &message, None);
        }
        let id = request.id.map(ToOwned::to_owned);
        let valid_id = id.as_ref().is_none_or(|id| !id.get().starts_with(['{', '[', 't', 'f']));
        if request.jsonrpc != "2.0" || !valid_id {
            return self.send_error(
                id.filter(|_| valid_id),
                INVALID_REQUEST,
                "jsonrpc must be \"2.0\" and id a string or number",
                None,
            );
        }
        if self.pending_requests.len() >= MAX_CALLS {
            let error = TerminalError::new(
                TerminalErrorCode::ResourcePressure,
                format!("{MAX_CALLS} requests wait already"),
            );
            return self.send_terminal_error(id, &error);
        }
        if request.method == "system.ping" {
            return self.send_result(id, &wire::SystemPingResult { pong: true });
        }
        match parse(&request.method, request.params) {
            Ok(Some((parsed_call, shape))) => {
                self.last_ticket += 1;
                let bytes =
                    REQUEST_BYTES + id.as_ref().map_or(0, |id| id.get().len()) + reply_bytes(&parsed_call);
                self.waiting_bytes += bytes;
                self.pending_requests.insert(self.last_ticket, PendingRpcRequest { id, shape, bytes });
                call(self.last_ticket, parsed_call);
            }
            // A notification is never answered, not even with an error.
            Ok(None) if id.is_none() => {}
            Ok(None) => {
                self.send_error(id, METHOD_NOT_FOUND, &format!("there is no method {}", request.method), None)
            }
            Err(error) => self.send_terminal_error(id, &error),
        }
    }

    /// Serialises an event of the runtime.
    pub(crate) fn on_event(&mut self, event: TerminalEvent) {
        match event {
            TerminalEvent::Reply(ticket, answer) => {
                if let Some(waiting) = self.pending_requests.remove(&ticket) {
                    self.waiting_bytes -= waiting.bytes;
                    self.send_reply(ticket, waiting, *answer);
                }
            }
            TerminalEvent::Chunk(ticket, chunk) => self.on_chunk(ticket, chunk),
        }
    }

    fn send_reply(
        &mut self,
        ticket: u64,
        waiting: PendingRpcRequest,
        answer: Result<TerminalReply, TerminalError>,
    ) {
        let PendingRpcRequest { id, shape, .. } = waiting;
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return self.send_terminal_error(id, &error),
        };
        match (shape, reply) {
            (ResponseShape::Run(encoding), TerminalReply::CommandFinished(result)) => {
                self.send_result(id, &translate::run_result(result, encoding))
            }
            (ResponseShape::Stream(encoding), TerminalReply::StreamStarted(session, exec)) => {
                let stream_id = format!("{session}.{exec}");
                let text = [Utf8Pieces::default(), Utf8Pieces::default()];
                let state = ExecStreamState { id: stream_id.clone(), seq: 0, encoding, text, ends: [0; 2] };
                self.streams.insert(ticket, state);
                self.send_result(id, &wire::ExecStreamResult { stream_id, exec_id: exec.to_string() });
            }
            (ResponseShape::Output(stream, encoding), TerminalReply::Output(piece)) => {
                self.send_result(id, &translate::output_piece(&piece, stream, encoding));
            }
            (ResponseShape::Created | ResponseShape::Plain, TerminalReply::Session(info)) => {
                self.send_result(id, &translate::session(info))
            }
            (_, TerminalReply::Sessions(all)) => {
                let sessions = all.into_iter().map(translate::session).collect();
                self.send_result(id, &wire::SessionListResult { sessions });
            }
            (_, TerminalReply::Destroyed(session)) => {
                self.send_result(id, &translate::destroyed(&session));
            }
            (_, TerminalReply::Done) => self.send_result(id, &wire::EmptyResult {}),
            (_, TerminalReply::Cancelled) => {
                self.send_result(id, &wire::ExecCancelResult { cancelled: true })
            }
            (_, TerminalReply::Screen(screen)) => self.send_result(id, &translate::screen(&screen)),
            (_, TerminalReply::Stats(stats)) => self.send_result(id, &translate::stats(&stats)),
            (_, _) => self.send_terminal_error(
                id,
                &TerminalError::new(
                    TerminalErrorCode::Internal,
                    "the runtime returned a response of another kind; please report it",
                ),
            ),
        }
    }

    fn send_result(&mut self, id: Option<Box<RawValue>>, result: &impl Serialize) {
        // A request without an id is a notification and has no response.
        if let Some(id) = id {
            self.send(&RpcSuccess { jsonrpc: "2.0", id, result });
        }
    }

    fn send_terminal_error(&mut self, id: Option<Box<RawValue>>, error: &TerminalError) {
        let number = code_number(error.code);
        if id.is_some() {
            self.send_error(id, number, &error.message, Some(json!({ "code": error.code.as_str() })));
        }
    }

    fn send_error(&mut self, id: Option<Box<RawValue>>, code: i32, message: &str, data: Option<Value>) {
        let data = data.unwrap_or_else(|| json!({ "code": "INVALID_PARAMS" }));
        let message = message.get(..message.floor_char_boundary(MAX_MESSAGE_BYTES)).unwrap_or_default();
        self.send(&json!({
            "jsonrpc": "2.0",
            "id": id.and_then(|id| serde_json::from_str::<Value>(id.get()).ok()),
            "error": { "code": code, "message": message, "data": data },
        }));
    }

    fn send(&mut self, message: &impl Serialize) {
        let start = self.output.len();
        if serde_json::to_writer(&mut self.output, message).is_err() {
            self.output.truncate(start);
            return;
        }
        self.output.push(b'\n');
    }
}

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const INTERNAL: i32 = -32603;
const TERMINAL_ERROR: i32 = -32000;

/// The only place that selects a JSON-RPC error code.
fn code_number(code: TerminalErrorCode) -> i32 {
    match code {
        TerminalErrorCode::InvalidParams => INVALID_PARAMS,
        TerminalErrorCode::Internal => INTERNAL,
        TerminalErrorCode::SessionNotFound
        | TerminalErrorCode::SessionBusy
        | TerminalErrorCode::SessionTerminated
        | TerminalErrorCode::MaxSessionsReached => TERMINAL_ERROR,
        TerminalErrorCode::ShellNotFound
        | TerminalErrorCode::ShellFailed
        | TerminalErrorCode::CwdUnusable
        | TerminalErrorCode::ResourcePressure => TERMINAL_ERROR,
    }
}

#[derive(Serialize)]
struct RpcSuccess<'a, R> {
    jsonrpc: &'static str,
    id: Box<RawValue>,
    result: &'a R,
}
