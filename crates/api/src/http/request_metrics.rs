//! Counts HTTP requests.

use abide_observe::metrics::DaemonMetrics;
use axum::{
    extract::{MatchedPath, Request as Asked, State},
    http::Method,
    middleware::Next,
    response::Response,
};

/// Middleware that counts every request by route template, method and status.
pub(super) async fn count_requests(
    State(metrics): State<DaemonMetrics>,
    request: Asked,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let method = method_label(request.method());
    let response = next.run(request).await;
    let (route, status) = (route.unwrap_or_else(|| "other".to_owned()), response.status().as_u16());
    metrics.count_request(method, route, status);
    response
}

/// Non-standard methods share one label, so that clients cannot create series.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
