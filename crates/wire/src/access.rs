//! Credentials: tokens with permissions, and browser sign-ins.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A right of a credential. `admin` includes all others; the others include nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// Look at runs, questions, events, files and figures.
    Read,
    /// Answer questions that are no approvals.
    Answer,
    /// Answer approvals: requests for permission, and acknowledgements of a risk.
    Approve,
    /// Start runs, send messages to them, interrupt and cancel them.
    Run,
    /// Everything: terminals, credentials, stopping the daemon.
    Admin,
}

impl Permission {
    pub const ALL: [Self; 5] = [Self::Read, Self::Answer, Self::Approve, Self::Run, Self::Admin];

    /// The name on the wire and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Answer => "answer",
            Self::Approve => "approve",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Token)]
pub struct AccessToken {
    /// Unique; `owner` is the token in the file `token` of Abide's home.
    pub name: String,
    pub permissions: Vec<Permission>,
    /// When its present secret was made; none if that is not known.
    pub created_at: Option<String>,
    /// From when on it is refused; none if it does not expire.
    pub expires_at: Option<String>,
    /// When it was last used, to the minute; none if never.
    pub last_used_at: Option<String>,
}

/// A token to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewToken)]
pub struct CreateTokenRequest {
    /// Unique; letters, digits, `.`, `_` and `-`, at most 64.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._-]{1,64}$")]
    pub name: String,
    /// At least one.
    #[schema(min_items = 1, max_items = 5)]
    pub permissions: Vec<Permission>,
    /// After how many seconds it expires; never unless given. At most ten years.
    #[schema(minimum = 1, maximum = 315360000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_sec: Option<u32>,
}

/// A token with its secret, which is shown only here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedToken {
    /// The token.
    pub token: AccessToken,
    /// Sent as `authorization: Bearer SECRET`.
    pub secret: String,
}

/// A browser that exchanged a token for a cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignIn {
    /// Its id, `sin_…`.
    pub sign_in_id: String,
    /// The name of the token that was exchanged. The sign-in permits what that token permits, and ends with it.
    pub token: String,
    /// The `User-Agent` of the browser.
    pub browser: Option<String>,
    /// When the token was exchanged.
    pub created_at: String,
    /// When it ends unless it is used before.
    pub expires_at: String,
    /// When it was last used, to the minute.
    pub last_used_at: Option<String>,
}
