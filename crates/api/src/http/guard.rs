//! Who may ask: the credential, the name by which we are called, and the page that asks.
//!
//! Every route but `/healthz` wants a credential. The name in `Host` must be one of ours, which protects against DNS
//! rebinding; a page's `Origin` must be ours, and a browser that says for which site it asks must name us. A token in a
//! URL is never looked at: URLs are logged and remembered.
//!
//! Browsers exchange the token for a cookie and a key. They send the cookie along by themselves, also to other ports of
//! this host, so it counts only beside the key, which the page keeps for its own origin. What a credential permits is
//! decided in `permissions`.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::Instant;

use super::{
    HttpState, StopMode, docs,
    limits::RateLimitKey,
    permissions,
    problem::{HttpProblem, ProblemCode},
    server::{ConnectionOrigin, HttpConnection},
};
use crate::access::{CookieVerdict, Principal};

/// The credential that a request came with, for what is counted by credential.
#[derive(Clone, Debug)]
pub(super) struct RequestCredential(pub(super) Arc<str>);

/// What the guard makes of a request.
#[derive(Debug)]
enum GuardVerdict {
    /// The client has shown this credential.
    Known(Principal),
    /// It needs no credential.
    Open,
    /// A browser that has shown none gets the page where it can.
    SignIn,
}

