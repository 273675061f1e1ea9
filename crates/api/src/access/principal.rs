//! The authenticated client of a request, and the end of its credential.

use std::sync::Arc;

use super::{TokenPermissions, secret::SecretDigest};

/// The authenticated client of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    /// Name of the token. For a sign-in, the token that it was exchanged for.
    pub(crate) token: Arc<str>,
    /// Id of the sign-in if the client is a browser.
    pub(crate) sign_in: Option<Arc<str>>,
    pub(crate) permissions: TokenPermissions,
    /// Digest of the presented secret. A new secret under the same name is another credential.
    pub(super) digest: SecretDigest,
}

/// Why a credential that was valid is valid no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialEnd {
    /// Revoked, signed out, or replaced by a new secret.
    Revoked,
    Expired,
}

impl CredentialEnd {
    /// Returns a text for people, of at most 123 bytes.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Revoked => "the token or sign-in of this connection was revoked or replaced",
            Self::Expired => "the token or sign-in of this connection has expired",
        }
    }
}
