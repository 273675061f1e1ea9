//! The JSON-RPC state of one client: parses its lines into calls, and serialises runtime events into lines.
//!
//! It does no I/O: the caller reads and writes lines and makes the calls. Output for the client is in
//! [`RpcConnection::output`], one object per line.

use std::collections::BTreeMap;

use abide_terminal::{
    CallId, CallReply, MAX_META_BYTES, RuntimeClient, StartedStream, TerminalCall, TerminalError,
    TerminalErrorCode, TerminalEvent, Utf8Pieces,
};
use abide_wire::terminal as wire;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::methods::{RawRpcRequest, RequestIdOnly, RpcOutputFormat, parse};
use super::streams::ExecStreamState;
use crate::translate::to_wire;

/// Maximum number of calls in progress.
const MAX_CALLS: usize = 10_000;

/// The state of one client.
#[derive(Default)]
pub(crate) struct RpcConnection {
    client: RuntimeClient,
    pending_requests: BTreeMap<CallId, PendingRpcRequest>,
    pub(super) streams: BTreeMap<CallId, ExecStreamState>,
    last_call: u64,
    waiting_bytes: usize,
    /// Output not yet written to the client.
    pub(crate) output: Vec<u8>,
}

/// A request without a response so far.
struct PendingRpcRequest {
    id: Option<Box<RawValue>>,
    format: RpcOutputFormat,
    /// Counted in [`RpcConnection::waiting_bytes`].
    bytes: usize,
}

/// Approximate memory of a request without a reply besides its id, in bytes.
const REQUEST_BYTES: usize = 512;
/// Returns the maximum memory of a reply that is not counted as output.
fn reply_bytes(call: &TerminalCall) -> usize {
    match call {
        TerminalCall::Create(..) | TerminalCall::Info(..) => MAX_META_BYTES,
        // The size of these replies is counted, or is small.
        TerminalCall::List(_)
        | TerminalCall::Destroy { .. }
        | TerminalCall::Run(..)
        | TerminalCall::Stream(..)
        | TerminalCall::Input { .. }
        | TerminalCall::Cancel(..)
        | TerminalCall::Output(..)
        | TerminalCall::Screen(..)
        | TerminalCall::Resize(..)
        | TerminalCall::Stats(_) => 0,
    }
}

/// Maximum length of a request's id, in bytes of JSON.
const MAX_ID_BYTES: usize = 1024;
/// Maximum length of an error message. Longer ones quote the request.
const MAX_MESSAGE_BYTES: usize = 1024;

impl RpcConnection {
    /// The conversation of one of several clients of a runtime.
    pub(crate) fn new(client: RuntimeClient) -> Self {
        Self { client, ..Self::default() }
    }

    /// Parses a line. A resulting call is passed to `call`.
    pub(crate) fn on_line(&mut self, line: &[u8], call: impl FnOnce(TerminalCall)) {
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

    fn on_request(&mut self, request: RawRpcRequest<'_>, call: impl FnOnce(TerminalCall)) {
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
        self.last_call += 1;
        let call_id = CallId { client: self.client, number: self.last_call };
        match parse(&request.method, request.params, call_id) {
            Ok(Some((parsed_call, format))) => {
                let bytes =
                    REQUEST_BYTES + id.as_ref().map_or(0, |id| id.get().len()) + reply_bytes(&parsed_call);
                self.waiting_bytes += bytes;
                self.pending_requests.insert(call_id, PendingRpcRequest { id, format, bytes });
                call(parsed_call);
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
        let call_id = event.call_id();
        if let TerminalEvent::Chunk(_, chunk) = event {
            return self.on_chunk(call_id, chunk);
        }
        let Some(PendingRpcRequest { id, format, bytes }) = self.pending_requests.remove(&call_id) else {
            return;
        };
        self.waiting_bytes -= bytes;
        let RpcOutputFormat { encoding, stream } = format;
        match event {
            TerminalEvent::Session(reply) => self.send_reply(id, reply, to_wire::session),
            TerminalEvent::Sessions(reply) => self.send_reply(id, reply, to_wire::sessions),
            TerminalEvent::Destroyed(reply) => self.send_reply(id, reply, to_wire::destroyed),
            TerminalEvent::CommandFinished(reply) => {
                self.send_reply(id, reply, |run| to_wire::run_result(&run, encoding));
            }
            TerminalEvent::StreamStarted(reply) => self.on_stream_started(id, reply, encoding),
            TerminalEvent::Done(reply) => self.send_reply(id, reply, |_| wire::EmptyResult {}),
            TerminalEvent::StopRequested(reply) => {
                self.send_reply(id, reply, |_| wire::ExecCancelResult { cancelled: true });
            }
            TerminalEvent::Output(reply) => {
                self.send_reply(id, reply, |piece| to_wire::output_page(&piece.page, stream, encoding));
            }
            TerminalEvent::Screen(reply) => {
                self.send_reply(id, reply, |screen| to_wire::screen(&screen));
            }
            TerminalEvent::Stats(reply) => self.send_reply(id, reply, to_wire::stats),
            TerminalEvent::Chunk(..) => {}
        }
    }

    fn on_stream_started(
        &mut self,
        id: Option<Box<RawValue>>,
        reply: CallReply<StartedStream>,
        encoding: wire::OutputEncoding,
    ) {
        if let Ok(started) = &*reply.result {
            let text = [Utf8Pieces::default(), Utf8Pieces::default()];
            let stream_id = to_wire::stream_started(started).stream_id;
            let state = ExecStreamState { id: stream_id, seq: 0, encoding, text, ends: [0; 2] };
            self.streams.insert(reply.ticket.id(), state);
        }
        self.send_reply(id, reply, |started| to_wire::stream_started(&started));
    }

    /// Sends the result of a call, or its error.
    fn send_reply<R, W: Serialize>(
        &mut self,
        id: Option<Box<RawValue>>,
        reply: CallReply<R>,
        to_wire: impl FnOnce(R) -> W,
    ) {
        match *reply.result {
            Ok(result) => self.send_result(id, &to_wire(result)),
            Err(error) => self.send_terminal_error(id, &error),
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