/// Lets a request through that may come in.
///
/// The guard comes before all limits: what it refuses counts against the bucket of refused requests of that address, and
/// its connection keeps its place among those that have shown no credential.
pub(super) async fn check(State(interface): State<HttpState>, mut request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<HttpConnection>().cloned();
    let origin = connection.as_ref().map(|connection| connection.origin);
    let address = origin.and_then(ConnectionOrigin::client);
    let verdict = judge(&interface, &request, origin);
    let client = match &verdict {
        Ok(GuardVerdict::Known(principal)) => RateLimitKey::Known(principal.token.clone(), address),
        Ok(GuardVerdict::Open | GuardVerdict::SignIn) => RateLimitKey::Open(address),
        Err(_) => RateLimitKey::Refused(address),
    };
    let is_allowed = interface.0.limits.allow(client, Instant::now());
    let answer = match verdict {
        _ if !is_allowed => Err(HttpProblem::new(
            ProblemCode::RateLimited,
            "too many requests at once (setting http.requests_per_second); slow down",
        )),
        Ok(GuardVerdict::Known(principal)) => {
            request.extensions_mut().insert(RequestCredential(principal.token.clone()));
            request.extensions_mut().insert(principal.clone());
            let place = connection.as_ref().map_or(Ok(()), |connection| connection.admission.prove());
            match place {
                Ok(()) => {
                    let admitted = admit(&interface, &principal, request, next).await;
                    return admitted.unwrap_or_else(HttpProblem::into_response);
                }
                Err(_) => Err(HttpProblem::new(
                    ProblemCode::TooManyConnections,
                    "too many connections are open (setting http.max_connections); close some, or try again",
                )),
            }
        }
        Ok(GuardVerdict::Open) => Ok(next.run(request).await),
        Ok(GuardVerdict::SignIn) => Ok(docs::login()),
        Err(problem) => Err(problem),
    };
    // A connection without a credential carries one request, so that it makes room for the next.
    let mut response = answer.unwrap_or_else(HttpProblem::into_response);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn judge(
    interface: &HttpState,
    request: &Request,
    origin: Option<ConnectionOrigin>,
) -> Result<GuardVerdict, HttpProblem> {
    let host = host(request.headers(), request.uri()).unwrap_or_default();
    let is_called_right = match origin {
        // No page can connect there, whatever name it gives us.
        Some(ConnectionOrigin::Local) => true,
        Some(ConnectionOrigin::Network { ours, .. }) => {
            is_ours(host, ours, &interface.0.settings.allowed_hosts)
        }
        None => is_ours(host, None, &interface.0.settings.allowed_hosts),
    };
    if !is_called_right {
        return Err(HttpProblem::new(
            ProblemCode::ForbiddenHost,
            "this name is not one of the daemon's; use 127.0.0.1 or localhost, or add it to the setting \
             http.allowed_hosts",
        ));
    }
    let path = request.uri().path();
    let is_page = request.method() == Method::GET && PAGES.contains(&path);
    if !is_same_origin(request.headers(), host) || !is_from_own_page(request.headers(), is_page) {
        return Err(HttpProblem::new(
            ProblemCode::ForbiddenOrigin,
            "pages of other origins may not ask anything here",
        ));
    }
    let shown = identify(interface, request.method(), request.headers());
    match (shown, path) {
        (PresentedCredential::Known(principal), _) => Ok(GuardVerdict::Known(principal)),
        (_, "/healthz") => Ok(GuardVerdict::Open),
        // They hold no secret, and a browser that goes to a page cannot send the page's key.
        (PresentedCredential::CookieOnly, _) if is_page && request.uri().query() != Some(SIGN_IN_AGAIN) => {
            Ok(GuardVerdict::Open)
        }
        (PresentedCredential::CookieOnly | PresentedCredential::Nothing, _) if is_page => {
            Ok(GuardVerdict::SignIn)
        }
        (PresentedCredential::CookieOnly, _) => Err(HttpProblem::new(
            ProblemCode::Unauthorized,
            "the cookie of a sign-in counts only with the page's key in the header abide-session-key; sign in again",
        )),
        (PresentedCredential::Nothing, _) => Err(HttpProblem::new(
            ProblemCode::Unauthorized,
            "show the token from the file `token` in Abide's home: authorization: Bearer TOKEN",
        )),
    }
}

/// Pages for people: a browser without a credential gets the sign-in page in their place, and links on other sites may
/// lead to them.
const PAGES: [&str; 2] = ["/", "/docs"];
/// The query by which a page asks for the sign-in page because it has lost its key.
const SIGN_IN_AGAIN: &str = "sign-in";

/// Serves a client that has shown a credential.
async fn admit(
    interface: &HttpState,
    principal: &Principal,
    request: Request,
    next: Next,
) -> Result<Response, HttpProblem> {
    let route = request.extensions().get::<MatchedPath>().cloned();
    permissions::check(principal, request.method(), route.as_ref().map(MatchedPath::as_str))?;
    save_uses(interface);
    let is_change = request.method() != Method::GET && request.method() != Method::HEAD;
    if is_change && request.uri().path() != "/v1/stop" {
        if *interface.0.stop.borrow() != StopMode::No {
            return Err(HttpProblem::new(ProblemCode::Stopping, "the daemon is stopping; ask the next one"));
        }
        // An acknowledgement that the next start does not know of would be worth nothing.
        interface.daemon().store().health()?;
        // What is taken before everything found at start-up has been taken up could overtake it.
        if !interface.daemon().is_ready() {
            return Err(HttpProblem::new(
                ProblemCode::NotReady,
                "the daemon is still taking up what it found; try again",
            ));
        }
    }
    Ok(next.run(request).await)
}

/// Keeps when credentials were used, now and then, on a thread that may wait for the disk.
fn save_uses(interface: &HttpState) {
    let now = interface.daemon().stamp().at;
    if interface.0.access.has_uses_to_save(now) {
        let access = interface.0.access.clone();
        tokio::task::spawn_blocking(move || access.save_uses(now));
    }
}

/// What a client has shown.
#[derive(Debug)]
enum PresentedCredential {
    Known(Principal),
    /// A sign-in's cookie without the page's key, or for a change without saying which page asks.
    CookieOnly,
    Nothing,
}

/// Finds out which credential the client has shown: a token, or the sign-in that it was exchanged for.
fn identify(interface: &HttpState, method: &Method, headers: &HeaderMap) -> PresentedCredential {
    let (access, now) = (&interface.0.access, interface.daemon().stamp().at);
    if let Some(token) = bearer(headers) {
        return access.token(token, now).map_or(PresentedCredential::Nothing, PresentedCredential::Known);
    }
    let is_change =
        !(method == Method::GET || method == Method::HEAD) || headers.contains_key(header::UPGRADE);
    let page_key = page_key(headers);
    let mut shown = PresentedCredential::Nothing;
    for cookie in cookies(headers, &interface.0.cookie_name).take(MAX_COOKIES) {
        match access.cookie(cookie, page_key, now) {
            // Where an origin is given, it was found to be ours before.
            CookieVerdict::Known(principal) if !is_change || headers.contains_key(header::ORIGIN) => {
                return PresentedCredential::Known(principal);
            }
            CookieVerdict::Known(_) | CookieVerdict::WithoutPageKey => {
                shown = PresentedCredential::CookieOnly
            }
            CookieVerdict::Unknown => {}
        }
    }
    shown
}

/// How many cookies of our name are looked at.
const MAX_COOKIES: usize = 4;
/// The header with the page's key.
pub(super) const PAGE_KEY: &str = "abide-session-key";
/// The beginning of a WebSocket's subprotocol that carries the key: pages cannot set headers there.
const PAGE_KEY_PROTOCOL: &str = "abide.key.";

fn page_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get(PAGE_KEY) {
        return key.to_str().ok();
    }
    let offered =
        headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut offered = offered.flat_map(|text| text.split(',')).map(str::trim);
    offered.find_map(|protocol| protocol.strip_prefix(PAGE_KEY_PROTOCOL))
}

