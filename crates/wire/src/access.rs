//! Credentials: tokens with permissions, and browser sign-ins.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A permission of a credential. `admin` includes all others; the others include only themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// Reads runs, questions, events, files and metrics.
    Read,
    /// Answers questions that are not approvals.
    Answer,
    /// Answers approvals: requests for permission, and acknowledgements of a risk.
    Approve,
    /// Starts runs, sends messages to them, interrupts and cancels them.
    Run,
    /// All of the above, and terminals, credentials and stopping the daemon.
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
pub struct AccessToken {
    /// Unique; `owner` is the token in the file `token` of Abide's home.
    pub name: String,
    pub permissions: Vec<Permission>,
    /// Time at which its present secret was created; null if it is not known.
    pub created_at: Option<String>,
    /// Null if it does not expire.
    pub expires_at: Option<String>,
    /// Last use, to the minute; null if it was never used.
    pub last_used_at: Option<String>,
}

/// The parameters of a new token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTokenRequest {
    /// Unique; letters, digits, `.`, `_` and `-`, at most 64.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._-]{1,64}$")]
    pub name: String,
    /// At least one.
    #[schema(min_items = 1, max_items = 5)]
    pub permissions: Vec<Permission>,
    /// Lifetime in seconds, at most ten years; default: no expiry.
    #[schema(minimum = 1, maximum = 315360000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_sec: Option<u32>,
}

/// A token with its secret, which is shown only here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedToken {
    pub token: AccessToken,
    /// The secret, for the header `authorization: Bearer SECRET`.
    pub secret: String,
}

/// A browser that exchanged a token for a cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignIn {
    /// Begins with `sin_`.
    pub sign_in_id: String,
    /// Name of the exchanged token. The sign-in has its permissions and ends with it.
    pub token: String,
    /// The header `User-Agent` of the browser.
    pub browser: Option<String>,
    /// Time at which the token was exchanged.
    pub created_at: String,
    /// Time at which it ends, unless it is used before.
    pub expires_at: String,
    /// Last use, to the minute.
    pub last_used_at: Option<String>,
}
