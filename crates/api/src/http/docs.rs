//! HTML pages: the API documentation and the sign-in page.
//!
//! Both pages are self-contained, and their content security policy forbids loading other resources. The documentation
//! page renders `/openapi.json`.

use std::sync::OnceLock;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

const DOCS_HTML: &str = include_str!("docs/page.html");
const SIGN_IN_HTML: &str = include_str!("docs/login.html");

/// The interactive documentation of the interface.
#[utoipa::path(
    get, path = "/docs", tag = "service", operation_id = "docs",
    responses((status = 200, description = "A page.", content_type = "text/html", body = String)),
)]
pub(super) async fn show() -> Response {
    page(StatusCode::OK, DOCS_HTML)
}

/// Leads to the page about the routes.
#[utoipa::path(
    get, path = "/", tag = "service", operation_id = "start",
    responses((status = 307, description = "To `/docs`.")),
)]
pub(super) async fn redirect_to_docs() -> Redirect {
    Redirect::temporary("/docs")
}

/// The sign-in page, served in place of a page that requires a credential.
pub(super) fn sign_in_page() -> Response {
    page(StatusCode::UNAUTHORIZED, SIGN_IN_HTML)
}

fn page(status: StatusCode, html: &'static str) -> Response {
    static POLICY: OnceLock<HeaderValue> = OnceLock::new();
    let policy = POLICY.get_or_init(|| {
        let scripts: Vec<_> = [DOCS_HTML, SIGN_IN_HTML].into_iter().map(|page| csp_hash(page, "script")).collect();
        let styles: Vec<_> = [DOCS_HTML, SIGN_IN_HTML].into_iter().map(|page| csp_hash(page, "style")).collect();
        let policy = format!(
            "default-src 'none'; connect-src 'self'; script-src {}; style-src {}; base-uri 'none'; form-action 'self'; \
             frame-ancestors 'none'",
            scripts.join(" "),
            styles.join(" "),
        );
        HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
    });
    let mut response = (status, html).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Returns the CSP hash that permits the one inline element of that name in a page.
fn csp_hash(page: &str, element: &str) -> String {
    let text = page.split_once(&format!("<{element}>")).map_or("", |(_, rest)| rest);
    let text = text.split_once(&format!("</{element}>")).map_or("", |(text, _)| text);
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_need_nothing_from_elsewhere() {
        for page in [DOCS_HTML, SIGN_IN_HTML] {
            assert!(
                !page.contains("src=") && !page.contains("http://") && !page.contains("https://"),
                "{page}"
            );
            assert_eq!(page.matches("<script>").count(), 1);
            assert_eq!(page.matches("<style>").count(), 1);
            assert!(!page.contains(" style=") && !page.contains(" onclick="), "the policy would forbid it");
        }
    }
}
