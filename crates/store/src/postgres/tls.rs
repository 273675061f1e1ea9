//! TLS to a server: the mode that a URL requests, and the accepted certificates.
//!
//! The driver does not support `verify-ca` and `verify-full`, so `sslmode` and `sslrootcert` are handled here.
//! Passwords and client certificates are handled elsewhere.

use std::{
    error::Error as _,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_ports::store::{StoreError, StoreInputError};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres::config::{Config, Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The protection of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// Unencrypted.
    Disable,
    /// TLS if the server supports it, with any certificate. Only a local connection falls back to plain text.
    Prefer,
    /// TLS with any certificate.
    Require,
    /// TLS with a certificate of a trusted authority, for any host name.
    VerifyCa,
    /// TLS with a certificate of a trusted authority for the host name of the URL.
    VerifyFull,
}

/// The trusted certificate authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TrustedAuthorities {
    /// Those of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    System,
    /// Those of a PEM file.
    File(PathBuf),
}

/// The TLS parameters of a URL.
#[derive(Clone, Debug)]
pub(super) struct TlsSettings {
    mode: TlsMode,
    authorities: TrustedAuthorities,
}

impl TlsMode {
    fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            _ => Err(StoreError::Invalid(StoreInputError::Location {
                detail:
                    "sslmode in the store's URL must be disable, prefer, require, verify-ca or verify-full"
                        .to_owned(),
            })),
        }
    }
}

