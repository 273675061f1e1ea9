//! How a turn ended, as its `result` line says or as the process leaves it.
//!
//! `subtype` is not read: an error of the model's service is called a success there. What counts is `is_error`.

use abide_domain::failure::{FailureCode, RunFailure};
use abide_ports::engine::ProcessExit;

use super::native;
use crate::failing::{complaint, engine_failed, went_silently};

/// What the program said of a turn.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum ClaudeOutcome {
    Answered(String),
    /// It was stopped, by our order or by a signal.
    Stopped,
    Failed(RunFailure),
}

/// Reads a `result`.
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

/// Why a process that said no result failed.
pub(super) fn of_departure(departure: &ProcessExit<'_>) -> RunFailure {
    let complaint = complaint(departure.stderr);
    if about_the_session(&complaint) {
        unusable_session(&complaint)
    } else {
        advised(went_silently(departure))
    }
}

/// What the program says when the session that it shall go on with is not there, or the one that it shall begin is.
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
