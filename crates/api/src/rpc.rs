//! JSON-RPC 2.0 for one client, one object a line, in and out through two descriptors.
//!
//! One thread turns everything: a command passes from the client to its keeper and back without waking anybody else.
//! Requests are served concurrently because the runtime answers when it can. A client that does not read its answers
//! holds back its streams, not the machine's memory.

mod ends;
mod methods;
mod outgoing;
mod streams;

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use abide_terminal::{Code, Event, EventFlags, Reply, Runtime, TerminalError, Utf8Pieces, Wait};
use abide_wire::terminal as wire;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::line::{Line, Lines};
use crate::translate;
use ends::{End, INPUT, OUTPUT, Wants};
use methods::{OnlyId, Request, Shape, parse};
use streams::StreamState;

/// The longest line that is taken.
pub const MAX_LINE: usize = 16 << 20;
/// The most calls that wait for an answer at a time.
const MAX_CALLS: usize = 10_000;
/// What the client's pipe holds, if it lets us decide.
const WIDE: usize = 1 << 20;
/// With more than this unread by the client, streams are held back.
const HOLD_AT: usize = 1 << 20;
/// With more than this unread by the client, no more requests are taken.
const STOP_AT: usize = 64 << 20;

/// Serves one client until its input ends; then ends the runtime in order.
pub fn serve(runtime: Runtime, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
    let mut server = Server {
        runtime,
        lines: Lines::new(MAX_LINE),
        waiting: BTreeMap::new(),
        streams: BTreeMap::new(),
        next: 1,
        out: Vec::new(),
        written: 0,
        never_waits: true,
    };
    // Output comes faster than a pipe's usual size lets through; what is no pipe, or may not grow, stays as it is.
    let _stays_as_it_is = rustix::pipe::fcntl_setpipe_size(&output, WIDE);
    let served = server.turn(input, &output);
    server.runtime.shut_down();
    server.take_events();
    let _the_client_may_be_gone = server.write_rest(&output);
    served
}

struct Server {
    runtime: Runtime,
    lines: Lines,
    waiting: BTreeMap<u64, Waiting>,
    streams: BTreeMap<u64, StreamState>,
    next: u64,
    out: Vec<u8>,
    written: usize,
    /// Whether the output takes a write that would rather fail than wait.
    never_waits: bool,
}

/// A request that has no answer yet.
struct Waiting {
    id: Option<Box<RawValue>>,
    shape: Shape,
}

impl Server {
    fn turn(&mut self, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let mut input_end = End::new(INPUT);
        let mut output_end = End::new(OUTPUT);
        loop {
            let pending = self.out.len() - self.written;
            self.runtime.hold_streams(pending > HOLD_AT);
            input_end.wants(
                &self.runtime,
                &input,
                if pending < STOP_AT { Wants::In } else { Wants::Nothing },
            );
            output_end.wants(&self.runtime, &output, if pending > 0 { Wants::Out } else { Wants::End });
            let at_once = input_end.is_always_ready() || output_end.is_always_ready();
            let ready = self.runtime.wait(if at_once { Wait::No } else { Wait::ForSomething });
            let flags = |which| {
                let of = ready.iter().filter(|(own, _)| *own == which);
                of.fold(EventFlags::empty(), |all, (_, flags)| all | *flags)
            };
            if input_end.is_always_ready() || !flags(INPUT).is_empty() {
                match rustix::io::read(&input, &mut buffer) {
                    Ok(0) => {
                        if let Some(line) = self.lines.finish() {
                            self.hear(line);
                        }
                        return Ok(());
                    }
                    Ok(count) => {
                        self.lines.push(buffer.get(..count).unwrap_or_default());
                        while let Some(line) = self.lines.next() {
                            self.hear(line);
                        }
                    }
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.take_events();
            if flags(OUTPUT).intersects(EventFlags::ERR | EventFlags::HUP) {
                return Ok(());
            }
            self.write(&output)?;
        }
    }

    fn hear(&mut self, line: Line) {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong => {
                return self.fail(
                    None,
                    INVALID_REQUEST,
                    &format!("a line has at most {MAX_LINE} bytes"),
                    None,
                );
            }
        };
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let text = match str::from_utf8(&line) {
            Ok(text) => text,
            Err(_) => return self.fail(None, PARSE_ERROR, "the line is no UTF-8", None),
        };
        if text.trim_start().starts_with('[') {
            return self.fail(None, INVALID_REQUEST, "batches are not served; send one object a line", None);
        }
        match serde_json::from_str::<Request<'_>>(text) {
            Ok(request) => self.request(request),
            Err(error) if error.is_data() => {
                let id = serde_json::from_str::<OnlyId>(text).ok().and_then(|only| only.id);
                self.fail(id, INVALID_REQUEST, &format!("not a JSON-RPC 2.0 request: {error}"), None);
            }
            Err(error) => self.fail(None, PARSE_ERROR, &format!("not JSON: {error}"), None),
        }
    }

