//! Who may ask: the token, the name by which we are called, and the page that asks.
//!
//! Every route but `/healthz` wants the token. The name in `Host` must be one of ours, because a web page can give its
//! own name our address and then talk to us as to itself; a page's `Origin` must be ours for the same reason. A token in
//! a URL is never looked at: URLs are logged and remembered.
//!
//! Browsers exchange the token for a cookie, which is not the token but follows from it: it stays valid across restarts
//! and ends when the token is replaced. Cookies are sent along by browsers unasked, so with one of them a change is only
//! made for a page that says where it comes from.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::{
    Interface, Stop, docs,
    limits::Client,
    problem::{Code, Problem},
    server::Connection,
};

/// Digests of what clients may show. Digests are compared, in constant time, so that neither length nor content of the
/// token can be told from how long a refusal takes.
pub(super) struct Secrets {
    token: [u8; 32],
    cookie: [u8; 32],
    /// What a browser is given.
    session: String,
}

impl Secrets {
    pub(super) fn new(token: &str) -> Self {
        let session: String =
            digest(&format!("abide session\n{token}")).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { token: digest(token), cookie: digest(&session), session }
    }

    /// Whether this is the token.
    pub(super) fn is_token(&self, shown: &str) -> bool {
        digest(shown).ct_eq(&self.token).into()
    }

