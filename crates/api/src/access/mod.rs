//! Credentials of one home: the owner's token, further tokens with permissions, and browser sign-ins.
//!
//! [`AccessRegistry`] holds digests of secrets, never a secret. The caller that opens it supplies the storage
//! ([`AccessStorage`]). Credentials are stored apart from the journal, so that a restored backup does not reinstate a
//! revoked token. Only the process that holds the home's lock writes them.

mod document;
mod permissions;
mod principal;
mod secret;

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use abide_domain::time::{Seconds, Timestamp};
use abide_os::random;
use abide_wire::access as wire;
use tokio::sync::watch;

use document::{AccessDocument, SignInRecord, TokenRecord};
pub use permissions::TokenPermissions;
pub use principal::CredentialEnd;
pub(crate) use principal::Principal;
use secret::SecretDigest;

/// The name of the token in the file `token`.
pub const OWNER: &str = "owner";

/// Stores the credentials of a home.
pub trait AccessStorage: Send + Sync + std::fmt::Debug {
    /// Replaces the stored document, which holds everything except the owner's token.
    fn save(&self, document: &[u8]) -> io::Result<()>;
    /// Stores a new owner's token. It is the only secret that is stored in plain text.
    fn save_owner_token(&self, token: &str) -> io::Result<()>;
}

/// Storage for tests that discards everything.
#[derive(Debug)]
pub struct NoStorage;

