//! Classifies error messages that several engines have in common.
//!
//! Messages of a single engine are in its own module.

use abide_domain::{
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
};
use abide_ports::engine::{ExitCause, ProbeResult, ProcessExit};

/// Lower-case words in messages about a missing login.
const AUTH_ERROR_WORDS: [&str; 11] = [
    "401",
    "unauthorized",
    "unauthenticated",
    "authentication",
    "invalid api key",
    "invalid x-api-key",
    "api key not",
    "incorrect api key",
    "not logged in",
    "please log in",
    "please set an auth method",
];

/// A failure with this message; a missing login is recognised by its words.
pub(crate) fn engine_failed(message: &str) -> RunFailure {
    let lower = message.to_lowercase();
    let code = if AUTH_ERROR_WORDS.iter().any(|words| lower.contains(words)) {
        FailureCode::EngineAuthRequired
    } else {
        FailureCode::EngineFailed
    };
    RunFailure::new(code, message)
}

/// Exit codes of a shell or `env` if a program is missing or not executable.
const NOT_FOUND_EXIT_CODES: [i32; 2] = [126, 127];

/// The failure for a program that is missing, judged by its version probe. A probe that is slow or fails otherwise does
/// not reject a run (A3).
pub(crate) fn missing_program_failure(
    name: &str,
    version: &ProbeResult,
    install_command: &str,
) -> Option<RunFailure> {
    let code = FailureCode::EngineNotFound;
    match version {
        ProbeResult::Ran { code: Some(exit), stderr, .. } if NOT_FOUND_EXIT_CODES.contains(exit) => {
            let stderr_tail = stderr_tail(stderr.as_bytes());
            Some(RunFailure::new(
                code,
                format!(
                    "{name} or one of its dependencies is not installed (exit code {exit}): {stderr_tail}; get it with \
                     `{install_command}`, or set engines.{name}.command"
                ),
            ))
        }
        ProbeResult::NotFound { reason } => Some(RunFailure::new(
            code,
            format!(
                "{name} is not installed ({reason}); get it with `{install_command}`, or set engines.{name}.command"
            ),
        )),
        ProbeResult::Ran { .. } | ProbeResult::TimedOut | ProbeResult::Unavailable { .. } => None,
    }
}

/// The failure of a process that exited without reporting the outcome of its turn.
pub(crate) fn exit_without_result(exit: &ProcessExit<'_>) -> RunFailure {
    let exit_text = match exit.status {
        ExitStatus::Code(code) if code > 128 => format!("was killed by signal {}", code - 128),
        ExitStatus::Code(code) => format!("exited with code {code}"),
        ExitStatus::Unknown => "is gone".to_owned(),
    };
    let stderr_tail = stderr_tail(exit.stderr);
    if stderr_tail.is_empty() {
        RunFailure::new(FailureCode::EngineFailed, format!("the engine {exit_text} without a result"))
    } else {
        let mut failure = engine_failed(&stderr_tail);
        failure.message = format!("the engine {exit_text} without a result: {stderr_tail}");
        failure
    }
}

/// The failure of a turn whose session could not be resumed.
pub(crate) fn resume_failed(session: &str, reason: &str) -> RunFailure {
    let message = format!("{session} could not be resumed: {reason}");
    RunFailure::new(FailureCode::SessionResumeFailed, message)
}

/// Whether a process exited with code 0, or was terminated because its output was complete.
pub(crate) fn exited_normally(exit: &ProcessExit<'_>) -> bool {
    exit.status == ExitStatus::Code(0) || exit.cause == ExitCause::TerminatedAfterOutput
}

/// Whether a process exited by itself, as it does if it does not know the session. The exit of a killed process says
/// nothing about the session.
pub(crate) fn exited_voluntarily(exit: &ProcessExit<'_>) -> bool {
    matches!(exit.status, ExitStatus::Code(0..=128))
}

/// The last lines of standard error, truncated for display.
pub(crate) fn stderr_tail(stderr: &[u8]) -> String {
    const MAX_TAIL_CHARS: usize = 2000;
    let text = strip_colour_codes(&String::from_utf8_lossy(stderr));
    // The rest is for the developers of the program.
    let text = text.split("\nStack backtrace:").next().unwrap_or_default();
    // Warnings that the program continues are not the cause of its exit, unless there is no other message.
    let relevant_lines: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("WARNING: proceeding")).collect();
    let without = relevant_lines.join("\n");
    let text = if without.trim().is_empty() { text.trim() } else { without.trim() };
    let from = text.char_indices().rev().nth(MAX_TAIL_CHARS).map_or(0, |(at, _)| at);
    text.get(from..).unwrap_or_default().to_owned()
}

/// The text without the colour codes that some programs print even without a terminal.
fn strip_colour_codes(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|character: char| character.is_ascii_digit() || character == ';');
        plain.push_str(rest.strip_prefix('m').unwrap_or(rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_shown_without_its_colours() {
        let coloured = b"\x1b[91m\x1b[1mError: \x1b[0mSession not found\n";
        assert_eq!(stderr_tail(coloured), "Error: Session not found");
        assert_eq!(stderr_tail(b"a[1] is no colour"), "a[1] is no colour");
    }
}
