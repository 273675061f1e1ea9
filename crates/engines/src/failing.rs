//! What an engine's complaint means for the run: the words that several engines use for the same trouble.
//!
//! What only one engine says is in its own module.

use abide_domain::{
    failure::{FailureCode, RunFailure},
    process::ExitStatus,
};
use abide_ports::engine::{ProbeResult, ProcessExit};

/// Words by which programs say that they want a login, in lower case.
const AUTH: [&str; 11] = [
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

/// A failure with this message, or the wish for a login if the message is one.
pub(crate) fn engine_failed(message: &str) -> RunFailure {
    let lower = message.to_lowercase();
    let code = if AUTH.iter().any(|words| lower.contains(words)) {
        FailureCode::EngineAuthRequired
    } else {
        FailureCode::EngineFailed
    };
    RunFailure::new(code, message)
}

/// Exit codes by which a shell or `env` says that a program is not there or cannot be executed.
const NOT_THERE: [i32; 2] = [126, 127];

/// Why a program that was asked for its version cannot be used, if it is missing. One that is slow or fails once is not:
/// a failed probe never rejects a run (A3).
pub(crate) fn unusable(name: &str, version: &ProbeResult, how_to_get_it: &str) -> Option<RunFailure> {
    let code = FailureCode::EngineNotFound;
    match version {
        ProbeResult::Ran { code: Some(exit), stderr, .. } if NOT_THERE.contains(exit) => {
            let complaint = complaint(stderr.as_bytes());
            Some(RunFailure::new(
                code,
                format!(
                    "{name} or something that it needs is not installed (exit code {exit}): {complaint}; get it with \
                     `{how_to_get_it}`, or set engines.{name}.command"
                ),
            ))
        }
        ProbeResult::NotFound { reason } => Some(RunFailure::new(
            code,
            format!(
                "{name} is not installed ({reason}); get it with `{how_to_get_it}`, or set engines.{name}.command"
            ),
        )),
        ProbeResult::Ran { .. } | ProbeResult::TimedOut | ProbeResult::Unavailable { .. } => None,
    }
}

/// The failure of a process that went without telling how its turn ended.
pub(crate) fn went_silently(departure: &ProcessExit<'_>) -> RunFailure {
    let how = match departure.exit {
        ExitStatus::Code(code) if code > 128 => format!("was killed by signal {}", code - 128),
        ExitStatus::Code(code) => format!("exited with code {code}"),
        ExitStatus::Unseen => "is gone".to_owned(),
    };
    let complaint = complaint(departure.stderr);
    if complaint.is_empty() {
        RunFailure::new(FailureCode::EngineFailed, format!("the engine {how} without a result"))
    } else {
        let mut failure = engine_failed(&complaint);
        failure.message = format!("the engine {how} without a result: {complaint}");
        failure
    }
}

/// Whether a process left by its own decision, as one does that was given a session which it does not know. One that was
/// killed says nothing about its session.
pub(crate) fn left_by_itself(departure: &ProcessExit<'_>) -> bool {
    matches!(departure.exit, ExitStatus::Code(0..=128))
}

/// The last lines of standard error, short enough to be shown.
pub(crate) fn complaint(stderr: &[u8]) -> String {
    const MOST: usize = 2000;
    let text = plain(&String::from_utf8_lossy(stderr));
    // What follows is for the program's own developers.
    let text = text.split("\nStack backtrace:").next().unwrap_or_default();
    // A warning that something goes on is no complaint about its end, unless there is no other.
    let complaints: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("WARNING: proceeding")).collect();
    let without = complaints.join("\n");
    let text = if without.trim().is_empty() { text.trim() } else { without.trim() };
    let from = text.char_indices().rev().nth(MOST).map_or(0, |(at, _)| at);
    text.get(from..).unwrap_or_default().to_owned()
}

/// The text without the colours that some programs print even where no terminal is.
fn plain(text: &str) -> String {
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
        assert_eq!(complaint(coloured), "Error: Session not found");
        assert_eq!(complaint(b"a[1] is no colour"), "a[1] is no colour");
    }
}
