//! A minimal blocking HTTP client: one request per connection, JSON bodies.
//!
//! It uses HTTP/1.0, so that each response, including an endless stream, is delimited by the end of the connection.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// The daemon's address and the access token.
#[derive(Clone, Debug)]
pub struct TestHttpClient {
    pub address: SocketAddr,
    pub token: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TestHttpResponse {
    pub status: u16,
    /// The body as JSON, or as a JSON string if it is not JSON.
    pub body: Value,
}

/// The timeout of a request; longer than a busy machine needs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

impl TestHttpClient {
    pub fn get(&self, path: &str) -> io::Result<TestHttpResponse> {
        self.request("GET", path, &[("Accept", "application/json")], None)
    }

    pub fn post(&self, path: &str, body: &Value) -> io::Result<TestHttpResponse> {
        self.request("POST", path, &[], Some(body))
    }

    /// Sends a POST request with an idempotency key, so that it can be repeated.
    pub fn post_with_key(&self, path: &str, key: &str, body: &Value) -> io::Result<TestHttpResponse> {
        self.request("POST", path, &[("Idempotency-Key", key)], Some(body))
    }

    /// Opens a response stream that does not end.
    pub fn stream(&self, path: &str, headers: &[(&str, &str)]) -> io::Result<(u16, BufReader<TcpStream>)> {
        let mut connection = TcpStream::connect_timeout(&self.address, REQUEST_TIMEOUT)?;
        connection.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        connection.write_all(self.head("GET", path, headers, None).as_bytes())?;
        let mut reader = BufReader::new(connection);
        let status = head(&mut reader)?;
        Ok((status, reader))
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> io::Result<TestHttpResponse> {
        let body = body.map(Value::to_string);
        let mut connection = TcpStream::connect_timeout(&self.address, REQUEST_TIMEOUT)?;
        connection.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        let mut request = self.head(method, path, headers, body.as_deref());
        request.push_str(body.as_deref().unwrap_or_default());
        connection.write_all(request.as_bytes())?;
        let mut reader = BufReader::new(connection);
        let status = head(&mut reader)?;
        let mut text = String::new();
        reader.read_to_string(&mut text)?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(TestHttpResponse { status, body })
    }

    fn head(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> String {
        let (address, token) = (self.address, &self.token);
        let mut head =
            format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head
    }
}

/// Reads the status and skips the headers.
fn head(reader: &mut impl BufRead) -> io::Result<u16> {
    let cut_short = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut short");
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut_short)?;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(cut_short());
        }
        if line.trim_end().is_empty() {
            return Ok(status);
        }
    }
}

impl TestHttpResponse {
    /// Returns the string at a JSON pointer such as `/items/0/run_id`; empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}
