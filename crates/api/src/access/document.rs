//! The stored form of the credentials: JSON with digests of secrets and times in microseconds.

use abide_domain::time::Timestamp;
use abide_wire::access as wire;
use serde::{Deserialize, Serialize};

use super::{
    CredentialEnd, LAST_USE_RESOLUTION, OWNER, Principal, SIGN_IN_IDLE_TIMEOUT, SIGN_IN_MAX_AGE,
    TokenPermissions, secret::SecretDigest,
};

/// The contents of the credentials file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AccessDocument {
    pub(super) version: u32,
    /// Random; names this home's cookie.
    pub(super) home_id: String,
    pub(super) owner: TokenRecord,
    pub(super) tokens: Vec<TokenRecord>,
    pub(super) sign_ins: Vec<SignInRecord>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TokenRecord {
    pub(super) name: String,
    pub(super) digest: SecretDigest,
    pub(super) permissions: TokenPermissions,
    pub(super) created_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    /// Lifetime of each new secret of this token, in seconds. `None`: it does not expire.
    pub(super) expires_in_sec: Option<u32>,
    pub(super) last_used_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SignInRecord {
    pub(super) sign_in_id: String,
    pub(super) digest: SecretDigest,
    pub(super) page_key_digest: SecretDigest,
    pub(super) token: String,
    pub(super) browser: Option<String>,
    pub(super) created_at: Timestamp,
    pub(super) last_used_at: Option<Timestamp>,
}

impl AccessDocument {
    pub(super) fn new(owner: SecretDigest, home_id: String) -> Self {
        let owner = TokenRecord::owner(owner, None);
        Self { version: 1, home_id, owner, tokens: Vec::new(), sign_ins: Vec::new() }
    }

    pub(super) fn all_tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        std::iter::once(&self.owner).chain(&self.tokens)
    }

    pub(super) fn all_tokens_mut(&mut self) -> impl Iterator<Item = &mut TokenRecord> {
        std::iter::once(&mut self.owner).chain(&mut self.tokens)
    }

    /// Returns the expiry of an authenticated credential, `None` if it does not expire, or why it has ended.
    pub(super) fn expiry(
        &self,
        principal: &Principal,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, CredentialEnd> {
        let token = self.all_tokens().find(|token| *token.name == *principal.token);
        let token = token.ok_or(CredentialEnd::Revoked)?;
        let (digest, sign_in_expiry) = match &principal.sign_in {
            Some(id) => {
                let record = self.sign_ins.iter().find(|record| *record.sign_in_id == **id);
                let record = record.ok_or(CredentialEnd::Revoked)?;
                (record.digest, Some(record.expires_at()))
            }
            None => (token.digest, None),
        };
        if digest != principal.digest {
            return Err(CredentialEnd::Revoked);
        }
        let expires_at = [token.expires_at, sign_in_expiry].into_iter().flatten().min();
        if expires_at.is_some_and(|at| at <= now) {
            return Err(CredentialEnd::Expired);
        }
        Ok(expires_at)
    }

    /// Records a use of a credential. Returns whether the document has changed and must be saved.
    pub(super) fn record_use(&mut self, principal: &Principal, now: Timestamp) -> bool {
        match &principal.sign_in {
            Some(id) => {
                let record = self.sign_ins.iter_mut().find(|record| *record.sign_in_id == **id);
                record.is_some_and(|record| record.record_use(now))
            }
            None => {
                let record = self.all_tokens_mut().find(|record| *record.name == *principal.token);
                record.is_some_and(|record| record.record_use(now))
            }
        }
    }
}

impl TokenRecord {
    pub(super) fn owner(digest: SecretDigest, created_at: Option<Timestamp>) -> Self {
        Self {
            name: OWNER.to_owned(),
            digest,
            permissions: TokenPermissions::ALL,
            created_at,
            expires_at: None,
            expires_in_sec: None,
            last_used_at: None,
        }
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Records a use. Returns whether the document has changed and must be saved.
    pub(super) fn record_use(&mut self, now: Timestamp) -> bool {
        update_last_use(&mut self.last_used_at, now)
    }

    pub(super) fn to_wire(&self) -> wire::AccessToken {
        wire::AccessToken {
            name: self.name.clone(),
            permissions: self.permissions.to_vec(),
            created_at: self.created_at.map(time),
            expires_at: self.expires_at.map(time),
            last_used_at: self.last_used_at.map(time),
        }
    }
}

impl SignInRecord {
    fn expires_at(&self) -> Timestamp {
        let idle = self.last_used_at.unwrap_or(self.created_at).add_seconds(SIGN_IN_IDLE_TIMEOUT);
        idle.min(self.created_at.add_seconds(SIGN_IN_MAX_AGE))
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at() <= now
    }

    /// Records a use. Returns whether the document has changed and must be saved.
    pub(super) fn record_use(&mut self, now: Timestamp) -> bool {
        update_last_use(&mut self.last_used_at, now)
    }

    pub(super) fn to_wire(&self) -> wire::SignIn {
        wire::SignIn {
            sign_in_id: self.sign_in_id.clone(),
            token: self.token.clone(),
            browser: self.browser.clone(),
            created_at: time(self.created_at),
            expires_at: time(self.expires_at()),
            last_used_at: self.last_used_at.map(time),
        }
    }
}

fn update_last_use(last: &mut Option<Timestamp>, now: Timestamp) -> bool {
    let is_new = last.is_none_or(|last| now.seconds_since(last) >= LAST_USE_RESOLUTION);
    if is_new {
        *last = Some(now);
    }
    is_new
}

/// RFC 3339, UTC.
fn time(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.0).unwrap_or(jiff::Timestamp::MAX).to_string()
}
