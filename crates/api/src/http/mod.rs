//! The HTTP interface, `/v1`: what people and programs ask of the daemon, as INTERFACES section 3 names it.
//!
//! Handlers are thin: a wire type comes in, the daemon is asked, a wire type goes out. What a request means is decided
//! in `daemon` and `domain`; who may ask, in `guard`; how a refusal looks, in `problem`; how connections are
//! kept within bounds, in `server`.

mod admission;
mod artifacts;
mod body;
mod budget;
mod docs;
mod document;
mod ends;
mod engines;
mod events;
mod feed;
mod guard;
mod interactions;
mod limits;
mod messages;
mod pages;
mod permissions;
mod person;
mod problem;
mod router;
mod runs;
mod server;
mod service;
mod settings;
mod terminals;
mod tokens;
mod translate;

use std::sync::Arc;

use abide_daemon::Daemon;
use abide_terminal::RuntimeHandle;
use tokio::sync::{Semaphore, watch};

pub use router::{openapi, router};
pub use server::{LocalListener, serve};
pub use settings::HttpConfig;

use budget::ByteBudget;
use engines::EngineCache;
use feed::EventBroadcast;
use limits::RateLimiter;

use crate::{access::AccessRegistry, metrics::DaemonMetrics};

/// What the interface works with.
#[derive(Clone, Debug)]
pub struct HttpService {
    /// The daemon.
    pub daemon: Daemon,
    /// The terminal runtime.
    pub terminals: Arc<RuntimeHandle>,
    /// The credentials that clients show.
    pub access: Arc<AccessRegistry>,
    /// The figures of this process.
    pub metrics: DaemonMetrics,
    /// Told when somebody asks for a stop.
    pub stop: watch::Sender<StopMode>,
    /// What can be set.
    pub settings: HttpConfig,
}

/// Whether and how the daemon should stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopMode {
    /// Not yet.
    #[default]
    No,
    /// In order: turns are stopped and sessions ended.
    Orderly,
    /// Everything is left to the keepers for the next start.
    Keep,
}

/// What every handler has at hand. Cheap to clone; all clones are one.
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
    /// Places for connections that stay open.
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
            budget: ByteBudget::default(),
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
