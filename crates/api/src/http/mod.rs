//! The HTTP interface, `/v1`: what people and programs ask of the daemon, as INTERFACES section 3 names it.
//!
//! Handlers are thin: a wire type comes in, the daemon is asked, a wire type goes out. What a request means is decided
//! in `daemon` and `domain`.

use std::sync::Arc;

use abide_daemon::Daemon;
use abide_terminal::Handle;
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, sync::watch};

use crate::metrics::{CONTENT_TYPE, Metrics, measure};

/// What the interface works with.
#[derive(Clone, Debug)]
pub struct Service {
    /// The daemon.
    pub daemon: Daemon,
    /// The terminal runtime.
    pub terminals: Arc<Handle>,
    /// Who shows this text may ask for anything.
    pub token: String,
    /// The figures of this process.
    pub metrics: Metrics,
    /// Told when somebody asks for a stop.
    pub stop: watch::Sender<Stop>,
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

/// All routes.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/healthz", get(|| async { Json(serde_json::json!({ "status": "ok" })) }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .layer(middleware::from_fn_with_state(service.metrics.clone(), measure))
        .with_state(service)
}

/// Serves until the future ends, and lets requests that are under way be answered.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    until: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(service)).with_graceful_shutdown(until).await
}

async fn ready(State(service): State<Service>) -> StatusCode {
    if service.daemon.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// The figures, for whoever collects them.
async fn metrics(State(service): State<Service>) -> Response {
    match service.metrics.text(&service.daemon).await {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}
