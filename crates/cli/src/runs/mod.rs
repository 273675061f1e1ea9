//! Commands for runs and questions. They are HTTP clients of the daemon and make no decisions.
//!
//! Reading order: `find` (run lookup), `question` (printing questions, parsing answers), `event_text` (events as text),
//! `console`, `status_line` and `input_buffer` (terminal input and output), `follow` (following a run), then the commands:
//! `start` (`run`, `attach`), `logs`, `show`, `list` (`ls`, `inbox`), `commands` (`reply`, `send`, `interrupt`, `cancel`).

pub(crate) mod commands;
mod console;
mod event_text;
mod find;
mod follow;
mod input_buffer;
pub(crate) mod list;
pub(crate) mod logs;
mod question;
pub(crate) mod show;
pub(crate) mod start;
mod status_line;
pub(crate) mod times;

use std::io::{IsTerminal, Read, Write};

pub(crate) use console::{ConsoleEvent, InputConsole, InputInterest};

use abide_host::clock::SystemClock;
use abide_ports::clock::Clock;
use abide_wire::run::RunStatusValue;
use anyhow::Context;
use serde::Serialize;

use crate::{error::CliError, table::TextStyle, terminal_text};

/// Generates a unique idempotency key.
fn new_idempotency_key() -> String {
    format!("cli-{}", SystemClock.stamp().id_seed)
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let line = serde_json::to_string(value).context("cannot encode the output as JSON")?;
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// Prints agent output to standard output; on a terminal, control characters are escaped.
pub(crate) fn print_text(words: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        writeln!(out, "{}", terminal_text::escape_control_chars(words))?;
    } else {
        writeln!(out, "{words}")?;
    }
    out.flush()?;
    Ok(())
}

/// Returns a text argument; `-` reads standard input. An empty text is an error.
pub(crate) fn read_text_argument(argument: &str, label: &str) -> anyhow::Result<String> {
    let text = if argument == "-" { read_stdin()? } else { argument.to_owned() };
    if text.trim().is_empty() {
        return Err(CliError::usage(format!("{label} is empty; give some text")).into());
    }
    Ok(text)
}

/// Reads standard input without its final line end.
fn read_stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_INPUT_BYTES + 1)
        .read_to_end(&mut bytes)
        .context("cannot read standard input")?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        let detail = "standard input is longer than 8 MiB; put it into a file of the workspace and name it";
        return Err(CliError::usage(detail).into());
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        CliError::usage("standard input is not text in UTF-8; convert it, or name the file instead")
    })?;
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

/// Maximum input in bytes; more than the daemon accepts.
const MAX_INPUT_BYTES: u64 = 8 << 20;

/// Returns the wire name of a status.
fn status_name(status: RunStatusValue) -> &'static str {
    match status {
        RunStatusValue::Queued => "queued",
        RunStatusValue::Running => "running",
        RunStatusValue::WaitingUser => "waiting_user",
        RunStatusValue::Idle => "idle",
        RunStatusValue::Succeeded => "succeeded",
        RunStatusValue::Failed => "failed",
        RunStatusValue::Canceled => "canceled",
    }
}

/// Returns the style of a status.
fn status_style(status: RunStatusValue) -> TextStyle {
    match status {
        RunStatusValue::Queued | RunStatusValue::Idle => TextStyle::Plain,
        RunStatusValue::Running | RunStatusValue::Succeeded => TextStyle::Success,
        RunStatusValue::WaitingUser => TextStyle::Warning,
        RunStatusValue::Failed => TextStyle::Error,
        RunStatusValue::Canceled => TextStyle::Dim,
    }
}
