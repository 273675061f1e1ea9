//! A blocking HTTP client of the daemon: JSON bodies, one connection for each request.
//!
//! A response with an error status is a response, not an error. A daemon that is not there is an error.

use std::{
    io::{self, Read},
    net::SocketAddr,
    time::Duration,
};

use serde_json::Value;

use super::events::EventStream;
use crate::wait;

/// The daemon's address and the access token.
#[derive(Clone, Debug)]
pub struct TestHttpClient {
    pub address: SocketAddr,
    pub token: Option<String>,
    agent: ureq::Agent,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TestHttpResponse {
    pub status: u16,
    pub text: String,
    /// The text as JSON; null if it is not JSON.
    pub body: Value,
}

impl TestHttpClient {
    pub fn new(address: SocketAddr, token: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(wait::LIMIT))
            // A pooled connection would belong to a daemon that the test has replaced.
            .max_idle_connections(0)
            .proxy(None);
        Self { address, token: Some(token.to_owned()), agent: config.build().into() }
    }

    /// Returns a client of the same daemon with another token. Without a token it sends no credential.
    #[must_use]
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    pub fn get(&self, path: &str) -> io::Result<TestHttpResponse> {
        read_response(
            self.authorized(self.agent.get(self.url(path))).header("Accept", "application/json").call(),
        )
    }

    pub fn post(&self, path: &str, body: &Value) -> io::Result<TestHttpResponse> {
        self.send(self.agent.post(self.url(path)), body)
    }

    /// Sends a POST request with an idempotency key, so that it can be repeated.
    pub fn post_with_key(&self, path: &str, key: &str, body: &Value) -> io::Result<TestHttpResponse> {
        self.send(self.agent.post(self.url(path)).header("Idempotency-Key", key), body)
    }

    /// Opens the event stream at `path` after the event with the number `after`; 0 stands for all events. The stream
    /// fails after [`wait::LIMIT`].
    pub fn events(&self, path: &str, after: u64) -> io::Result<EventStream> {
        self.events_for(path, after, wait::LIMIT)
    }

    /// Like [`TestHttpClient::events`] with another limit.
    pub(super) fn events_for(&self, path: &str, after: u64, limit: Duration) -> io::Result<EventStream> {
        let request = self.agent.get(self.url(path)).config().timeout_global(Some(limit)).build();
        let response = self
            .authorized(request)
            .header("Accept", "text/event-stream")
            .header("Last-Event-ID", after.to_string())
            .call()
            .map_err(ureq::Error::into_io)?;
        match response.status().as_u16() {
            200 => Ok(EventStream::new(response.into_body().into_reader())),
            status => Err(io::Error::other(format!("{path}: status {status}"))),
        }
    }

    fn send(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        body: &Value,
    ) -> io::Result<TestHttpResponse> {
        let request = self.authorized(request).header("Content-Type", "application/json");
        read_response(request.send(body.to_string()))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }
}

fn read_response(
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> io::Result<TestHttpResponse> {
    let response = response.map_err(ureq::Error::into_io)?;
    let status = response.status().as_u16();
    let mut bytes = Vec::new();
    response.into_body().into_reader().read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let body = serde_json::from_str(&text).unwrap_or_default();
    Ok(TestHttpResponse { status, text, body })
}

impl TestHttpResponse {
    /// Returns the string at a JSON pointer such as `/items/0/run_id`; empty if there is none.
    pub fn str_at(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}
