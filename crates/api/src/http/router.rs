//! The router and the OpenAPI document. Each route is declared once, at its handler.

use std::panic::AssertUnwindSafe;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::{HeaderValue, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use serde_json::Value;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    HttpService, HttpState, artifacts, docs, document, engines, events, guard, interactions, messages,
    problem::{HttpProblem, ProblemCode},
    request_metrics, runs, service, terminals, tokens,
};

/// Builds the router with all routes and middleware.
pub fn router(service: HttpService) -> Router {
    let interface = HttpState::new(service);
    let (router, _) = declared_routes().split_for_parts();
    router
        .fallback(|| async {
            HttpProblem::new(ProblemCode::NotFound, "there is no such path; /openapi.json lists all")
        })
        .method_not_allowed_fallback(|| async {
            HttpProblem::new(ProblemCode::MethodNotAllowed, "method not allowed; see the Allow header")
        })
        .layer(DefaultBodyLimit::max(interface.0.settings.max_body_bytes))
        .layer(middleware::from_fn_with_state(interface.clone(), guard::check))
        .layer(middleware::from_fn(catch_panics))
        .layer(middleware::from_fn_with_state(interface.0.metrics.clone(), request_metrics::count_requests))
        .with_state(interface)
}

/// Returns the OpenAPI 3.1 document.
pub fn openapi() -> Value {
    document::complete(declared_routes().into_openapi())
}

fn declared_routes() -> OpenApiRouter<HttpState> {
    OpenApiRouter::new()
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(runs::turns))
        .routes(routes!(runs::interrupt))
        .routes(routes!(runs::cancel))
        .routes(routes!(interactions::of_run))
        .routes(routes!(interactions::inbox))
        .routes(routes!(interactions::reply))
        .routes(routes!(interactions::content))
        .routes(routes!(messages::send))
        .routes(routes!(messages::inbound))
        .routes(routes!(events::all))
        .routes(routes!(events::of_run))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::read))
        .routes(routes!(engines::list))
        .routes(routes!(terminals::call, terminals::connect))
        .routes(routes!(tokens::open_session, tokens::close_session))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(tokens::rotate))
        .routes(routes!(tokens::sign_ins))
        .routes(routes!(tokens::end_sign_in))
        .routes(routes!(document::show))
        .routes(routes!(docs::show))
        .routes(routes!(docs::redirect_to_docs))
        .routes(routes!(service::health))
        .routes(routes!(service::ready))
        .routes(routes!(service::metrics))
        .routes(routes!(service::status))
        .routes(routes!(service::stop))
}

/// Middleware that turns a panic of a handler into an error response and sets security headers: browsers must not guess
/// the content type or cache the response.
async fn catch_panics(request: Request, next: Next) -> Response {
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => HttpProblem::internal(
            "the request failed because of a bug; please report it with the daemon's log",
        )
        .into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Other origins, including other ports of this machine, can neither embed a response nor keep a reference to our
    // windows.
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::StatusCode, routing::get};
    use tower_service::Service as _;

    use super::*;

    #[tokio::test]
    async fn a_handler_that_panics_is_a_problem_and_the_next_request_is_answered() {
        let mut router: Router = Router::new()
            .route("/broken", get(|| async { panic!("on purpose") as &'static str }))
            .route("/whole", get(|| async { "fine" }))
            .layer(middleware::from_fn(catch_panics));
        let ask = |path: &str| Request::builder().uri(path).body(Body::empty()).unwrap();
        let broken = router.call(ask("/broken")).await.unwrap();
        assert_eq!(broken.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(broken.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(router.call(ask("/whole")).await.unwrap().status(), StatusCode::OK);
    }
}
