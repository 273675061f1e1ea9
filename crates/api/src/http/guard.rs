//! Authentication and origin checks of every request.
//!
//! Every route except `/healthz` requires a credential. The `Host` header must be one of our names, which protects
//! against DNS rebinding. The `Origin` of a page and the fetch metadata of a browser must be our own. Tokens in URLs
//! are ignored, because URLs end up in logs and histories.
//!
//! Browsers exchange the token for a cookie and a key. A browser sends the cookie to all ports of this host, so the
//! cookie is valid only together with the key, which the page keeps for its own origin. Permissions of a credential are
//! checked in `permissions`. `credential_watch` ends requests and responses whose credential is revoked or expires.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::Instant;

use super::{
    HttpState, StopMode,
    credential_watch::CredentialWatch,
    docs,
    limits::RateLimitKey,
    permissions,
    problem::{HttpProblem, ProblemCode},
    server::{ConnectionOrigin, HttpConnection},
};
use crate::access::{CookieVerdict, Principal};

/// The credential of a request, for limits that are counted per credential.
#[derive(Clone, Debug)]
pub(super) struct RequestCredential(pub(super) Arc<str>);

/// Decision about a request.
#[derive(Debug)]
enum GuardVerdict {
    /// The client presented this valid credential.
    Authenticated(Principal),
    /// The route requires no credential.
    Public,
    /// A browser without a credential gets the sign-in page.
    SignIn,
}

