//! The HTTP connection to a model server: its construction, its headers and its failures.

use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Url, redirect};

use super::{endpoint::ModelEndpoint, key::ApiKey, retry_policy::RetryPolicy};

/// The header with the key, marked as sensitive so that it is not printed.
pub(super) fn authorization(key: &ApiKey) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
    let mut value = value.map_err(|_| {
        format!("the key in {} has characters that are not allowed in an HTTP header", key.variable())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// An HTTP client for this server.
pub(super) fn build_client(
    endpoint: &ModelEndpoint,
    retry_policy: &RetryPolicy,
) -> Result<reqwest::Client, String> {
    // An error means that the same provider was installed before.
    rustls::crypto::ring::default_provider().install_default().ok();
    let mut http = reqwest::Client::builder()
        .user_agent(concat!("abide/", env!("CARGO_PKG_VERSION")))
        // A redirected request would lose its body or send the key to another server.
        .redirect(redirect::Policy::none())
        .connect_timeout(retry_policy.idle_timeout.min(MAX_CONNECT_TIMEOUT))
        // Idle connections are not polled while tools run, so an old one may be closed without notice.
        .pool_idle_timeout(POOL_IDLE_TIMEOUT);
    if endpoint.is_local() {
        http = http.no_proxy();
    }
    if endpoint.is_unencrypted() {
        // Loading the system's certificates takes longer than the rest of the start, and plain HTTP needs none.
        let without_roots =
            rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
        http = http.tls_backend_preconfigured(without_roots.with_no_client_auth());
    }
    let failed =
        |error| format!("cannot connect to a model server: {}; {CERTIFICATE_ADVICE}", root_cause(&error));
    http.build().map_err(failed)
}

const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);

const CERTIFICATE_ADVICE: &str =
    "install ca-certificates, or name a file with the authorities to trust in SSL_CERT_FILE";

/// The reason why a server could not be reached.
pub(super) enum ConnectFailure {
    /// A retry would fail in the same way.
    Permanent(String),
    /// A retry may succeed.
    Transient(String),
}

/// Classifies a connection error, with advice for the user.
pub(super) fn classify_connect_error(url: &Url, error: &reqwest::Error) -> ConnectFailure {
    let reason = format!("cannot reach {url}: {}", root_cause(error));
    match find_tls_error(error) {
        Some(rustls::Error::InvalidMessage(_)) => ConnectFailure::Permanent(format!(
            "{reason}; does the server speak https? Perhaps model.base_url should begin with http://"
        )),
        // The certificate will not be valid at a retry either.
        Some(rustls::Error::InvalidCertificate(_)) => {
            ConnectFailure::Permanent(format!("{reason}; is the clock right? {CERTIFICATE_ADVICE}"))
        }
        Some(_) | None if error.is_builder() => ConnectFailure::Permanent(reason),
        Some(_) | None => ConnectFailure::Transient(reason),
    }
}

/// The innermost cause of an error. The outer ones only repeat that the request failed.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        // The text of the error itself contains the URL, which may contain a key.
        Some(_) if error.is_timeout() => "timed out".to_owned(),
        Some(_) => "the request could not be made".to_owned(),
        None => cause.to_string(),
    }
}

/// The TLS error in the chain of causes, if there is one.
fn find_tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(fault) = error.downcast_ref::<rustls::Error>() {
        return Some(fault);
    }
    // `io::Error::source` skips the error that it wraps, so it is unwrapped explicitly.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match wrapped {
        Some(wrapped) => find_tls_error(wrapped),
        None => find_tls_error(error.source()?),
    }
}
