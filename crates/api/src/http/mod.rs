//! The HTTP interface, `/v1`, with the names of INTERFACES section 3.
//!
//! Handlers are thin: they parse a wire type, call the daemon and return a wire type. Requests are interpreted in
//! `daemon` and `domain`, authenticated in `guard`, refused in `problem`, and connections are limited in `server`.

mod admission;
mod artifacts;
mod body;
mod budget;
mod credential_watch;
mod docs;
mod document;
mod engines;
mod entry_pages;
mod events;
mod feed;
mod gauges;
mod guard;
mod interactions;
mod limits;
mod messages;
mod permissions;
mod problem;
mod request_metrics;
mod request_person;
mod router;
mod runs;
mod server;
mod service;
mod settings;
mod terminal_backlog;
mod terminal_socket;
mod terminals;
mod tokens;
mod translate;
mod turn_exits;
mod websocket;

use std::sync::Arc;

use abide_daemon::Daemon;
use abide_observe::metrics::DaemonMetrics;
use abide_terminal::RuntimeHandle;
use tokio::sync::{Semaphore, watch};

pub use router::{openapi, router};
pub use server::{LocalListener, serve};
pub use settings::HttpConfig;

use budget::{ByteBudget, ByteCounter};
use engines::EngineCache;
use feed::EventBroadcast;
use limits::RateLimiter;

use crate::access::AccessRegistry;

/// Dependencies of the HTTP interface.
#[derive(Clone, Debug)]
pub struct HttpService {
    pub daemon: Daemon,
    pub terminals: Arc<RuntimeHandle>,
    pub access: Arc<AccessRegistry>,
    pub metrics: DaemonMetrics,
    /// Receives a stop that a client requests.
    pub stop: watch::Sender<StopMode>,
    pub settings: HttpConfig,
}

/// The requested kind of shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopMode {
    /// No shutdown is requested.
    #[default]
    No,
    /// Turns are stopped and terminal sessions ended.
    Orderly,
    /// Processes keep running under their keepers, for the next daemon.
    Keep,
}

/// Shared state of all handlers. Clones share the same state.
#[derive(Clone, Debug)]
pub(crate) struct HttpState(Arc<HttpStateInner>);

#[derive(Debug)]
struct HttpStateInner {
    daemon: Daemon,
    terminals: Arc<RuntimeHandle>,
    metrics: DaemonMetrics,
    access: Arc<AccessRegistry>,
    cookie_name: String,
    stop: watch::Sender<StopMode>,
    settings: HttpConfig,
    feed: EventBroadcast,
    engines: EngineCache,
    limits: RateLimiter,
    budget: ByteBudget,
    /// Budget for events of streams that are not yet sent.
    stream_budget: Arc<ByteBudget>,
    /// Permits for pages that are being read and serialised.
    page_readers: Semaphore,
    /// Budget for large requests that are being received, as bodies or messages of WebSockets.
    received: ByteBudget,
    /// Events for WebSockets that are not yet serialised.
    unread: ByteCounter,
    /// Requests of WebSockets that have no reply yet.
    waiting: ByteCounter,
    /// Permits for event streams and WebSockets.
    streams: Arc<Semaphore>,
    started_at: String,
}

impl HttpState {
    fn new(service: HttpService) -> Self {
        let HttpService { daemon, terminals, access, metrics, stop, settings } = service;
        Self(Arc::new(HttpStateInner {
            cookie_name: access.cookie_name(),
            access,
            feed: EventBroadcast::new(daemon.clone()),
            engines: EngineCache::default(),
            limits: RateLimiter::new(settings.requests_per_second),
            budget: ByteBudget::of_responses(),
            stream_budget: Arc::new(ByteBudget::of_streams()),
            page_readers: Semaphore::new(entry_pages::MAX_PAGE_READERS),
            received: ByteBudget::of_received(),
            unread: ByteCounter::new(terminal_backlog::MAX_UNREAD_BYTES),
            waiting: ByteCounter::new(terminal_backlog::MAX_WAITING_BYTES),
            streams: Arc::new(Semaphore::new(settings.max_streams)),
            started_at: translate::time(daemon.stamp().at),
            daemon,
            terminals,
            metrics,
            stop,
            settings,
        }))
    }

    fn daemon(&self) -> &Daemon {
        &self.0.daemon
    }
}