/// Middleware that rejects unauthenticated and cross-origin requests.
///
/// It runs before all limits. A rejected request counts against the rejection bucket of its address, and its connection
/// stays in the unauthenticated share.
pub(super) async fn check(State(interface): State<HttpState>, mut request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<HttpConnection>().cloned();
    let origin = connection.as_ref().map(|connection| connection.origin);
    let address = origin.and_then(ConnectionOrigin::client);
    let verdict = authenticate(&interface, &request, origin);
    let client = match &verdict {
        Ok(GuardVerdict::Authenticated(principal)) => {
            RateLimitKey::Authenticated(principal.token.clone(), address)
        }
        Ok(GuardVerdict::Public | GuardVerdict::SignIn) => RateLimitKey::Public(address),
        Err(_) => RateLimitKey::Refused(address),
    };
    let is_allowed = interface.0.limits.allow(client, Instant::now());
    let answer = match verdict {
        _ if !is_allowed => Err(HttpProblem::new(
            ProblemCode::RateLimited,
            "too many requests at once (setting http.requests_per_second); slow down",
        )),
        Ok(GuardVerdict::Authenticated(principal)) => {
            request.extensions_mut().insert(RequestCredential(principal.token.clone()));
            request.extensions_mut().insert(principal.clone());
            let permit_result =
                connection.as_ref().map_or(Ok(()), |connection| connection.permit.mark_authenticated());
            match permit_result {
                Ok(()) => {
                    let admitted = serve_authenticated(&interface, &principal, request, next).await;
                    return admitted.unwrap_or_else(HttpProblem::into_response);
                }
                Err(_) => Err(HttpProblem::new(
                    ProblemCode::TooManyConnections,
                    "too many connections are open (setting http.max_connections); close some, or try again",
                )),
            }
        }
        Ok(GuardVerdict::Public) => Ok(next.run(request).await),
        Ok(GuardVerdict::SignIn) => Ok(docs::sign_in_page()),
        Err(problem) => Err(problem),
    };
    // An unauthenticated connection carries one request, so that it makes room for the next.
    let mut response = answer.unwrap_or_else(HttpProblem::into_response);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn authenticate(
    interface: &HttpState,
    request: &Request,
    origin: Option<ConnectionOrigin>,
) -> Result<GuardVerdict, HttpProblem> {
    let host = host(request.headers(), request.uri()).unwrap_or_default();
    let is_host_allowed = match origin {
        // Web pages cannot connect to the Unix socket, whatever the `Host` header is.
        Some(ConnectionOrigin::Local) => true,
        Some(ConnectionOrigin::Network { local_ip: ours, .. }) => {
            is_allowed_host(host, ours, &interface.0.settings.allowed_hosts)
        }
        None => is_allowed_host(host, None, &interface.0.settings.allowed_hosts),
    };
    if !is_host_allowed {
        return Err(HttpProblem::new(
            ProblemCode::ForbiddenHost,
            "this Host header is not allowed; use 127.0.0.1 or localhost, or add it to the setting \
             http.allowed_hosts",
        ));
    }
    let path = request.uri().path();
    let is_page = request.method() == Method::GET && HTML_PATHS.contains(&path);
    if !is_same_origin(request.headers(), host) || !is_from_own_page(request.headers(), is_page) {
        return Err(HttpProblem::new(
            ProblemCode::ForbiddenOrigin,
            "requests from pages of other origins are refused",
        ));
    }
    let credential = presented_credential(interface, request.method(), request.headers());
    match (credential, path) {
        (PresentedCredential::Valid(principal), _) => Ok(GuardVerdict::Authenticated(principal)),
        (_, "/healthz") => Ok(GuardVerdict::Public),
        // Pages contain no secret, and a browser that navigates to one cannot send the page key.
        (PresentedCredential::CookieOnly, _) if is_page && request.uri().query() != Some(SIGN_IN_QUERY) => {
            Ok(GuardVerdict::Public)
        }
        (PresentedCredential::CookieOnly | PresentedCredential::None, _) if is_page => {
            Ok(GuardVerdict::SignIn)
        }
        (PresentedCredential::CookieOnly, _) => Err(HttpProblem::new(
            ProblemCode::Unauthorized,
            "the cookie of a sign-in is valid only with the page's key in the header abide-session-key; sign in again",
        )),
        (PresentedCredential::None, _) => Err(HttpProblem::new(
            ProblemCode::Unauthorized,
            "send the token from the file `token` in Abide's home: authorization: Bearer TOKEN",
        )),
    }
}

/// Pages for people. A browser without a credential gets the sign-in page in their place, and links on other sites may
/// lead to them.
const HTML_PATHS: [&str; 2] = ["/", "/docs"];
/// Query with which a page that has lost its key requests the sign-in page.
const SIGN_IN_QUERY: &str = "sign-in";

/// Serves an authenticated client.
async fn serve_authenticated(
    interface: &HttpState,
    principal: &Principal,
    request: Request,
    next: Next,
) -> Result<Response, HttpProblem> {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    permissions::check(principal, request.method(), route)?;
    save_uses(interface);
    let mut watch = CredentialWatch::new(interface.clone(), principal.clone());
    let may_end_credential = permissions::may_end_own_credential(request.method(), route);
    let is_change = request.method() != Method::GET && request.method() != Method::HEAD;
    if is_change && request.uri().path() != "/v1/stop" {
        if *interface.0.stop.borrow() != StopMode::No {
            return Err(HttpProblem::new(
                ProblemCode::Stopping,
                "the daemon is stopping; try again when it has restarted",
            ));
        }
        // An unhealthy store may lose the acknowledgement, so the request is refused.
        interface.daemon().store().health()?;
        // Requests accepted before recovery is complete could overtake recovered work.
        if !interface.daemon().is_ready() {
            return Err(HttpProblem::new(
                ProblemCode::NotReady,
                "the daemon is still recovering from the previous shutdown; try again",
            ));
        }
    }
    if may_end_credential {
        return Ok(next.run(request).await);
    }
    // The end of the credential is examined first at each poll. A request whose body arrives after it is not executed.
    let response = tokio::select! {
        biased;
        end = watch.ended() => return Err(HttpProblem::credential_ended(end)),
        response = next.run(request) => response,
    };
    Ok(watch.bind(response))
}

/// Saves last-use times periodically, on a thread that may block on the disk.
fn save_uses(interface: &HttpState) {
    let now = interface.daemon().stamp().at;
    if interface.0.access.has_uses_to_save(now) {
        let access = interface.0.access.clone();
        tokio::task::spawn_blocking(move || access.save_uses(now));
    }
}

/// The credential presented by a client.
#[derive(Debug)]
enum PresentedCredential {
    Valid(Principal),
    /// A sign-in cookie without the page key, or a change without an `Origin` header.
    CookieOnly,
    None,
}

/// Determines the presented credential: a token, or a sign-in obtained with one.
fn presented_credential(interface: &HttpState, method: &Method, headers: &HeaderMap) -> PresentedCredential {
    let (access, now) = (&interface.0.access, interface.daemon().stamp().at);
    if let Some(token) = bearer(headers) {
        return access
            .authenticate_token(token, now)
            .map_or(PresentedCredential::None, PresentedCredential::Valid);
    }
    let is_change =
        !(method == Method::GET || method == Method::HEAD) || headers.contains_key(header::UPGRADE);
    let page_key = page_key(headers);
    let mut credential = PresentedCredential::None;
    for cookie in cookies(headers, &interface.0.cookie_name).take(MAX_COOKIES) {
        match access.check_cookie(cookie, page_key, now) {
            // An `Origin` that is present has been checked before.
            CookieVerdict::Valid(principal) if !is_change || headers.contains_key(header::ORIGIN) => {
                return PresentedCredential::Valid(principal);
            }
            CookieVerdict::Valid(_) | CookieVerdict::WithoutPageKey => {
                credential = PresentedCredential::CookieOnly
            }
            CookieVerdict::Unknown => {}
        }
    }
    credential
}

/// Maximum number of cookies with our name that are checked.
const MAX_COOKIES: usize = 4;
/// Header with the page key.
pub(super) const PAGE_KEY_HEADER: &str = "abide-session-key";
/// Prefix of the WebSocket subprotocol that carries the page key, because pages cannot set headers on a WebSocket.
const PAGE_KEY_PROTOCOL_PREFIX: &str = "abide.key.";

fn page_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get(PAGE_KEY_HEADER) {
        return key.to_str().ok();
    }
    let offered =
        headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut offered = offered.flat_map(|text| text.split(',')).map(str::trim);
    offered.find_map(|protocol| protocol.strip_prefix(PAGE_KEY_PROTOCOL_PREFIX))
}