impl AccessStorage for NoStorage {
    fn save(&self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn save_owner_token(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

/// All credentials of one home.
#[derive(Debug)]
pub struct AccessRegistry {
    storage: Box<dyn AccessStorage>,
    state: Mutex<RegistryState>,
    /// Number of changes. Open connections then check their credentials again.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct RegistryState {
    document: AccessDocument,
    /// Time of the first use that is not yet saved.
    unsaved_since: Option<Timestamp>,
}

/// A newly created browser sign-in.
#[derive(Debug)]
pub(crate) struct NewSignIn {
    /// Secret in the cookie. Browsers send it to every port of this host.
    pub(crate) cookie: String,
    /// Secret that the page keeps for its own origin and sends as a header. The cookie is valid only together with it.
    pub(crate) page_key: String,
}

/// Result of checking a cookie.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CookieVerdict {
    /// The cookie is valid and the page key matches.
    Valid(Principal),
    /// The cookie is valid, but the page key is missing or wrong.
    WithoutPageKey,
    Unknown,
}

/// A change of the credentials that failed.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error(
        "there is a token {0} already; choose another name, or make a new secret for it: abide token rotate {0}"
    )]
    NameTaken(String),
    #[error("there is no token or sign-in {0}; `abide token ls` and `abide token ls --sign-ins` list them")]
    NotFound(String),
    /// The owner's token cannot be revoked, only rotated.
    #[error("the owner's token cannot be revoked; make a new secret for it: abide token rotate owner")]
    OwnerNotRevocable,
    #[error("{0}")]
    Invalid(String),
    /// The credential of the request has ended meanwhile.
    #[error("{}", .0.reason())]
    CredentialEnded(CredentialEnd),
    /// The maximum number of tokens is reached.
    #[error("there are {MAX_TOKENS} tokens already; revoke one first")]
    TooManyTokens,
    #[error("cannot save the credentials: {0}")]
    Storage(#[from] io::Error),
    /// The stored document cannot be parsed.
    #[error("cannot read the credentials: {0}")]
    Damaged(#[from] serde_json::Error),
}

/// Maximum number of tokens in addition to the owner's.
const MAX_TOKENS: usize = 1_000;
/// Maximum number of sign-ins. The least recently used one is removed to make room.
const MAX_SIGN_INS: usize = 200;
/// Idle timeout of a sign-in.
const SIGN_IN_IDLE_TIMEOUT: Seconds = Seconds(14 * 24 * 3600);
/// Maximum age of a sign-in, regardless of its use.
pub(crate) const SIGN_IN_MAX_AGE: Seconds = Seconds(90 * 24 * 3600);
/// Maximum lifetime of a token with an expiry: 10 years.
const MAX_TOKEN_LIFETIME: Seconds = Seconds(315_360_000);
/// Resolution of the recorded last use.
const LAST_USE_RESOLUTION: Seconds = Seconds(60);

impl AccessRegistry {
    /// Opens the credentials stored as `document`; `None` creates a new registry. Sign-ins of an owner's token that has
    /// been replaced since are discarded.
    pub fn open(
        owner_token: &str,
        document: Option<&[u8]>,
        storage: Box<dyn AccessStorage>,
    ) -> Result<Self, AccessError> {
        let owner = SecretDigest::of(owner_token);
        let mut document = match document {
            Some(bytes) => serde_json::from_slice(bytes)?,
            None => AccessDocument::new(owner, random::secret(4)),
        };
        if document.owner.digest != owner {
            document.sign_ins.retain(|sign_in| sign_in.token != OWNER);
            document.owner = TokenRecord::owner(owner, None);
        }
        let state = Mutex::new(RegistryState { document, unsaved_since: None });
        let registry = Self { storage, state, changes: watch::Sender::new(0) };
        registry.save(&registry.lock())?;
        Ok(registry)
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, state: &RegistryState) -> Result<(), AccessError> {
        Ok(self.storage.save(&serde_json::to_vec_pretty(&state.document)?)?)
    }

    /// Applies a change and saves it. If saving fails, the change is rolled back.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut AccessDocument) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        let mut state = self.lock();
        let before = state.document.clone();
        let outcome = change(&mut state.document).and_then(|outcome| self.save(&state).map(|()| outcome));
        match &outcome {
            Ok(_) => {
                state.unsaved_since = None;
                self.changes.send_modify(|changes| *changes += 1);
            }
            Err(_) => state.document = before,
        }
        outcome
    }

    /// Receives a value after each change of the credentials, before the change is reported to its client.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the expiry of an authenticated credential, or why it has ended.
    pub(crate) fn expiry(
        &self,
        principal: &Principal,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, CredentialEnd> {
        self.lock().document.expiry(principal, now)
    }

    /// Checks an authenticated credential and records a use, for a message on an open connection.
    pub(crate) fn record_use(&self, principal: &Principal, now: Timestamp) -> Result<(), CredentialEnd> {
        let mut state = self.lock();
        state.document.expiry(principal, now)?;
        if state.document.record_use(principal, now) {
            state.unsaved_since.get_or_insert(now);
        }
        Ok(())
    }

    /// Name of the cookie. It contains the home's id, because browsers send cookies to every port of a host.
    pub(crate) fn cookie_name(&self) -> String {
        format!("abide_session_{}", self.lock().document.home_id)
    }

    /// Returns the client that presented this token.
    pub(crate) fn authenticate_token(&self, secret: &str, now: Timestamp) -> Option<Principal> {
        let digest = SecretDigest::of(secret);
        let mut state = self.lock();
        let record = state.document.all_tokens_mut().find(|record| record.digest == digest)?;
        if record.is_expired(now) {
            return None;
        }
        let principal = Principal {
            token: record.name.as_str().into(),
            sign_in: None,
            permissions: record.permissions,
            digest,
        };
        if record.record_use(now) {
            state.unsaved_since.get_or_insert(now);
        }
        Some(principal)
    }

    /// Checks a cookie together with the page key sent beside it.
    pub(crate) fn check_cookie(&self, secret: &str, page_key: Option<&str>, now: Timestamp) -> CookieVerdict {
        let digest = SecretDigest::of(secret);
        let mut state = self.lock();
        let RegistryState { document, .. } = &mut *state;
        let Some(at) = document.sign_ins.iter().position(|record| record.digest == digest) else {
            return CookieVerdict::Unknown;
        };
        let token = document.all_tokens().find(|token| document.sign_ins[at].token == token.name);
        let permissions = token.filter(|token| !token.is_expired(now)).map(|token| token.permissions);
        let record = &mut document.sign_ins[at];
        let Some(permissions) = permissions.filter(|_| !record.is_expired(now)) else {
            return CookieVerdict::Unknown;
        };
        if page_key.map(SecretDigest::of) != Some(record.page_key_digest) {
            return CookieVerdict::WithoutPageKey;
        }
        let sign_in = Some(record.sign_in_id.as_str().into());
        let principal = Principal { token: record.token.as_str().into(), sign_in, permissions, digest };
        if record.record_use(now) {
            state.unsaved_since.get_or_insert(now);
        }
        CookieVerdict::Valid(principal)
    }

    /// Returns whether last-use times should be saved now.
    pub(crate) fn has_uses_to_save(&self, now: Timestamp) -> bool {
        self.lock().unsaved_since.is_some_and(|since| now.seconds_since(since) >= LAST_USE_RESOLUTION)
    }

    /// Saves last-use times if the oldest unsaved one is at least `LAST_USE_RESOLUTION` old. A failure is retried later.
    pub fn save_uses(&self, now: Timestamp) {
        let mut state = self.lock();
        if state.unsaved_since.is_some_and(|since| now.seconds_since(since) >= LAST_USE_RESOLUTION)
            && self.save(&state).is_ok()
        {
            state.unsaved_since = None;
        }
    }

    /// Saves last-use times before the process exits.
    pub fn close(&self) {
        let mut state = self.lock();
        // If this fails, only last-use times are lost.
        if state.unsaved_since.take().is_some() {
            self.save(&state).ok();
        }
    }

    /// Returns all tokens, sorted by name.
    pub fn tokens(&self) -> Vec<wire::AccessToken> {
        let mut tokens: Vec<wire::AccessToken> =
            self.lock().document.all_tokens().map(TokenRecord::to_wire).collect();
        tokens.sort_by(|one, other| one.name.cmp(&other.name));
        tokens
    }

    pub fn create_token(
        &self,
        new: &wire::CreateTokenRequest,
        now: Timestamp,
    ) -> Result<wire::IssuedToken, AccessError> {
        check_name(&new.name)?;
        let permissions = TokenPermissions::from(new.permissions.clone());
        if permissions.is_empty() {
            return Err(AccessError::Invalid(
                "a token needs a permission: read, answer, approve, run or admin".to_owned(),
            ));
        }
        if new.expires_in_sec.is_some_and(|seconds| seconds == 0 || seconds > MAX_TOKEN_LIFETIME.0) {
            return Err(AccessError::Invalid("a token expires after 1 second to 10 years".to_owned()));
        }
        let secret = new_token_secret();
        let record = TokenRecord {
            name: new.name.clone(),
            digest: SecretDigest::of(&secret),
            permissions,
            created_at: Some(now),
            expires_at: new.expires_in_sec.map(|seconds| now.add_seconds(Seconds(seconds))),
            expires_in_sec: new.expires_in_sec,
            last_used_at: None,
        };
        let token = record.to_wire();
        self.change(|document| {
            if document.all_tokens().any(|existing| existing.name == record.name) {
                return Err(AccessError::NameTaken(record.name));
            }
            if document.tokens.len() >= MAX_TOKENS {
                return Err(AccessError::TooManyTokens);
            }
            document.tokens.push(record);
            Ok(())
        })?;
        Ok(wire::IssuedToken { token, secret })
    }

    /// Replaces the secret of a token. The old secret and all sign-ins obtained with it become invalid immediately.
    pub fn rotate(&self, name: &str, now: Timestamp) -> Result<wire::IssuedToken, AccessError> {
        let secret = if name == OWNER { random::secret(32) } else { new_token_secret() };
        let before = self.lock().document.clone();
        let token = self.change(|document| {
            let record = document.all_tokens_mut().find(|record| record.name == name);
            let record = record.ok_or_else(|| AccessError::NotFound(name.to_owned()))?;
            record.digest = SecretDigest::of(&secret);
            record.created_at = Some(now);
            record.expires_at = record.expires_in_sec.map(|seconds| now.add_seconds(Seconds(seconds)));
            record.last_used_at = None;
            let token = record.to_wire();
            document.sign_ins.retain(|sign_in| sign_in.token != name);
            Ok(token)
        })?;
        // After a crash between the two writes, the next start trusts the token file.
        if name == OWNER
            && let Err(error) = self.storage.save_owner_token(&secret)
        {
            let mut state = self.lock();
            state.document = before;
            self.changes.send_modify(|changes| *changes += 1);
            self.save(&state)?;
            return Err(error.into());
        }
        Ok(wire::IssuedToken { token, secret })
    }

    /// Revokes a token and its sign-ins, or a single sign-in.
    pub fn revoke(&self, name: &str) -> Result<(), AccessError> {
        if name == OWNER {
            return Err(AccessError::OwnerNotRevocable);
        }
        self.change(|document| {
            let before = document.tokens.len() + document.sign_ins.len();
            document.tokens.retain(|token| token.name != name);
            document.sign_ins.retain(|sign_in| sign_in.sign_in_id != name && sign_in.token != name);
            if before == document.tokens.len() + document.sign_ins.len() {
                return Err(AccessError::NotFound(name.to_owned()));
            }
            Ok(())
        })
    }

    /// Returns all valid sign-ins, oldest first.
    pub fn sign_ins(&self, now: Timestamp) -> Vec<wire::SignIn> {
        let state = self.lock();
        state
            .document
            .sign_ins
            .iter()
            .filter(|record| !record.is_expired(now))
            .map(SignInRecord::to_wire)
            .collect()
    }

    /// Creates a sign-in for a browser that presented a token. The token must still be valid: a sign-in for the new
    /// secret of a rotated token must not be obtained with the old one.
    pub(crate) fn sign_in(
        &self,
        principal: &Principal,
        browser: Option<String>,
        now: Timestamp,
    ) -> Result<NewSignIn, AccessError> {
        let new = NewSignIn { cookie: random::secret(32), page_key: random::secret(32) };
        let record = SignInRecord {
            sign_in_id: format!("sin_{}", random::secret(8)),
            digest: SecretDigest::of(&new.cookie),
            page_key_digest: SecretDigest::of(&new.page_key),
            token: principal.token.to_string(),
            browser,
            created_at: now,
            last_used_at: Some(now),
        };
        self.change(|document| {
            document.expiry(principal, now).map_err(AccessError::CredentialEnded)?;
            document.sign_ins.retain(|record| !record.is_expired(now));
            while document.sign_ins.len() >= MAX_SIGN_INS {
                let idle = (0..document.sign_ins.len()).min_by_key(|at| document.sign_ins[*at].last_used_at);
                document.sign_ins.remove(idle.unwrap_or(0));
            }
            document.sign_ins.push(record);
            Ok(())
        })?;
        Ok(new)
    }
}

fn new_token_secret() -> String {
    format!("abide_{}", random::secret(32))
}

fn check_name(name: &str) -> Result<(), AccessError> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if !fits || name.starts_with("sin_") || name.chars().all(|letter| letter == '.') {
        return Err(AccessError::Invalid(
            "a token's name has 1 to 64 letters, digits, `.`, `_` and `-`, and does not begin with `sin_`"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