    fn is_session(&self, shown: &str) -> bool {
        digest(shown).ct_eq(&self.cookie).into()
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

/// The credential that a request came with, for what is counted by credential.
#[derive(Clone, Debug)]
pub(super) struct Credential(pub(super) Arc<str>);

/// What the guard makes of a request.
#[derive(Debug)]
enum Verdict {
    /// The client has shown this credential.
    Known(Arc<str>),
    /// It needs no credential.
    Open,
    /// A browser that has shown none gets the page where it can.
    SignIn,
}

/// Lets a request through that may come in.
///
/// The guard comes before all limits: what it refuses counts against the bucket of refused requests of that address, and
/// its connection keeps its place among those that have shown no credential.
pub(super) async fn check(State(interface): State<Interface>, mut request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<Connection>().cloned();
    let address = connection.as_ref().and_then(|connection| connection.client);
    let verdict = judge(&interface, &request, connection.as_ref().and_then(|connection| connection.ours));
    let client = match &verdict {
        Ok(Verdict::Known(credential)) => Client::Known(credential.clone(), address),
        Ok(Verdict::Open | Verdict::SignIn) => Client::Open(address),
        Err(_) => Client::Refused(address),
    };
    let is_allowed = interface.0.limits.allow(client, Instant::now());
    let answer = match verdict {
        _ if !is_allowed => Err(Problem::new(
            Code::RateLimited,
            "too many requests at once (setting http.requests_per_second); slow down",
        )),
        Ok(Verdict::Known(credential)) => {
            request.extensions_mut().insert(Credential(credential));
            let place = connection.as_ref().map_or(Ok(()), |connection| connection.admission.prove());
            match place {
                Ok(()) => {
                    return admit(&interface, request, next).await.unwrap_or_else(Problem::into_response);
                }
                Err(_) => Err(Problem::new(
                    Code::TooManyConnections,
                    "too many connections are open (setting http.max_connections); close some, or try again",
                )),
            }
        }
        Ok(Verdict::Open) => Ok(next.run(request).await),
        Ok(Verdict::SignIn) => Ok(docs::login()),
        Err(problem) => Err(problem),
    };
    // A connection without a credential carries one request, so that it makes room for the next.
    let mut response = answer.unwrap_or_else(Problem::into_response);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn judge(interface: &Interface, request: &Request, ours: Option<IpAddr>) -> Result<Verdict, Problem> {
    let host = host(request.headers(), request.uri()).unwrap_or_default();
    if !is_ours(host, ours, &interface.0.settings.allowed_hosts) {
        return Err(Problem::new(
            Code::ForbiddenHost,
            "this name is not one of the daemon's; use 127.0.0.1 or localhost, or add it to the setting \
             http.allowed_hosts",
        ));
    }
    let path = request.uri().path();
    let is_page = request.method() == Method::GET && PAGES.contains(&path);
    if !is_same_origin(request.headers(), host) || !is_from_own_page(request.headers(), is_page) {
        return Err(Problem::new(Code::ForbiddenOrigin, "pages of other origins may not ask anything here"));
    }
    if let Some(credential) = identify(interface, request.method(), request.headers()) {
        return Ok(Verdict::Known(credential));
    }
    match path {
        "/healthz" => Ok(Verdict::Open),
        _ if is_page => Ok(Verdict::SignIn),
        _ => Err(Problem::new(
            Code::Unauthorized,
            "show the token from the file `token` in Abide's home: authorization: Bearer TOKEN",
        )),
    }
}

/// Pages for people: a browser without a credential gets the sign-in page in their place, and links on other sites may
/// lead to them.
const PAGES: [&str; 2] = ["/", "/docs"];

/// Serves a client that has shown a credential.
async fn admit(interface: &Interface, request: Request, next: Next) -> Result<Response, Problem> {
    let is_change = request.method() != Method::GET && request.method() != Method::HEAD;
    if is_change && request.uri().path() != "/v1/stop" {
        if *interface.0.stop.borrow() != Stop::No {
            return Err(Problem::new(Code::Stopping, "the daemon is stopping; ask the next one"));
        }
        // An acknowledgement that the next start does not know of would be worth nothing.
        interface.daemon().store().health()?;
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

/// Which credential the client has shown: the token, or the cookie that it was exchanged for.
fn identify(interface: &Interface, method: &Method, headers: &HeaderMap) -> Option<Arc<str>> {
    let secrets = &interface.0.secrets;
    if let Some(token) = bearer(headers) {
        return secrets.is_token(token).then(|| "owner".into());
    }
    let changes = !(method == Method::GET || method == Method::HEAD) || headers.contains_key(header::UPGRADE);
    // Where an origin is given, it was found to be ours before.
    let is_session = cookies(headers).any(|shown| secrets.is_session(shown))
        && (!changes || headers.contains_key(header::ORIGIN));
    is_session.then(|| "owner".into())
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// The cookie's name.
pub(super) const COOKIE: &str = "abide_session";

/// Exchanges the token for a cookie, for browsers.
///
/// The cookie is not the token, cannot be read by pages, and is not sent along from other sites.
#[utoipa::path(
    post, path = "/v1/session", tag = "service", operation_id = "open_session",
    responses((status = 204, description = "The cookie was set.", headers(("Set-Cookie" = String, description = "The cookie.")))),
)]
pub(super) async fn open_session(State(interface): State<Interface>) -> Response {
    set_cookie(&format!(
        "{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={AGE}",
        interface.0.secrets.session
    ))
}

/// Lets a browser forget the cookie.
#[utoipa::path(
    delete, path = "/v1/session", tag = "service", operation_id = "close_session",
    responses((status = 204, description = "The cookie was taken back.", headers(("Set-Cookie" = String, description = "Nothing, from now on.")))),
)]
pub(super) async fn close_session() -> Response {
    set_cookie(&format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"))
}

/// For how many seconds a browser keeps the cookie: 30 days.
const AGE: u32 = 30 * 24 * 3600;

fn set_cookie(cookie: &str) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
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
        assert_eq!(cookies(&headers).collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn the_token_is_known_and_nothing_like_it() {
        let secrets = Secrets::new("secret");
        assert!(secrets.is_token("secret"));
        for wrong in ["", "secre", "secrets", "Secret"] {
            assert!(!secrets.is_token(wrong), "{wrong}");
        }
        assert!(secrets.is_session(&secrets.session) && !secrets.is_session("secret"));
        assert!(!secrets.session.contains("secret"));
        assert_eq!(format!("{secrets:?}"), "***");
    }
}
