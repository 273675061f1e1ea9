//! The connection: how it is made, what it carries, and why there is none.

use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Url, redirect};

use super::{endpoint::ModelEndpoint, key::ApiKey, patience::RetryPolicy};

/// The header that carries a key; nothing prints it.
pub(super) fn authorization(key: &ApiKey) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
    let mut value = value
        .map_err(|_| format!("the key in {} has characters that no header can carry", key.variable()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A client for this server.
pub(super) fn http(endpoint: &ModelEndpoint, patience: &RetryPolicy) -> Result<reqwest::Client, String> {
    // Whoever was first has installed the same one.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let mut http = reqwest::Client::builder()
        .user_agent(concat!("abide/", env!("CARGO_PKG_VERSION")))
        // A request that is sent elsewhere would lose its body or take the key along.
        .redirect(redirect::Policy::none())
        .connect_timeout(patience.idle.min(LONGEST_CONNECTING))
        // Nobody watches an idle connection while tools run, so an old one may be dead without our knowing.
        .pool_idle_timeout(LONGEST_KEPT);
    if endpoint.is_local() {
        http = http.no_proxy();
    }
    if endpoint.is_plain() {
        // Reading the machine's certificates takes longer than all the rest of a start.
        let trusting_nobody =
            rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
        http = http.tls_backend_preconfigured(trusting_nobody.with_no_client_auth());
    }
    let failed = |error| format!("cannot speak to a model server: {}; {CERTIFICATES}", deepest(&error));
    http.build().map_err(failed)
}

const LONGEST_CONNECTING: Duration = Duration::from_secs(20);
const LONGEST_KEPT: Duration = Duration::from_secs(4);

/// What to do about certificates.
const CERTIFICATES: &str =
    "install ca-certificates, or name a file with the authorities to trust in SSL_CERT_FILE";

/// Why a server could not be reached.
pub(super) enum ConnectFailure {
    /// It would be the same again.
    Hopeless(String),
    /// It may be there in a moment.
    Passing(String),
}

/// Why this server could not be reached, with what to do about it.
pub(super) fn why_not(url: &Url, error: &reqwest::Error) -> ConnectFailure {
    let reason = format!("cannot reach {url}: {}", deepest(error));
    match encryption_fault(error) {
        Some(rustls::Error::InvalidMessage(_)) => ConnectFailure::Hopeless(format!(
            "{reason}; does the server speak https? Perhaps model.base_url should begin with http://"
        )),
        // A certificate that is not trusted now will not be in a second.
        Some(rustls::Error::InvalidCertificate(_)) => {
            ConnectFailure::Hopeless(format!("{reason}; is the clock right? {CERTIFICATES}"))
        }
        Some(_) | None if error.is_builder() => ConnectFailure::Hopeless(reason),
        Some(_) | None => ConnectFailure::Passing(reason),
    }
}

/// What lies at the bottom of an error; the layers above it only repeat that something went wrong.
pub(super) fn deepest(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        // Its own text ends with the address, which may hold a key.
        Some(_) if error.is_timeout() => "timed out".to_owned(),
        Some(_) => "the request could not be made".to_owned(),
        None => cause.to_string(),
    }
}

/// What encryption has against a connection, if that is what broke it.
fn encryption_fault<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(fault) = error.downcast_ref::<rustls::Error>() {
        return Some(fault);
    }
    // An error of input or output passes over what it wraps when it is asked for its source.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match wrapped {
        Some(wrapped) => encryption_fault(wrapped),
        None => encryption_fault(error.source()?),
    }
}
