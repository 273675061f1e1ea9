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
use abide_terminal::Handle;
use tokio::sync::{Semaphore, watch};

pub use router::{openapi, router};
pub use server::{LocalListener, serve};
pub use settings::Settings;

use budget::ByteBudget;
use engines::Found;
use feed::Feed;
use limits::Limits;

use crate::{access::AccessRegistry, metrics::Metrics};

/// What the interface works with.
#[derive(Clone, Debug)]
pub struct Service {
    /// The daemon.
    pub daemon: Daemon,
    /// The terminal runtime.
    pub terminals: Arc<Handle>,
    /// The credentials that clients show.
    pub access: Arc<AccessRegistry>,
    /// The figures of this process.
    pub metrics: Metrics,
    /// Told when somebody asks for a stop.
    pub stop: watch::Sender<Stop>,
    /// What can be set.
    pub settings: Settings,
}

/// Whether and how the daemon should stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
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
pub(crate) struct Interface(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    daemon: Daemon,
    terminals: Arc<Handle>,
    metrics: Metrics,
    access: Arc<AccessRegistry>,
    cookie_name: String,
    stop: watch::Sender<Stop>,
    settings: Settings,
    feed: Feed,
    engines: Found,
    limits: Limits,
    budget: ByteBudget,
    /// Places for connections that stay open.
    streams: Arc<Semaphore>,
    started_at: String,
}

impl Interface {
    fn new(service: Service) -> Self {
        let Service { daemon, terminals, access, metrics, stop, settings } = service;
        Self(Arc::new(Inner {
            cookie_name: access.cookie_name(),
            access,
            feed: Feed::new(daemon.clone()),
            engines: Found::default(),
            limits: Limits::new(settings.requests_per_second),
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
