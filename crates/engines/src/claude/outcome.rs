//! The outcome of a turn, from its `result` line or from the exit of the process.
//!
//! `is_error` decides. `subtype` is ignored, because it is `success` even for errors of the model's service.

use abide_domain::failure::{FailureCode, RunFailure};
use abide_ports::engine::ProcessExit;

use super::native;
use crate::failing::{complaint, engine_failed, went_silently};

/// The outcome of a turn that the program reported.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum ClaudeOutcome {
    Answered(String),
    /// The turn was stopped by a request or a signal.
    Stopped,
    Failed(RunFailure),
}

/// Converts a `result` line.
pub(super) fn of(line: &native::ClaudeResultLine<'_>) -> ClaudeOutcome {
    if !line.is_error {
        return ClaudeOutcome::Answered(line.result.or_empty().to_owned());
    }
    let reason = line.terminal_reason.or_empty();
    if reason.starts_with("aborted") {
        return ClaudeOutcome::Stopped;
    }
    let errors: Vec<&str> = line.errors.iter().filter_map(native::LenientText::get).collect();
    let message = match (line.result.get(), errors.as_slice()) {
        (Some(result), _) if !result.is_empty() => result.to_owned(),
        (_, []) if reason.is_empty() => "the turn failed without a reason".to_owned(),
        (_, []) => format!("the turn failed: {}", reason.replace('_', " ")),
        (_, errors) => errors.join("; "),
    };
    if about_the_session(&message) {
        return ClaudeOutcome::Failed(unusable_session(&message));
    }
    let mut failure = engine_failed(&message);
    if line.api_error_status == Some(401) {
        failure.code = FailureCode::EngineAuthRequired;
    }
    ClaudeOutcome::Failed(advised(failure))
}

/// The failure of a process that exited without a result.
pub(super) fn of_departure(departure: &ProcessExit<'_>) -> RunFailure {
    let complaint = complaint(departure.stderr);
    if about_the_session(&complaint) {
        unusable_session(&complaint)
    } else {
        advised(went_silently(departure))
    }
}

/// Whether a message says that the session to resume is missing, or that the session to create exists.
fn about_the_session(message: &str) -> bool {
    message.contains("No conversation found with session ID")
        || message.contains("--resume requires a valid session")
        || (message.contains("Session ID") && message.contains("is already in use"))
}

fn unusable_session(message: &str) -> RunFailure {
    let message = format!("the session cannot be used: {message}");
    RunFailure::new(FailureCode::SessionResumeFailed, message)
}

fn advised(mut failure: RunFailure) -> RunFailure {
    if failure.code == FailureCode::EngineAuthRequired {
        failure
            .message
            .push_str("; log in with `claude auth login`, or set ANTHROPIC_API_KEY for this engine");
    }
    failure
}