fn cookies<'a>(headers: &'a HeaderMap, cookie_name: &'a str) -> impl Iterator<Item = &'a str> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(name, _)| *name == cookie_name).map(|(_, value)| value)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Returns the host name and port that the client addressed.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let mut named = headers.get_all(header::HOST).iter();
    match (uri.authority(), named.next(), named.next()) {
        // Conflicting host names are rejected, because a proxy may have checked the other one.
        (_, _, Some(_)) => None,
        (Some(authority), _, None) => Some(authority.as_str()),
        (None, one, None) => one?.to_str().ok(),
    }
}

/// Returns whether the host cannot be under an attacker's control: an address of this machine, which no DNS server can
/// assign, or an allowed name.
fn is_allowed_host(host: &str, own_address: Option<IpAddr>, allowed: &[String]) -> bool {
    let name = without_port(host);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.is_loopback() || Some(address) == own_address)
        || allowed
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(name) || allowed.eq_ignore_ascii_case(host))
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        // Colons inside a bracketed IPv6 address are not a port separator.
        Some(at) if !host.ends_with(']') => host.get(..at).unwrap_or(host),
        Some(_) | None => host,
    }
}

fn is_same_origin(headers: &HeaderMap, host: &str) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.all(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    })
}

/// Returns whether the fetch metadata shows a request by our own page or by the user. Other ports of this machine are a
/// different origin of the same site. Links to a page may be followed from anywhere.
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
    fn only_own_host_names_are_served() {
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
            assert!(is_allowed_host(ours, None, &allowed), "{ours}");
        }
        for foreign in
            ["", "evil.example:4870", "localhost.evil.example", "10.0.0.1:4870", "abide.example.evil", ":80"]
        {
            assert!(!is_allowed_host(foreign, None, &allowed), "{foreign}");
        }
        let own = "10.0.0.1".parse().ok();
        assert!(
            is_allowed_host("10.0.0.1:4870", own, &allowed)
                && !is_allowed_host("10.0.0.2:4870", own, &allowed)
        );
    }

    #[test]
    fn a_page_must_be_same_origin() {
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
