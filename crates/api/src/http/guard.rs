//! Who may ask: the token, the name by which we are called, and the page that asks.
//!
//! Every route but `/healthz` wants the token. The name in `Host` must be one of ours, because a web page can give its
//! own name our address and then talk to us as to itself; a page's `Origin` must be ours for the same reason. A token in
//! a URL is never looked at: URLs are logged and remembered.

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, Uri, header},
    middleware::Next,
    response::Response,
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{
    Interface, Stop,
    problem::{Code, Problem},
};

/// Digests of what clients may show. Digests are compared, in constant time, so that neither length nor content of the
/// token can be told from how long a refusal takes.
pub(super) struct Secrets {
    token: [u8; 32],
}

impl Secrets {
    pub(super) fn new(token: &str) -> Self {
        Self { token: digest(token) }
    }

    /// Whether this is the token.
    pub(super) fn is_token(&self, shown: &str) -> bool {
        digest(shown).ct_eq(&self.token).into()
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Lets a request through that may come in.
pub(super) async fn check(
    State(interface): State<Interface>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let host = host(request.headers(), request.uri()).unwrap_or_default().to_owned();
    if !is_ours(&host, &interface.0.settings.allowed_hosts) {
        return Err(Problem::new(
            Code::ForbiddenHost,
            "this name is not one of the daemon's; use 127.0.0.1 or localhost, or add it to the setting \
             http.allowed_hosts",
        ));
    }
    if !is_same_origin(request.headers(), &host) {
        return Err(Problem::new(Code::ForbiddenOrigin, "pages of other origins may not ask anything here"));
    }
    let path = request.uri().path();
    if path == "/healthz" {
        return Ok(next.run(request).await);
    }
    if !shows_token(&interface, request.headers()) {
        return Err(Problem::new(
            Code::Unauthorized,
            "show the token from the file `token` in Abide's home: authorization: Bearer TOKEN",
        ));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD && path != "/v1/stop" {
        if *interface.0.stop.borrow() != Stop::No {
            return Err(Problem::new(Code::Stopping, "the daemon is stopping; ask the next one"));
        }
        // What is taken before everything found at start-up has been taken up could overtake it.
        if !interface.daemon().is_ready() {
            return Err(Problem::new(
                Code::NotReady,
                "the daemon is still taking up what it found; try again",
            ));
        }
    }
    Ok(next.run(request).await)
}

fn shows_token(interface: &Interface, headers: &HeaderMap) -> bool {
    bearer(headers).is_some_and(|token| interface.0.secrets.is_token(token))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// The name and port by which the client calls us.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let mut named = headers.get_all(header::HOST).iter();
    match (uri.authority(), named.next(), named.next()) {
        // Two names are one too many: which of them somebody on the way looked at is anyone's guess.
        (_, _, Some(_)) => None,
        (Some(authority), _, None) => Some(authority.as_str()),
        (None, one, None) => one?.to_str().ok(),
    }
}

/// Whether a page cannot have made this name up: an address that only this machine has, or a name that was allowed.
fn is_ours(host: &str, allowed: &[String]) -> bool {
    let name = without_port(host);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.is_loopback())
        || allowed
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(name) || allowed.eq_ignore_ascii_case(host))
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        // The colons of an address in brackets do not count.
        Some(at) if !host.ends_with(']') => host.get(..at).unwrap_or(host),
        Some(_) | None => host,
    }
}

fn is_same_origin(headers: &HeaderMap, host: &str) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.all(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let called = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        called.is_some_and(|called| called.eq_ignore_ascii_case(host))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_our_own_are_answered_to() {
        let allowed = ["abide.example".to_owned()];
        for ours in [
            "127.0.0.1:4870",
            "127.0.0.1",
            "127.9.9.9:1",
            "localhost:9999",
            "LOCALHOST",
            "[::1]:4870",
            "[::1]",
            "abide.example",
            "Abide.Example:443",
        ] {
            assert!(is_ours(ours, &allowed), "{ours}");
        }
        for foreign in
            ["", "evil.example:4870", "localhost.evil.example", "10.0.0.1:4870", "abide.example.evil", ":80"]
        {
            assert!(!is_ours(foreign, &allowed), "{foreign}");
        }
    }

    #[test]
    fn a_page_must_come_from_where_it_asks() {
        let with = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, origin.parse().unwrap());
            headers
        };
        assert!(is_same_origin(&HeaderMap::new(), "127.0.0.1:4870"));
        assert!(is_same_origin(&with("http://127.0.0.1:4870"), "127.0.0.1:4870"));
        assert!(is_same_origin(&with("https://abide.example"), "abide.example"));
        for foreign in ["null", "http://127.0.0.1:4871", "http://evil.example", "", "file://"] {
            assert!(!is_same_origin(&with(foreign), "127.0.0.1:4870"), "{foreign}");
        }
    }

    #[test]
    fn the_token_is_known_and_nothing_like_it() {
        let secrets = Secrets::new("secret");
        assert!(secrets.is_token("secret"));
        for wrong in ["", "secre", "secrets", "Secret"] {
            assert!(!secrets.is_token(wrong), "{wrong}");
        }
        assert_eq!(format!("{secrets:?}"), "***");
    }
}
