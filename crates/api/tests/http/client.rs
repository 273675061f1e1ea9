//! A minimal HTTP/1.1 client that shows the exact bytes of a response.

use std::{net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// Upper bound for any test step, so that a hang fails with a message.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct TestRequest {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl TestRequest {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: "GET", path: path.into(), headers: vec![], body: String::new() }
    }

    pub(crate) fn method(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, ..Self::get(path) }
    }

    pub(crate) fn post(path: impl Into<String>, body: &Value) -> Self {
        Self::text(path, &body.to_string()).header("content-type", "application/json")
    }

    /// A POST with a body and no content type.
    pub(crate) fn text(path: impl Into<String>, body: &str) -> Self {
        Self { method: "POST", body: body.to_owned(), ..Self::get(path) }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    fn bytes(&self, address: SocketAddr) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nconnection: close\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| name == "host") {
            text += &format!("host: {address}\r\n");
        }
        if !self.body.is_empty() {
            text += &format!("content-length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        (text + "\r\n" + &self.body).into_bytes()
    }

    /// Sends the request and reads the whole response.
    pub(crate) async fn send(self, address: SocketAddr) -> TestResponse {
        let whole = async {
            let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
            // The server may reject the request before it has read all of it.
            stream.write_all(&self.bytes(address)).await.ok();
            let mut text = Vec::new();
            // The server may cut the connection; the bytes received so far are parsed.
            stream.read_to_end(&mut text).await.ok();
            TestResponse::parse(&text)
        };
        timeout(STEP_TIMEOUT, whole).await.expect("an answer comes")
    }

    /// Sends the request except the last byte of its body.
    pub(crate) async fn without_last_byte(self, address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
        let bytes = self.bytes(address);
        stream.write_all(bytes.split_last().expect("it has a body").1).await.expect("it is taken");
        stream
    }

    /// Sends the request for a WebSocket and returns the connection after the handshake.
    pub(crate) async fn upgrade(self, address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
        let request = String::from_utf8(self.bytes(address)).expect("it is text");
        let request = request.replace("connection: close", "connection: upgrade");
        stream.write_all(request.as_bytes()).await.expect("it is taken");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(STEP_TIMEOUT, stream.read_u8()).await.expect("it answers").expect("a head"));
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        stream
    }

    /// Sends the request and returns a reader for the streamed response.
    pub(crate) async fn stream(self, address: SocketAddr) -> TestEventReader {
        let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
        stream.write_all(&self.bytes(address)).await.expect("it is taken");
        let mut listening = TestEventReader { stream: BufReader::new(stream), head: String::new() };
        while !listening.head.ends_with("\r\n\r\n") {
            let line = listening.line().await.expect("there is a head");
            listening.head += &line;
        }
        listening
    }
}

impl TestResponse {
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        let header =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { status, headers: lines.filter_map(header).collect(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("JSON was expected, not {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header_name, _)| header_name == name).map(|(_, value)| value.as_str())
    }

    /// Returns status and code of an error response, after checking its format.
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        assert!(!problem["detail"].as_str().unwrap_or_default().is_empty(), "{problem}");
        (self.status, problem["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// Reads a streamed response.
pub(crate) struct TestEventReader {
    stream: BufReader<TcpStream>,
    pub(crate) head: String,
}

impl TestEventReader {
    /// Returns the next line; `None` at the end of the response.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let read = timeout(STEP_TIMEOUT, self.stream.read_until(b'\n', &mut line));
        match read.await.expect("something is said") {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(String::from_utf8_lossy(&line).into_owned()),
        }
    }

    pub(crate) async fn event(&mut self) -> Option<Value> {
        let mut id = String::new();
        loop {
            let line = self.line().await?;
            if let Some(number) = line.strip_prefix("id: ") {
                id = number.trim().to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(data).ok()?;
                assert_eq!(event["seq"].to_string(), id);
                return Some(event);
            }
        }
    }
}
