//! What a command could not do, as people read it and as programs do.
//!
//! Anything else that goes wrong is an `anyhow` error with its context; [`told`] turns both into what is printed. Which
//! exit code follows is decided in `exit`.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
};

use abide_wire::service::ProblemDetails;
use serde_json::json;

use crate::text;

/// A refusal with a code, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CliError {
    /// What programs go by.
    pub(crate) code: String,
    /// What people read.
    pub(crate) detail: String,
    /// Whose mistake it is.
    pub(crate) kind: CliErrorKind,
    /// What the daemon said, if it was the daemon.
    pub(crate) problem: Option<Box<ProblemDetails>>,
}

/// Whose mistake something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CliErrorKind {
    /// What was typed makes no sense.
    Usage,
    /// It made sense and could not be done.
    Failure,
    /// The daemon cannot be reached.
    Unreachable,
}

impl CliError {
    pub(crate) fn failure(code: &str, detail: impl Into<String>) -> Self {
        Self { code: code.to_owned(), detail: detail.into(), kind: CliErrorKind::Failure, problem: None }
    }

    pub(crate) fn usage(detail: impl Into<String>) -> Self {
        Self { code: "USAGE".to_owned(), detail: detail.into(), kind: CliErrorKind::Usage, problem: None }
    }

    /// An agent's definition cannot work.
    pub(crate) fn definition(problems: impl fmt::Display) -> Self {
        Self { code: "BAD_DEFINITION".to_owned(), ..Self::usage(problems.to_string()) }
    }

    pub(crate) fn unreachable(detail: impl Into<String>) -> Self {
        let code = "DAEMON_UNREACHABLE".to_owned();
        Self { code, detail: detail.into(), kind: CliErrorKind::Unreachable, problem: None }
    }

    /// The daemon's own words, with the commands in place of the routes that it names.
    pub(crate) fn refused(problem: ProblemDetails) -> Self {
        let detail = ROUTES.iter().fold(problem.detail.clone(), |text, (route, command)| {
            text.replace(route, &format!("`{command}`"))
        });
        let kind = if problem.status == 400 { CliErrorKind::Usage } else { CliErrorKind::Failure };
        Self { code: problem.code.clone(), detail, kind, problem: Some(Box::new(problem)) }
    }
}

impl CliError {
    /// Whether the same request may well be met in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        let busy = ["NOT_READY", "RATE_LIMITED", "TOO_MANY_CONNECTIONS", "STORE_UNAVAILABLE", "STOPPING"];
        self.kind == CliErrorKind::Unreachable || busy.contains(&self.code.as_str())
    }
}

/// What people type in place of what programs ask for, the longer ones first.
const ROUTES: &[(&str, &str)] = &[
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

/// The error as one line for people, or as a JSON object.
pub(crate) fn told(error: &anyhow::Error, json: bool) -> String {
    let detail = format!("{error:#}");
    if !json {
        return format!("abide: {}", text::tame(&detail));
    }
    match error.downcast_ref::<CliError>() {
        Some(CliError { problem: Some(problem), .. }) => json!(problem).to_string(),
        Some(trouble) => json!({ "code": trouble.code, "detail": trouble.detail }).to_string(),
        None => json!({ "code": "FAILED", "detail": detail }).to_string(),
    }
}

/// Whether the error is only that nobody reads our output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// A line for people on standard error. If that is closed, nobody wants to know.
pub(crate) fn note(line: impl fmt::Display) {
    let _nobody_listens = writeln!(io::stderr(), "{line}");
}
