//! HTTP client for the daemon of this home, over its Unix socket. Requests are retried where that is safe.
//!
//! Every request that changes something has an idempotency key. Responses are not interpreted here. Reading order: this
//! file, `requests` (one function per route), `feed` (the events of a run, across restarts of the daemon), `socket`
//! (the connection).

mod feed;
mod requests;
mod socket;

use std::{
    io::Read,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use abide_wire::service::ProblemDetails;
use serde::de::DeserializeOwned;
use ureq::{Agent, Body, http::Response, unversioned::resolver::DefaultResolver};

use crate::{
    config::GivenSetting,
    error::{CliError, CliErrorKind, eprint_line},
    home,
    up::{DaemonAddress, background, token},
};

pub(crate) use feed::{EventFeed, FeedUpdate};
use socket::HomeConnector;

/// Client of the daemon of a home. Clones share the same connection pool and token.
#[derive(Clone, Debug)]
pub(crate) struct DaemonClient {
    home: PathBuf,
    overrides: Arc<[GivenSetting]>,
    agent: Agent,
    /// As last read from the home.
    token: Arc<Mutex<String>>,
    address: Arc<Mutex<DaemonAddress>>,
}

#[derive(Clone, Debug)]
struct DaemonRequest {
    path: String,
    action: RequestAction,
    key: Option<String>,
}

/// Method and body of a request.
#[derive(Clone, Debug)]
enum RequestAction {
    Get,
    Post(Vec<u8>),
    Delete,
}

const UNAUTHORIZED: &str = "UNAUTHORIZED";

/// Number of retries while the daemon is busy or starting, and the delay between them.
const MAX_ATTEMPTS: u32 = 300;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Number of times that the daemon is found or started again for one request.
const MAX_RECONNECTS: u32 = 4;
/// Response timeout. The slowest request is the stop, which waits for turns.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

impl DaemonClient {
    /// Connects to the daemon of this home. Starts one in the background if there is none.
    pub(crate) fn connect(overrides: &[GivenSetting]) -> anyhow::Result<Self> {
        let home = home::home()?;
        let started = background::find_or_start(&home, overrides)?;
        if started.started_now {
            eprint_line(format_args!("abide: started the daemon at {}", started.address.url()));
        }
        Self::new(home, overrides, started.address)
    }

    /// Connects to the daemon of this home, if one is running.
    pub(crate) fn connect_existing(overrides: &[GivenSetting]) -> anyhow::Result<Option<Self>> {
        let home = home::home()?;
        DaemonAddress::find(&home).map(|address| Self::new(home, overrides, address)).transpose()
    }

    fn new(home: PathBuf, overrides: &[GivenSetting], address: DaemonAddress) -> anyhow::Result<Self> {
        if address.version != env!("CARGO_PKG_VERSION") {
            eprint_line(format_args!(
                "abide: the daemon is version {}, and this command {}; `abide down --keep && abide up --detach` \
                 replaces it and loses nothing",
                address.version,
                env!("CARGO_PKG_VERSION")
            ));
        }
        // The proxy settings of the environment are ignored: the daemon is on this machine.
        let agent = Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(5)))
            .build();
        let connector = HomeConnector { home: home.clone() };
        let agent = Agent::with_parts(agent, connector, DefaultResolver::default());
        let token = Arc::new(Mutex::new(token::load_or_create(&home)?));
        Ok(Self { home, overrides: overrides.into(), agent, token, address: Arc::new(Mutex::new(address)) })
    }

    /// Returns the last known address of the daemon.
    pub(crate) fn address(&self) -> DaemonAddress {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request. Retries while the daemon is busy or starting, and starts a daemon if there is none.
    fn request<T: DeserializeOwned>(&self, request: &DaemonRequest) -> anyhow::Result<T> {
        let mut connections = 0;
        for _ in 0..MAX_ATTEMPTS {
            match self.request_once(request) {
                Ok(answer) => return Ok(answer),
                Err(error) if error.kind == CliErrorKind::Unreachable && connections < MAX_RECONNECTS => {
                    connections += 1;
                    let started = background::find_or_start(&self.home, &self.overrides)?;
                    self.set_address(started.address);
                }
                Err(error) if error.is_transient() => background::sleep(RETRY_DELAY),
                Err(error) => return Err(error.into()),
            }
        }
        Err(CliError::unreachable("the daemon accepts no requests; `abide status` shows the reason").into())
    }

    /// Sends a request once.
    fn request_once<T: DeserializeOwned>(&self, request: &DaemonRequest) -> Result<T, CliError> {
        let mut response = self.send(request, "application/json", Some(RESPONSE_TIMEOUT))?;
        let body = response.body_mut().with_config().limit(u64::MAX).read_to_vec();
        let body = body.map_err(|error| self.unreachable(&error))?;
        // Some requests have no response body on success.
        let body = if body.is_empty() { b"null".to_vec() } else { body };
        serde_json::from_slice(&body).map_err(|error| {
            CliError::failure("BAD_RESPONSE", format!("cannot parse the daemon's response: {error}"))
        })
    }

    fn send(
        &self,
        request: &DaemonRequest,
        accept: &str,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, CliError> {
        match self.send_with_token(request, accept, timeout) {
            // The token may have been rotated since it was read.
            Err(error) if error.code == UNAUTHORIZED && self.reload_token() => {
                self.send_with_token(request, accept, timeout)
            }
            sent => sent,
        }
    }

    /// Reads the token again. Returns whether it has changed.
    fn reload_token(&self) -> bool {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = token::load_or_create(&self.home).unwrap_or_default();
        let is_new = !fresh.is_empty() && *token != fresh;
        if is_new {
            *token = fresh;
        }
        is_new
    }

    fn send_with_token(
        &self,
        request: &DaemonRequest,
        accept: &str,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, CliError> {
        let url = format!("{}{}", self.address().url(), request.path);
        let authorization = format!("Bearer {}", self.token.lock().unwrap_or_else(PoisonError::into_inner));
        let sent = match &request.action {
            RequestAction::Delete => {
                let delete = self.agent.delete(url).header("authorization", authorization);
                delete.header("accept", accept).config().timeout_recv_response(timeout).build().call()
            }
            RequestAction::Get => {
                let get = self.agent.get(url).header("authorization", authorization).header("accept", accept);
                get.config().timeout_recv_response(timeout).build().call()
            }
            RequestAction::Post(body) => {
                let post = self.agent.post(url).header("authorization", authorization);
                let post = post.header("accept", accept).content_type("application/json");
                // The ledger records the person who replied or stopped something.
                let post = match home::user_name() {
                    Some(person) => post.header("abide-person", person),
                    None => post,
                };
                let post = match &request.key {
                    Some(key) => post.header("idempotency-key", key),
                    None => post,
                };
                post.config().timeout_recv_response(timeout).build().send(body.as_slice())
            }
        };
        let mut response = sent.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let mut body = Vec::new();
        // A truncated body is ignored; the status is still reported.
        response.body_mut().as_reader().take(1 << 20).read_to_end(&mut body).ok();
        if status == 401 {
            return Err(CliError::failure(
                UNAUTHORIZED,
                format!(
                    "the program at {} does not know the token of {}: it belongs to another home, or the file `token` \
                     was replaced; stop it, and `abide up --detach` starts this home's own",
                    self.address().url(),
                    self.home.display()
                ),
            ));
        }
        Err(match serde_json::from_slice::<ProblemDetails>(&body) {
            Ok(problem) => CliError::from_problem(problem),
            Err(_) => CliError::failure("BAD_RESPONSE", format!("the daemon answered with status {status}")),
        })
    }

    /// Reads the address of the daemon again, without starting one. Returns whether it is running.
    fn refresh_address(&self) -> bool {
        match DaemonAddress::find(&self.home) {
            Some(address) => {
                self.set_address(address);
                true
            }
            None => false,
        }
    }

    fn set_address(&self, address: DaemonAddress) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    fn unreachable(&self, error: &ureq::Error) -> CliError {
        CliError::unreachable(format!("cannot reach the daemon at {}: {error}", self.address().url()))
    }
}
