//! A client of this home's daemon, over HTTP on its Unix socket: what is asked, tried again where that is safe.
//!
//! Every request that changes something carries a key of its own, so that trying again does nothing twice. What answers
//! mean is not known here. Reading order: this file, `requests` (one function for each route), `feed` (the events of a
//! run, across restarts of the daemon), `socket` (the connection).

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
    home,
    trouble::{CliError, CliErrorKind, note},
    up::{DaemonAddress, background, token},
};

pub(crate) use feed::{EventFeed, FeedUpdate};
use socket::HomeConnector;

/// A connection to the daemon of a home. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(crate) struct DaemonClient {
    home: PathBuf,
    given: Arc<[GivenSetting]>,
    agent: Agent,
    /// As it was last read from the home.
    token: Arc<Mutex<String>>,
    address: Arc<Mutex<DaemonAddress>>,
}

/// Something to ask.
#[derive(Clone, Debug)]
struct DaemonRequest {
    path: String,
    action: RequestAction,
    /// The same request under the same key is one request.
    key: Option<String>,
}

/// What is asked about a path.
#[derive(Clone, Debug)]
enum RequestAction {
    /// What is there.
    Get,
    /// To take this.
    Post(Vec<u8>),
    /// To take it away.
    Delete,
}

/// The daemon does not know the token.
const UNAUTHORIZED: &str = "UNAUTHORIZED";

/// How often a request is made again that the daemon cannot take for the moment, and after how long.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(200);
/// How often the daemon is found or started again for one request.
const CONNECTIONS: u32 = 4;
/// The longest answers are those to an order to stop, which waits for turns.
const LONGEST_ANSWER: Duration = Duration::from_secs(120);

impl DaemonClient {
    /// The daemon of this home; it is started in the background if there is none.
    pub(crate) fn connect(given: &[GivenSetting]) -> anyhow::Result<Self> {
        let home = home::home()?;
        let started = background::find_or_start(&home, given)?;
        if started.fresh {
            note(format_args!("abide: started the daemon at {}", started.address.url()));
        }
        Self::new(home, given, started.address)
    }

    /// The daemon of this home, if one runs.
    pub(crate) fn existing(given: &[GivenSetting]) -> anyhow::Result<Option<Self>> {
        let home = home::home()?;
        DaemonAddress::find(&home).map(|address| Self::new(home, given, address)).transpose()
    }

    fn new(home: PathBuf, given: &[GivenSetting], address: DaemonAddress) -> anyhow::Result<Self> {
        if address.version != env!("CARGO_PKG_VERSION") {
            note(format_args!(
                "abide: the daemon is version {}, and this command {}; `abide down --keep && abide up --detach` \
                 replaces it and loses nothing",
                address.version,
                env!("CARGO_PKG_VERSION")
            ));
        }
        // Nothing but this machine is spoken to, whatever proxy the environment names.
        let agent = Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(5)))
            .build();
        let connector = HomeConnector { home: home.clone() };
        let agent = Agent::with_parts(agent, connector, DefaultResolver::default());
        let token = Arc::new(Mutex::new(token::of(&home)?));
        Ok(Self { home, given: given.into(), agent, token, address: Arc::new(Mutex::new(address)) })
    }

    /// Where the daemon is, as far as is known.
    pub(crate) fn address(&self) -> DaemonAddress {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks, and asks again while the daemon is busy, starting or gone. A daemon that is gone is started.
    fn ask<T: DeserializeOwned>(&self, request: &DaemonRequest) -> anyhow::Result<T> {
        let mut connections = 0;
        for _ in 0..TRIES {
            match self.once(request) {
                Ok(answer) => return Ok(answer),
                Err(trouble) if trouble.kind == CliErrorKind::Unreachable && connections < CONNECTIONS => {
                    connections += 1;
                    let started = background::find_or_start(&self.home, &self.given)?;
                    self.moved_to(started.address);
                }
                Err(trouble) if trouble.is_passing() => background::pause(PAUSE),
                Err(trouble) => return Err(trouble.into()),
            }
        }
        Err(CliError::unreachable("the daemon takes no requests; `abide status` may say why").into())
    }

    /// Asks once.
    fn once<T: DeserializeOwned>(&self, request: &DaemonRequest) -> Result<T, CliError> {
        let mut response = self.send(request, "application/json", Some(LONGEST_ANSWER))?;
        let body = response.body_mut().with_config().limit(u64::MAX).read_to_vec();
        let body = body.map_err(|error| self.unreachable(&error))?;
        // An order that has no answer but its success.
        let body = if body.is_empty() { b"null".to_vec() } else { body };
        serde_json::from_slice(&body).map_err(|error| {
            CliError::failure("BAD_ANSWER", format!("the daemon's answer is strange: {error}"))
        })
    }

    fn send(
        &self,
        request: &DaemonRequest,
        accept: &str,
        longest: Option<Duration>,
    ) -> Result<Response<Body>, CliError> {
        match self.send_with_token(request, accept, longest) {
            // The token may have been rotated since it was read.
            Err(trouble) if trouble.code == UNAUTHORIZED && self.has_new_token() => {
                self.send_with_token(request, accept, longest)
            }
            sent => sent,
        }
    }

    /// Reads the token again. Whether it is another one.
    fn has_new_token(&self) -> bool {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = token::of(&self.home).unwrap_or_default();
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
        longest: Option<Duration>,
    ) -> Result<Response<Body>, CliError> {
        let url = format!("{}{}", self.address().url(), request.path);
        let authorization = format!("Bearer {}", self.token.lock().unwrap_or_else(PoisonError::into_inner));
        let sent = match &request.action {
            RequestAction::Delete => {
                let delete = self.agent.delete(url).header("authorization", authorization);
                delete.header("accept", accept).config().timeout_recv_response(longest).build().call()
            }
            RequestAction::Get => {
                let get = self.agent.get(url).header("authorization", authorization).header("accept", accept);
                get.config().timeout_recv_response(longest).build().call()
            }
            RequestAction::Post(body) => {
                let post = self.agent.post(url).header("authorization", authorization);
                let post = post.header("accept", accept).content_type("application/json");
                // Who answered or stopped something stands in the ledger.
                let post = match home::person() {
                    Some(person) => post.header("abide-person", person),
                    None => post,
                };
                let post = match &request.key {
                    Some(key) => post.header("idempotency-key", key),
                    None => post,
                };
                post.config().timeout_recv_response(longest).build().send(body.as_slice())
            }
        };
        let mut response = sent.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let mut body = Vec::new();
        // An answer that is cut off is still better told by its status than by nothing.
        let _as_far_as_it_came = response.body_mut().as_reader().take(1 << 20).read_to_end(&mut body);
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
            Ok(problem) => CliError::refused(problem),
            Err(_) => CliError::failure("BAD_ANSWER", format!("the daemon answered with status {status}")),
        })
    }

    /// Looks where the daemon is now, without starting one. Whether one lives.
    fn look_again(&self) -> bool {
        match DaemonAddress::find(&self.home) {
            Some(address) => {
                self.moved_to(address);
                true
            }
            None => false,
        }
    }

    fn moved_to(&self, address: DaemonAddress) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    fn unreachable(&self, error: &ureq::Error) -> CliError {
        CliError::unreachable(format!("cannot reach the daemon at {}: {error}", self.address().url()))
    }
}
