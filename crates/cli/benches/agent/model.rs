//! A model server on a plain socket: reads a request to its end, records the time, and answers at once or never.
//!
//! It does not parse the requests, so that its own cost is minimal.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver, Sender},
    time::Instant,
};

use serde_json::json;

use crate::words::TextGenerator;

/// The times of a request that was read completely.
pub(crate) struct ModelRequestTiming {
    pub(crate) read: Instant,
    /// The time at which the answer began to be sent.
    pub(crate) answered: Instant,
    pub(crate) bytes: usize,
}

/// The reaction to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelBehaviour {
    /// Answers with a text and a tool call.
    Calls,
    /// Does not answer: the client will be killed.
    Silent,
}

pub(crate) struct SocketModel {
    pub(crate) base_url: String,
    pub(crate) requests: Receiver<ModelRequestTiming>,
}

impl SocketModel {
    pub(crate) fn start(behaviour: ModelBehaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let base_url = format!("http://{}/v1", listener.local_addr().expect("a bound port"));
        let (sender, requests) = mpsc::channel();
        // The thread ends with the process.
        std::thread::spawn(move || {
            let mut words = TextGenerator::new(7);
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("a socket without delay");
                serve(stream, behaviour, &mut words, &sender);
            }
        });
        Self { base_url, requests }
    }
}

/// Serves one connection until the client closes it.
fn serve(
    mut stream: TcpStream,
    behaviour: ModelBehaviour,
    words: &mut TextGenerator,
    timings: &Sender<ModelRequestTiming>,
) {
    let mut reader = BufReader::with_capacity(256 << 10, stream.try_clone().expect("a second handle"));
    let mut body = Vec::new();
    let mut number = 0_u64;
    loop {
        // Prepared in advance, so that it adds no time to the measurement.
        number += 1;
        let thought = words.prose(240);
        let Some(length) = head(&mut reader) else { return };
        body.resize(length, 0);
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let read = Instant::now();
        let answer = answer(&thought, number, length);
        let answered = Instant::now();
        if behaviour == ModelBehaviour::Calls && stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
        if timings.send(ModelRequestTiming { read, answered, bytes: length }).is_err() {
            return;
        }
    }
}

/// Reads the head of a request, and returns the length of its body.
fn head(reader: &mut impl BufRead) -> Option<usize> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim();
        if line.is_empty() {
            return Some(length);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a length");
        }
    }
}

fn answer(thought: &str, number: u64, request_bytes: usize) -> String {
    let arguments = json!({ "path": "crates/store/src/lib.rs", "from": number, "lines": 40 }).to_string();
    let call = json!({
        "index": 0, "id": format!("call_{:p}_{number}", thought.as_ptr()), "type": "function",
        "function": { "name": "read", "arguments": arguments },
    });
    let chunk = |delta, finish: Option<&str>| {
        json!({
            "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "loopback",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
        })
    };
    let usage = json!({
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "loopback", "choices": [],
        "usage": { "prompt_tokens": request_bytes / 4, "completion_tokens": 90, "total_tokens": request_bytes / 4 + 90 },
    });
    let text_chunk = chunk(json!({ "role": "assistant", "content": thought }), None);
    let called = chunk(json!({ "tool_calls": [call] }), None);
    let stopped = chunk(json!({}), Some("tool_calls"));
    let body = format!(
        "data: {text_chunk}\n\ndata: {called}\n\ndata: {stopped}\n\ndata: {usage}\n\ndata: [DONE]\n\n"
    );
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}")
}