impl TlsSettings {
    /// Determines the mode from the URL's parameters and hosts, and configures the driver. A connection that leaves the
    /// machine is verified unless the URL says otherwise.
    pub(super) fn from_parameters(
        config: &mut Config,
        sslmode: Option<&str>,
        sslrootcert: Option<&str>,
    ) -> Result<Self, StoreError> {
        let written = sslmode.map(TlsMode::parse).transpose()?;
        let is_local = is_local(config);
        let sockets = config.get_hosts().iter().filter(|host| matches!(host, Host::Unix(_))).count();
        let mode = match (written, sslrootcert) {
            // Unix sockets do not support TLS.
            _ if sockets > 0 && sockets == config.get_hosts().len() => TlsMode::Disable,
            // As in libpq, `sslrootcert` implies verification.
            (Some(TlsMode::Require), Some(_)) => TlsMode::VerifyCa,
            (Some(TlsMode::Prefer), _) if !is_local => TlsMode::Require,
            (Some(mode), _) => mode,
            (None, None) if is_local => TlsMode::Disable,
            (None, _) => TlsMode::VerifyFull,
        };
        if mode != TlsMode::Disable && sockets > 0 {
            return Err(StoreError::Invalid(StoreInputError::Location {
                detail: "the store's URL has both a Unix socket and a network address; keep one kind"
                    .to_owned(),
            }));
        }
        config.ssl_mode(match mode {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        if mode != TlsMode::Disable && config.get_hosts().is_empty() {
            // Without a name, the certificate is compared with the address.
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        let authorities = match sslrootcert {
            None | Some("system") => TrustedAuthorities::System,
            Some(file) => TrustedAuthorities::File(PathBuf::from(file)),
        };
        Ok(Self { mode, authorities })
    }

    /// The connector for the driver. Certificates are read again for each connection, so a renewed authority needs no
    /// restart.
    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, StoreError> {
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match self.mode {
            TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => {
                Arc::new(AnyCertificate(provider.clone()))
            }
            TlsMode::VerifyCa => Arc::new(AnyName(self.authorities.verifier(&provider)?)),
            TlsMode::VerifyFull => self.authorities.verifier(&provider)?,
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls_error(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }
}

impl TrustedAuthorities {
    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, StoreError> {
        let roots = match self {
            Self::System => system_roots()?,
            Self::File(path) => roots_of(path)?,
        };
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| tls_error(&error))
    }
}

fn tls_error(error: &dyn fmt::Display) -> StoreError {
    StoreError::Unavailable { reason: format!("cannot prepare TLS: {error}") }
}

fn system_roots() -> Result<RootCertStore, StoreError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let reason = loaded.errors.first().map_or(String::new(), |error| format!(" ({error})"));
        return Err(StoreError::Unavailable {
            reason: format!(
                "this system has no certificate authorities{reason}; install its package ca-certificates, or name the \
                 server's authority with sslrootcert=FILE in the store's URL"
            ),
        });
    }
    Ok(roots)
}

fn roots_of(path: &Path) -> Result<RootCertStore, StoreError> {
    let failed = |reason: &dyn fmt::Display| StoreError::Unavailable {
        reason: format!(
            "cannot use sslrootcert {}: {reason}; it must be a PEM file with the certificates of authorities",
            path.display()
        ),
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
        roots.add(certificate.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() {
        return Err(failed(&"it contains no certificate"));
    }
    Ok(roots)
}

/// Whether a connection stays on this machine: Unix sockets, loopback addresses and `localhost`.
fn is_local(config: &Config) -> bool {
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    let names = config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(is_loopback)
        }
    });
    names && config.get_hostaddrs().iter().copied().all(is_loopback)
}

/// The error for a connection that was refused during the TLS handshake. None if the failure is not caused by TLS, or
/// if a retry may succeed.
pub(super) fn handshake_error(error: &tokio_postgres::Error) -> Option<StoreError> {
    let source = error.source()?;
    if source.to_string() == NO_TLS {
        return Some(StoreError::Unavailable {
            reason: "the server does not offer TLS, and a password in clear text can be read on the way; enable TLS on \
                     the server (ssl = on), or write sslmode=disable in the store's URL if clear text is intended"
                .to_owned(),
        });
    }
    let tls = source.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<Error>()?;
    let is_unknown = matches!(tls, Error::InvalidCertificate(CertificateError::UnknownIssuer));
    let advice = if is_unknown {
        "; name the certificate of its authority with sslrootcert=FILE in the store's URL"
    } else if is_wrong_name(tls) {
        "; use a host name of the certificate in the store's URL, or sslmode=verify-ca to accept any name"
    } else {
        ""
    };
    Some(StoreError::Unavailable { reason: format!("the server is not trusted: {tls}{advice}") })
}

/// Whether a certificate is for another host.
fn is_wrong_name(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}

/// The driver's message for a server that does not support TLS.
const NO_TLS: &str = "server does not support TLS";

/// Accepts every certificate for which the server has the key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Verifies everything except the host name, which is checked last.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(error) if is_wrong_name(&error) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(url: &str, sslmode: Option<&str>, sslrootcert: Option<&str>) -> (TlsMode, SslMode) {
        let mut config: Config = url.parse().unwrap();
        let settings = TlsSettings::from_parameters(&mut config, sslmode, sslrootcert).unwrap();
        (settings.mode, config.get_ssl_mode())
    }

    #[test]
    fn only_a_connection_within_the_machine_is_clear_text_by_default() {
        for local in [
            "postgres://u@127.0.0.1/d",
            "postgres://u@127.9.9.9:5433/d",
            "postgres://u@[::1]/d",
            "postgres://u@[::ffff:127.0.0.1]/d",
            "postgres://u@localhost/d",
            "postgres://u@%2Fvar%2Frun%2Fpostgresql/d",
            "postgres:///d?host=/var/run/postgresql",
            "postgres://u@localhost,127.0.0.1/d",
        ] {
            assert_eq!(mode_of(local, None, None), (TlsMode::Disable, SslMode::Disable), "{local}");
        }
        for remote in [
            "postgres://u@db.example/d",
            "postgres://u@10.0.0.1/d",
            "postgres://u@[fe80::1]/d",
            "postgres://u@0.0.0.0/d",
            "postgres://u@localhost.example/d",
            "postgres://u@127.0.0.1.example/d",
            "postgres://u@localhost,db.example/d",
            // Both the name and the address must be local.
            "postgres://u@db.example/d?hostaddr=127.0.0.1",
            "postgres://u@localhost/d?hostaddr=10.0.0.1",
            "postgres:///d?hostaddr=10.0.0.1",
            // The `sslmode` that the driver parses is ignored.
            "postgres://u@db.example/d?sslmode=disable",
        ] {
            assert_eq!(mode_of(remote, None, None), (TlsMode::VerifyFull, SslMode::Require), "{remote}");
        }
    }

    #[test]
    fn a_mode_that_is_written_holds_and_never_falls_back_to_clear_text_on_the_way_to_another_machine() {
        let (local, remote) = ("postgres://u@localhost/d", "postgres://u@db.example/d");
        assert_eq!(mode_of(remote, Some("disable"), None), (TlsMode::Disable, SslMode::Disable));
        assert_eq!(mode_of(remote, Some("prefer"), None), (TlsMode::Require, SslMode::Require));
        assert_eq!(mode_of(local, Some("prefer"), None), (TlsMode::Prefer, SslMode::Prefer));
        for url in [local, remote] {
            assert_eq!(mode_of(url, Some("require"), None), (TlsMode::Require, SslMode::Require));
            assert_eq!(mode_of(url, Some("require"), Some("ca.pem")).0, TlsMode::VerifyCa);
            assert_eq!(mode_of(url, Some("verify-ca"), None), (TlsMode::VerifyCa, SslMode::Require));
            assert_eq!(mode_of(url, Some("verify-full"), None), (TlsMode::VerifyFull, SslMode::Require));
            assert_eq!(mode_of(url, None, Some("system")).0, TlsMode::VerifyFull);
        }
        let mut config: Config = remote.parse().unwrap();
        for wrong in ["allow", "verify_full", "VERIFY-FULL", ""] {
            assert!(TlsSettings::from_parameters(&mut config, Some(wrong), None).is_err(), "{wrong}");
        }
        let mut mixed: Config = "postgres://u@%2Frun,db.example/d".parse().unwrap();
        assert!(TlsSettings::from_parameters(&mut mixed, None, None).is_err());
    }

    #[test]
    fn a_file_that_holds_no_authority_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let failure = |path: &Path| roots_of(path).unwrap_err().to_string();
        assert!(failure(&path).contains("ca.pem"), "{}", failure(&path));
        std::fs::write(&path, "nothing of the kind").unwrap();
        assert!(failure(&path).contains("no certificate"), "{}", failure(&path));
    }
}