fn cookies<'a>(headers: &'a HeaderMap, ours: &'a str) -> impl Iterator<Item = &'a str> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(name, _)| *name == ours).map(|(_, value)| value)
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

/// Whether a page cannot have made this name up: an address of this machine's, which nobody can give a meaning of their
/// own, or a name that was allowed.
fn is_ours(host: &str, ours: Option<IpAddr>, allowed: &[String]) -> bool {
    let name = without_port(host);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.is_loopback() || Some(address) == ours)
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

/// Whether a browser that says which site makes the request names our own, or the person. Other ports of this machine are
/// another origin of the same site. A link to a page may be followed from anywhere.
fn is_from_own_page(headers: &HeaderMap, is_page: bool) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_link = is_page
        && text("sec-fetch-mode") == Some("navigate")
        && text("sec-fetch-dest").is_some_and(|dest| dest == "document");
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.all(|site| ["same-origin", "none"].iter().any(|own| site == own)) || is_link
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
            assert!(is_ours(ours, None, &allowed), "{ours}");
        }
        for foreign in
            ["", "evil.example:4870", "localhost.evil.example", "10.0.0.1:4870", "abide.example.evil", ":80"]
        {
            assert!(!is_ours(foreign, None, &allowed), "{foreign}");
        }
        let own = "10.0.0.1".parse().ok();
        assert!(is_ours("10.0.0.1:4870", own, &allowed) && !is_ours("10.0.0.2:4870", own, &allowed));
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

    /// SECURITY finding 21.
    #[test]
    fn a_browser_asks_for_our_own_pages_only_but_follows_links_from_anywhere() {
        let with = |fields: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, value.parse().unwrap());
            }
            headers
        };
        for own in [&[][..], &[("sec-fetch-site", "same-origin")], &[("sec-fetch-site", "none")]] {
            assert!(is_from_own_page(&with(own), false), "{own:?}");
        }
        for site in ["same-site", "cross-site", "", "Same-Origin"] {
            assert!(!is_from_own_page(&with(&[("sec-fetch-site", site)]), true), "{site}");
        }
        let link = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(is_from_own_page(&with(&link), true));
        assert!(!is_from_own_page(&with(&link), false), "data is no page");
        let frame =
            [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        assert!(!is_from_own_page(&with(&frame), true));
        let two = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")];
        assert!(!is_from_own_page(&with(&two), false));
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, "a=1; abide_session=x; b=2".parse().unwrap());
        headers.append(header::COOKIE, "abide_session=y".parse().unwrap());
        headers.append(header::COOKIE, "abide_session_2=z".parse().unwrap());
        assert_eq!(cookies(&headers, "abide_session").collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn a_pages_key_comes_as_a_header_or_as_a_subprotocol() {
        let with = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            page_key(&headers).map(str::to_owned)
        };
        assert_eq!(with("abide-session-key", "k").as_deref(), Some("k"));
        assert_eq!(with("sec-websocket-protocol", "abide.rpc, abide.key.k").as_deref(), Some("k"));
        assert_eq!(with("sec-websocket-protocol", "abide.rpc"), None);
    }
}
