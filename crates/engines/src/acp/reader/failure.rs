//! Classifies errors of the agent as failures of the run.

use std::borrow::Cow;

use abide_domain::failure::{FailureCode, RunFailure};

use super::AcpReader;
use crate::{
    acp::native::{AcpError, AcpErrorData, part},
    failing::engine_failed,
};

/// The code for a missing login.
const AUTH_REQUIRED: i64 = -32000;
/// The code for an unknown session.
const NOT_FOUND: i64 = -32002;
/// Words for a session, and for its absence, in lower case.
const SESSION: [&str; 4] = ["session", "thread", "conversation", "rollout"];
const MISSING: [&str; 7] = [
    "not found",
    "no such",
    "unknown",
    "does not exist",
    "doesn't exist",
    "no longer exists",
    "invalid session",
];

impl AcpReader {
    pub(super) fn not_opened(&self, trouble: &AcpError<'_>) -> RunFailure {
        let failure = self.failure(trouble);
        if self.resumes.is_none() || failure.code == FailureCode::EngineAuthRequired {
            return failure;
        }
        let message = format!("the session could not be resumed: {}", failure.message);
        RunFailure::new(FailureCode::SessionResumeFailed, message)
    }

    /// Classifies the failure of the first request about a session. Some agents report a session as resumed and look it
    /// up only later.
    pub(super) fn first_failure(&self, trouble: &AcpError<'_>) -> RunFailure {
        let failure = self.failure(trouble);
        let lower = failure.message.to_lowercase();
        let about_session = SESSION.iter().any(|word| lower.contains(word));
        let is_missing = trouble.code == Some(NOT_FOUND)
            || about_session && MISSING.iter().any(|word| lower.contains(word));
        if is_missing { self.not_opened(trouble) } else { failure }
    }

    pub(super) fn failure(&self, trouble: &AcpError<'_>) -> RunFailure {
        let mut message = trouble.message.as_deref().unwrap_or("the agent reports an error").to_owned();
        let data = part::<AcpErrorData<'_>>(trouble.data).and_then(|data| data.details.or(data.message));
        if let Some(more) = data.or_else(|| part::<Cow<'_, str>>(trouble.data))
            && !message.contains(&*more)
        {
            message = format!("{message}: {more}");
        }
        let mut failure = engine_failed(&message);
        if trouble.code == Some(AUTH_REQUIRED) {
            failure.code = FailureCode::EngineAuthRequired;
        }
        if failure.code == FailureCode::EngineAuthRequired && !self.logins.is_empty() {
            failure.message =
                format!("{message} (log in with the agent's own program; it offers: {})", self.logins);
        }
        failure
    }
}