    fn request(&mut self, request: Request<'_>) {
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
            let error =
                TerminalError::new(Code::ResourcePressure, format!("{MAX_CALLS} requests wait already"));
            return self.refuse(id, &error);
        }
        if request.method == "system.ping" {
            return self.succeed(id, &json!({ "pong": true }));
        }
        match parse(&request.method, request.params) {
            Ok(Some((call, shape))) => {
                let ticket = self.next;
                self.next += 1;
                self.waiting.insert(ticket, Waiting { id, shape });
                self.runtime.call(ticket, call);
            }
            Ok(None) => {
                self.fail(id, METHOD_NOT_FOUND, &format!("there is no method {}", request.method), None)
            }
            Err(error) => self.refuse(id, &error),
        }
    }

    fn take_events(&mut self) {
        for event in self.runtime.events() {
            match event {
                Event::Reply(ticket, answer) => {
                    if let Some(waiting) = self.waiting.remove(&ticket) {
                        self.reply(ticket, waiting, *answer);
                    }
                }
                Event::Chunk(ticket, chunk) => self.chunk(ticket, chunk),
            }
        }
    }

    fn reply(&mut self, ticket: u64, waiting: Waiting, answer: Result<Reply, TerminalError>) {
        let Waiting { id, shape } = waiting;
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return self.refuse(id, &error),
        };
        match (shape, reply) {
            (Shape::Run(encoding), Reply::Ran(result)) => {
                self.succeed(id, &translate::run_result(result, encoding))
            }
            (Shape::Stream(encoding), Reply::Streaming(session, exec)) => {
                let stream_id = format!("{session}.{exec}");
                let text = [Utf8Pieces::default(), Utf8Pieces::default()];
                let state = StreamState { id: stream_id.clone(), seq: 0, encoding, text, ends: [0; 2] };
                self.streams.insert(ticket, state);
                self.succeed(id, &wire::Streaming { stream_id, exec_id: exec.to_string() });
            }
            (Shape::Output(stream, encoding), Reply::Output(piece)) => {
                self.succeed(id, &translate::output_piece(&piece, stream, encoding));
            }
            (Shape::Created | Shape::Plain, Reply::Session(info)) => {
                self.succeed(id, &translate::session(info))
            }
            (_, Reply::Sessions(all)) => {
                let sessions = all.into_iter().map(translate::session).collect();
                self.succeed(id, &wire::Sessions { sessions });
            }
            (_, Reply::Destroyed(session)) => {
                self.succeed(id, &json!({ "session_id": session.as_str(), "state": "TERMINATED" }));
            }
            (_, Reply::Done) => self.succeed(id, &json!({})),
            (_, Reply::Cancelled) => self.succeed(id, &json!({ "cancelled": true })),
            (_, Reply::Screen(screen)) => self.succeed(id, &translate::screen(&screen)),
            (_, Reply::Stats(stats)) => self.succeed(
                id,
                &json!({
                    "sessions": stats.sessions, "running": stats.running, "terminated": stats.terminated,
                    "max_sessions": stats.max_sessions, "commands": stats.commands, "adopted": stats.adopted,
                }),
            ),
            (_, _) => self.refuse(
                id,
                &TerminalError::new(Code::Internal, "the runtime gave another answer than was asked for"),
            ),
        }
    }

    fn succeed(&mut self, id: Option<Box<RawValue>>, result: &impl Serialize) {
        // A request without an id is a notification and has no answer.
        if let Some(id) = id {
            self.send(&Success { jsonrpc: "2.0", id, result });
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

/// The one place where a JSON-RPC number is decided.
fn code_number(code: Code) -> i32 {
    match code {
        Code::InvalidParams => INVALID_PARAMS,
        Code::Internal => INTERNAL,
        Code::SessionNotFound | Code::SessionBusy | Code::SessionTerminated | Code::MaxSessionsReached => {
            REFUSED
        }
        Code::ShellNotFound | Code::ShellFailed | Code::CwdUnusable | Code::ResourcePressure => REFUSED,
    }
}

#[derive(Serialize)]
struct Success<'a, R> {
    jsonrpc: &'static str,
    id: Box<RawValue>,
    result: &'a R,
}
