//! A connection for requests that the HTTP client cannot send: over a Unix socket, or malformed.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use crate::wait;

/// One connection, for one request.
#[derive(Debug)]
pub struct RawConnection {
    stream: UnixStream,
}

impl RawConnection {
    /// Connects to a Unix socket.
    pub fn unix(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(wait::LIMIT))?;
        Ok(Self { stream })
    }

    /// Sends a GET request with a token, and returns the status of the response and its whole text.
    pub fn get(self, token: &str, path: &str) -> io::Result<(u16, String)> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n");
        self.send(format!("{head}connection: close\r\n\r\n").as_bytes())
    }

    /// Sends these bytes, and returns the status of the response and its whole text.
    pub fn send(mut self, request: &[u8]) -> io::Result<(u16, String)> {
        self.stream.write_all(request)?;
        let mut response = Vec::new();
        self.stream.read_to_end(&mut response)?;
        let response = String::from_utf8_lossy(&response).into_owned();
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status in {response:?}")))?;
        Ok((status, response))
    }
}
