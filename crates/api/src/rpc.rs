//! JSON-RPC 2.0 for one client, one object a line, in and out through two descriptors.
//!
//! One thread turns everything: a command passes from the client to its keeper and back without waking anybody else.
//! Requests are served concurrently because the runtime answers when it can. A client that does not read its answers
//! holds back its streams, not the machine's memory.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::AsFd;

use abide_terminal::{
    Call, Chunk, Code, Event, Reply, Runtime, SessionId, Size, Stream, TerminalError, Utf8Pieces,
};
use abide_wire::terminal as wire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::line::{Line, Lines};
use crate::translate;

/// The longest line that is taken.
pub const MAX_LINE: usize = 16 << 20;
/// The most calls that wait for an answer at a time.
const MAX_CALLS: usize = 10_000;
/// With more than this unread by the client, streams are held back.
const HOLD_AT: usize = 1 << 20;
/// With more than this unread by the client, no more requests are taken.
const STOP_AT: usize = 64 << 20;
/// What a pipe with any room surely takes.
const WRITE: usize = 4096;

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

/// What the runtime's reply is turned into.
#[derive(Clone, Copy)]
enum Shape {
    Created,
    Plain,
    Run(wire::Encoding),
    Stream(wire::Encoding),
    Output(wire::StreamName, wire::Encoding),
}

struct StreamState {
    id: String,
    seq: u64,
    encoding: wire::Encoding,
    text: [Utf8Pieces; 2],
    ends: [u64; 2],
}

