//! Connections: taken in, served, and let go when the daemon goes.

use axum::Router;
use tokio::net::TcpListener;

use super::{Service, router};

/// Serves until the future ends, and lets requests that are under way be answered.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    until: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router: Router = router(service);
    axum::serve(listener, router).with_graceful_shutdown(until).await
}
