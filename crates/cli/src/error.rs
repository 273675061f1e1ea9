//! Errors of commands, for people and programs.
//!
//! Other errors are `anyhow` errors with context; [`render`] formats both. The exit code is decided in `exit`.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
};

use abide_wire::service::ProblemDetails;
use serde_json::json;

use crate::terminal_text;

/// An error with a code and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CliError {
    /// For programs, in upper-case letters with `_`.
    pub(crate) code: String,
    pub(crate) detail: String,
    pub(crate) kind: CliErrorKind,
    /// The problem returned by the daemon, if it reported the error.
    pub(crate) problem: Option<Box<ProblemDetails>>,
}

/// Category of an error; selects the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CliErrorKind {
    /// Invalid arguments.
    Usage,
    /// Valid arguments, but the command failed.
    Failure,
    Unreachable,
}

impl CliError {
    pub(crate) fn failure(code: &str, detail: impl Into<String>) -> Self {
        Self { code: code.to_owned(), detail: detail.into(), kind: CliErrorKind::Failure, problem: None }
    }

    pub(crate) fn usage(detail: impl Into<String>) -> Self {
        Self { code: "USAGE".to_owned(), detail: detail.into(), kind: CliErrorKind::Usage, problem: None }
    }

    /// The definition of an agent is invalid.
    pub(crate) fn bad_definition(problems: impl fmt::Display) -> Self {
        Self { code: "BAD_DEFINITION".to_owned(), ..Self::usage(problems.to_string()) }
    }

    pub(crate) fn unreachable(detail: impl Into<String>) -> Self {
        let code = "DAEMON_UNREACHABLE".to_owned();
        Self { code, detail: detail.into(), kind: CliErrorKind::Unreachable, problem: None }
    }

    /// Converts a problem of the daemon. Routes in its text are replaced by commands.
    pub(crate) fn from_problem(problem: ProblemDetails) -> Self {
        let detail = COMMANDS_FOR_ROUTES.iter().fold(problem.detail.clone(), |text, (route, command)| {
            text.replace(route, &format!("`{command}`"))
        });
        let kind = if problem.status == 400 { CliErrorKind::Usage } else { CliErrorKind::Failure };
        Self { code: problem.code.clone(), detail, kind, problem: Some(Box::new(problem)) }
    }
}

impl CliError {
    /// Returns whether a retry may succeed soon.
    pub(crate) fn is_transient(&self) -> bool {
        let busy = ["NOT_READY", "RATE_LIMITED", "TOO_MANY_CONNECTIONS", "STORE_UNAVAILABLE", "STOPPING"];
        self.kind == CliErrorKind::Unreachable || busy.contains(&self.code.as_str())
    }
}

/// Commands that replace routes in error messages, longer routes first.
const COMMANDS_FOR_ROUTES: &[(&str, &str)] = &[
    ("GET /v1/interactions?state=open", "abide inbox"),
    ("GET /v1/runs", "abide ls"),
    ("GET /v1/engines", "abide doctor"),
];

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl Error for CliError {}

/// Formats the error as one line, or as a JSON object.
pub(crate) fn render(error: &anyhow::Error, json: bool) -> String {
    let detail = format!("{error:#}");
    if !json {
        return format!("abide: {}", terminal_text::escape_control_chars(&detail));
    }
    match error.downcast_ref::<CliError>() {
        Some(CliError { problem: Some(problem), .. }) => json!(problem).to_string(),
        Some(cli_error) => json!({ "code": cli_error.code, "detail": cli_error.detail }).to_string(),
        None => json!({ "code": "FAILED", "detail": detail }).to_string(),
    }
}

/// Returns whether the error is only a closed output pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints a line to standard error.
pub(crate) fn eprint_line(line: impl fmt::Display) {
    // A closed stderr is no reason to stop.
    writeln!(io::stderr(), "{line}").ok();
}