impl Server {
    fn turn(&mut self, input: impl AsFd, output: impl AsFd) -> std::io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let pending = self.out.len() - self.written;
            self.runtime.hold_streams(pending > HOLD_AT);
            let hears = if pending < STOP_AT { PollFlags::IN } else { PollFlags::empty() };
            let writes = if pending > 0 { PollFlags::OUT } else { PollFlags::empty() };
            let mut fds = [
                PollFd::new(&input, hears),
                PollFd::new(&self.runtime, PollFlags::IN),
                PollFd::new(&output, writes),
            ];
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let [heard, worked, writable] = fds.map(|fd| fd.revents());
            if heard.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && !hears.is_empty() {
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
            if !worked.is_empty() {
                self.runtime.work();
            }
            self.take_events();
            if writable.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                return Ok(());
            }
            self.write(&output)?;
        }
    }

    /// Writes without ever waiting, also to a descriptor whose other holders did not ask for that.
    fn write(&mut self, output: impl AsFd) -> std::io::Result<()> {
        while self.written < self.out.len() {
            let pending = [IoSlice::new(self.out.get(self.written..).unwrap_or_default())];
            let attempt = match self.never_waits {
                true => pwritev2(&output, &pending, u64::MAX, ReadWriteFlags::NOWAIT),
                false => Err(Errno::OPNOTSUPP),
            };
            match attempt {
                Ok(count) => self.wrote(count),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::SPIPE | Errno::NOSYS) => {
                    self.never_waits = false;
                    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                    let mut fds = [PollFd::new(&output, PollFlags::OUT)];
                    if !matches!(poll(&mut fds, Some(&now)), Ok(1..)) {
                        return Ok(());
                    }
                    self.write_some(&output)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes no more than a descriptor with any room surely takes.
    fn write_some(&mut self, output: impl AsFd) -> std::io::Result<()> {
        let end = self.out.len().min(self.written + WRITE);
        match rustix::io::write(&output, self.out.get(self.written..end).unwrap_or_default()) {
            Ok(count) => self.wrote(count),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.out.len() {
            self.written = 0;
            if self.out.capacity() > HOLD_AT * 2 {
                self.out = Vec::new();
            } else {
                self.out.clear();
            }
        } else if self.written > HOLD_AT {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// The last words, for a client that is given a moment to take them.
    fn write_rest(&mut self, output: impl AsFd) -> std::io::Result<()> {
        while self.written < self.out.len() {
            let moment = Timespec { tv_sec: 2, tv_nsec: 0 };
            let mut fds = [PollFd::new(&output, PollFlags::OUT)];
            if !matches!(poll(&mut fds, Some(&moment)), Ok(1..)) {
                return Ok(());
            }
            self.write_some(&output)?;
        }
        Ok(())
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

    fn chunk(&mut self, ticket: u64, chunk: Chunk) {
        let Some(mut state) = self.streams.remove(&ticket) else { return };
        match chunk {
            Chunk::Output { stream, offset, bytes } => {
                let index = stream.index();
                state.ends[index] = offset + bytes.len() as u64;
                let (data, early) = match state.encoding {
                    wire::Encoding::Utf8 => state.text[index].push(&bytes),
                    wire::Encoding::Base64 => (translate::encode(&bytes, wire::Encoding::Base64), 0),
                };
                if !data.is_empty() {
                    self.send_chunk(&mut state, name(stream), offset - early as u64, data, (None, None));
                }
                self.streams.insert(ticket, state);
            }
            Chunk::Exit(_) => {
                for stream in Stream::ALL {
                    if let Some((data, length)) = state.text[stream.index()].finish() {
                        let offset = state.ends[stream.index()] - length as u64;
                        self.send_chunk(&mut state, name(stream), offset, data, (None, None));
                    }
                }
                let offset = state.ends[0];
                self.send_chunk(&mut state, "exit", offset, String::new(), translate::ended(&chunk));
            }
        }
    }

    fn send_chunk(
        &mut self,
        state: &mut StreamState,
        kind: &str,
        offset: u64,
        data: String,
        (exit, error): (Option<wire::Exit>, Option<String>),
    ) {
        let chunk = wire::Chunk {
            stream_id: state.id.clone(),
            seq: state.seq,
            kind: kind.to_owned(),
            offset,
            data,
            encoding: state.encoding,
            exit,
            error,
        };
        state.seq += 1;
        self.send(&Notification { jsonrpc: "2.0", method: "exec.chunk", params: &chunk });
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

fn parse(method: &str, params: Option<&RawValue>) -> Result<Option<(Call, Shape)>, TerminalError> {
    let session = |params: wire::SessionParams| SessionId::from_text(&params.session_id);
    Ok(Some(match method {
        "session.create" => (translate::create(from(params)?), Shape::Created),
        "session.info" => (Call::Info(session(from(params)?)), Shape::Plain),
        "session.list" => (Call::List, Shape::Plain),
        "session.destroy" => {
            let params: wire::DestroyParams = from(params)?;
            let session = SessionId::from_text(&params.session_id);
            (Call::Destroy { session, force: params.force }, Shape::Plain)
        }
        "exec.run" => {
            let params: wire::ExecParams = from(params)?;
            let shape = Shape::Run(params.encoding);
            (Call::Run(translate::execute(params)), shape)
        }
        "exec.stream" => {
            let params: wire::ExecParams = from(params)?;
            let shape = Shape::Stream(params.encoding);
            (Call::Stream(translate::execute(params)), shape)
        }
        "exec.input" => (translate::input(from(params)?)?, Shape::Plain),
        "exec.cancel" => (Call::Cancel(session(from(params)?)), Shape::Plain),
        "exec.output" => {
            let params: wire::OutputParams = from(params)?;
            (translate::output(&params)?, Shape::Output(params.stream, params.encoding))
        }
        "session.screen" => (Call::Screen(session(from(params)?)), Shape::Plain),
        "session.resize" => {
            let params: wire::ResizeParams = from(params)?;
            let size = Size { rows: params.rows, cols: params.cols };
            (Call::Resize(SessionId::from_text(&params.session_id), size), Shape::Plain)
        }
        "system.stats" => (Call::Stats, Shape::Plain),
        _ => return Ok(None),
    }))
}

fn from<P: DeserializeOwned>(params: Option<&RawValue>) -> Result<P, TerminalError> {
    serde_json::from_str(params.map_or("{}", RawValue::get))
        .map_err(|error| TerminalError::new(Code::InvalidParams, error.to_string()))
}

fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(default)]
    jsonrpc: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct OnlyId {
    id: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Success<'a, R> {
    jsonrpc: &'static str,
    id: Box<RawValue>,
    result: &'a R,
}

#[derive(Serialize)]
struct Notification<'a> {
    jsonrpc: &'static str,
    method: &'static str,
    params: &'a wire::Chunk,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const METHODS: [&str; 12] = [
        "session.create",
        "session.info",
        "session.list",
        "session.destroy",
        "exec.run",
        "exec.stream",
        "exec.input",
        "exec.cancel",
        "exec.output",
        "session.screen",
        "session.resize",
        "system.stats",
    ];

    #[test]
    fn every_method_of_the_interface_is_known_and_no_other() {
        let params = RawValue::from_string(
            json!({
                "session_id": "s-000000", "command": "true", "exec_id": "e-1", "rows": 1, "cols": 1,
            })
            .to_string(),
        )
        .unwrap();
        for method in METHODS {
            let known = parse(method, Some(&params));
            assert!(known.is_err() || known.unwrap().is_some(), "{method}");
        }
        assert!(parse("session.explode", Some(&params)).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn params_of_any_shape_are_a_call_or_an_error_and_never_a_panic(
            method in 0usize..12, key in "[a-z_]{0,12}", text in ".{0,40}", number in any::<i64>(),
        ) {
            for value in [json!({ &key: text }), json!({ &key: number }), json!([text]), json!(null), json!(number),
                json!({ "session_id": text, "command": text, &key: number })]
            {
                let raw = RawValue::from_string(value.to_string()).unwrap();
                let _ = parse(METHODS[method], Some(&raw));
            }
        }

        #[test]
        fn lines_of_any_bytes_are_a_request_or_an_error_and_never_a_panic(line in ".{0,200}") {
            let _ = serde_json::from_str::<Request<'_>>(&line);
        }
    }
}
