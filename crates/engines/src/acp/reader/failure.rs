//! Classifies errors of the agent as failures of the run.

use std::borrow::Cow;

use abide_domain::failure::{FailureCode, RunFailure};

use super::AcpReader;
use crate::{
    acp::messages::{AcpError, AcpErrorData, parse_part},
    failure::engine_failed,
};

/// The code for a missing login.
const AUTH_REQUIRED_CODE: i64 = -32000;
/// The code for an unknown session.
const NOT_FOUND_CODE: i64 = -32002;
/// Words for a session, and for its absence, in lower case.
const SESSION_WORDS: [&str; 4] = ["session", "thread", "conversation", "rollout"];
const MISSING_WORDS: [&str; 7] = [
    "not found",
    "no such",
    "unknown",
    "does not exist",
    "doesn't exist",
    "no longer exists",
    "invalid session",
];

impl AcpReader {
    pub(super) fn open_failure(&self, error: &AcpError<'_>) -> RunFailure {
        let failure = self.failure(error);
        if self.resumes.is_none() || failure.code == FailureCode::EngineAuthRequired {
            return failure;
        }
        let message = format!("the session could not be resumed: {}", failure.message);
        RunFailure::new(FailureCode::SessionResumeFailed, message)
    }

    /// Classifies the failure of the first request about a session. Some agents report a session as resumed and look it
    /// up only later.
    pub(super) fn first_failure(&self, error: &AcpError<'_>) -> RunFailure {
        let failure = self.failure(error);
        let lower = failure.message.to_lowercase();
        let about_session = SESSION_WORDS.iter().any(|word| lower.contains(word));
        let is_missing = error.code == Some(NOT_FOUND_CODE)
            || about_session && MISSING_WORDS.iter().any(|word| lower.contains(word));
        if is_missing { self.open_failure(error) } else { failure }
    }

    pub(super) fn failure(&self, error: &AcpError<'_>) -> RunFailure {
        let mut message = error.message.as_deref().unwrap_or("the agent reports an error").to_owned();
        let data = parse_part::<AcpErrorData<'_>>(error.data).and_then(|data| data.details.or(data.message));
        if let Some(more) = data.or_else(|| parse_part::<Cow<'_, str>>(error.data))
            && !message.contains(&*more)
        {
            message = format!("{message}: {more}");
        }
        let mut failure = engine_failed(&message);
        if error.code == Some(AUTH_REQUIRED_CODE) {
            failure.code = FailureCode::EngineAuthRequired;
        }
        if failure.code == FailureCode::EngineAuthRequired && !self.logins.is_empty() {
            failure.message =
                format!("{message} (log in with the agent's own program; it offers: {})", self.logins);
        }
        failure
    }
}
