//! The outcome of a turn, from its `result` line or from the exit of the process.
//!
//! `is_error` decides. `subtype` is ignored, because it is `success` even for errors of the model's service.

use abide_domain::{
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
};
use abide_ports::engine::{ExitCause, ProcessExit};

use super::messages;
use crate::failure::{engine_failed, exit_without_result, exited_normally, stderr_tail};

/// The outcome of a turn that the program reported.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum ClaudeOutcome {
    Answered(String),
    /// The turn was stopped by a request or a signal.
    Stopped,
    Failed(RunFailure),
}

/// Converts a `result` line.
pub(super) fn from_result(line: &messages::ClaudeResultLine<'_>) -> ClaudeOutcome {
    if !line.is_error {
        return ClaudeOutcome::Answered(line.result.or_empty().to_owned());
    }
    let reason = line.terminal_reason.or_empty();
    if reason.starts_with("aborted") {
        return ClaudeOutcome::Stopped;
    }
    let errors: Vec<&str> = line.errors.iter().filter_map(messages::LenientText::get).collect();
    let message = match (line.result.get(), errors.as_slice()) {
        (Some(result), _) if !result.is_empty() => result.to_owned(),
        (_, []) if reason.is_empty() => "the turn failed without a reason".to_owned(),
        (_, []) => format!("the turn failed: {}", reason.replace('_', " ")),
        (_, errors) => errors.join("; "),
    };
    if is_session_error(&message) {
        return ClaudeOutcome::Failed(session_failure(&message));
    }
    let mut failure = engine_failed(&message);
    if line.api_error_status == Some(401) {
        failure.code = FailureCode::EngineAuthRequired;
    }
    ClaudeOutcome::Failed(with_login_advice(failure))
}

/// The outcome of a turn in the print form.
pub(super) fn of_print_form(
    outcome: Option<ClaudeOutcome>,
    exit: &ProcessExit<'_>,
) -> Result<String, TurnOutcome> {
    match outcome {
        Some(ClaudeOutcome::Answered(text)) if exited_normally(exit) => Ok(text),
        Some(ClaudeOutcome::Stopped) => Err(TurnOutcome::Interrupted),
        _ if exit.cause == ExitCause::Interrupted => Err(TurnOutcome::Interrupted),
        Some(ClaudeOutcome::Answered(_)) => {
            let exit_text = match exit.status {
                ExitStatus::Code(code) => format!("exited with code {code}"),
                ExitStatus::Unknown => "is gone".to_owned(),
            };
            let message =
                format!("the engine printed an answer but {exit_text}, so the answer may be incomplete");
            Err(TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, message) })
        }
        Some(ClaudeOutcome::Failed(failure)) => Err(TurnOutcome::Failed { failure }),
        None => Err(TurnOutcome::Failed { failure: failure_from_exit(exit) }),
    }
}

/// The failure of a process that exited without a result.
fn failure_from_exit(exit: &ProcessExit<'_>) -> RunFailure {
    let stderr_tail = stderr_tail(exit.stderr);
    if is_session_error(&stderr_tail) {
        session_failure(&stderr_tail)
    } else {
        with_login_advice(exit_without_result(exit))
    }
}

/// Whether a message says that the session to resume is missing, or that the session to create exists.
fn is_session_error(message: &str) -> bool {
    message.contains("No conversation found with session ID")
        || message.contains("--resume requires a valid session")
        || (message.contains("Session ID") && message.contains("is already in use"))
}

fn session_failure(message: &str) -> RunFailure {
    let message = format!("the session cannot be used: {message}");
    RunFailure::new(FailureCode::SessionResumeFailed, message)
}

fn with_login_advice(mut failure: RunFailure) -> RunFailure {
    if failure.code == FailureCode::EngineAuthRequired {
        failure
            .message
            .push_str("; log in with `claude auth login`, or set ANTHROPIC_API_KEY for this engine");
    }
    failure
}
