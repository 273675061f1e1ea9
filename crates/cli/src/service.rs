//! Commands for the daemon: `abide status` and `abide down`.
//!
//! Neither starts a daemon.

use std::{io::Write, process::ExitCode, time::Duration};

use abide_wire::service::{DaemonStatus, StopDaemonRequest, StopDaemonResponse, StoppedRunView};

use crate::{
    args::{DownArguments, OutputArguments},
    client::DaemonClient,
    config::GivenSetting,
    error::{CliError, CliErrorKind, eprint_line},
    exit::{FAILED, SUCCEEDED},
    runs::times,
    table::{self, ColourMode, TextStyle},
    terminal_text,
};

/// Time limit for the exit of the daemon after a stop.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn status(output: &OutputArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let Some(client) = DaemonClient::connect_existing(overrides)? else {
        return Err(CliError::failure(
            "NOT_RUNNING",
            "no daemon is running; start it with `abide up --detach`",
        )
        .into());
    };
    let status = client.status()?;
    let mut out = std::io::stdout().lock();
    if output.json {
        writeln!(out, "{}", serde_json::to_string(&status)?)?;
        return Ok(if status.store_error.is_none() { SUCCEEDED } else { FAILED });
    }
    for line in lines(&status, &client.address().url()) {
        writeln!(out, "{line}")?;
    }
    Ok(if status.store_error.is_none() { SUCCEEDED } else { FAILED })
}

fn lines(status: &DaemonStatus, url: &str) -> Vec<String> {
    let DaemonStatus { version, pid, started_at, ready, slots_max, slots_held, queued, .. } = status;
    let state = match &status.store_error {
        Some(error) => TextStyle::Error.cell(terminal_text::one_line(error)),
        None if *ready => TextStyle::Success.cell("ready"),
        None => TextStyle::Warning.cell("recovering"),
    };
    let questions = match status.open_interactions {
        0 => TextStyle::Plain.cell("none open"),
        open => TextStyle::Warning.cell(format!("{open} open; `abide inbox` lists them")),
    };
    let runs: Vec<String> = status
        .runs
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let runs = if runs.is_empty() { "none yet".to_owned() } else { runs.join(", ") };
    let row = |name: &str, cell| vec![TextStyle::Heading.cell(name), cell];
    let plain = |name: &str, text: String| row(name, TextStyle::Plain.cell(text));
    let mut rows = vec![
        row("state", state),
        plain("address", url.to_owned()),
        plain("daemon", format!("abide {version}, pid {pid}, since {}", times::date_time(started_at))),
        plain("slots", format!("{slots_held} of {slots_max} in use, {queued} runs queued")),
        row("questions", questions),
        plain("runs", runs),
        plain("sessions", status.sessions.to_string()),
    ];
    if let Some(pressure) = &status.resource_pressure {
        let blocked_text = format!(
            "{}; no run starts and no new input is accepted until then",
            terminal_text::one_line(pressure)
        );
        rows.push(row("disk space", TextStyle::Error.cell(blocked_text)));
    }
    if !status.stalled.is_empty() {
        let silent = format!("no output: {}", status.stalled.join(", "));
        rows.push(row("stalled", TextStyle::Warning.cell(silent)));
    }
    for (run, reason) in &status.unprocessable_runs {
        let damage_text = format!(
            "{}: {}; see `abide verify`",
            terminal_text::one_line(run),
            terminal_text::one_line(reason)
        );
        rows.push(row("damaged run", TextStyle::Error.cell(damage_text)));
    }
    table::format_rows(&rows, ColourMode::of_stdout())
}

pub(crate) fn down(arguments: &DownArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let nothing = StopDaemonResponse::default();
    let Some(client) = DaemonClient::connect_existing(overrides)? else {
        eprint_line("abide: no daemon is running");
        if arguments.output.json {
            writeln!(out, "{}", serde_json::to_string(&nothing)?)?;
        }
        return Ok(SUCCEEDED);
    };
    let daemon = client.address();
    let stopping = match client.stop(StopDaemonRequest { keep: arguments.keep }) {
        Ok(stopping) => stopping,
        // The daemon may exit before its response is received.
        Err(error) if error.kind == CliErrorKind::Unreachable && daemon.wait_for_exit(EXIT_TIMEOUT) => {
            nothing
        }
        Err(error) => return Err(error.into()),
    };
    if !daemon.wait_for_exit(EXIT_TIMEOUT) {
        return Err(CliError::failure(
            "STILL_RUNNING",
            format!(
                "the daemon, pid {}, has not ended yet; `abide status` shows its state",
                daemon.process.pid
            ),
        )
        .into());
    }
    if arguments.output.json {
        writeln!(out, "{}", serde_json::to_string(&stopping)?)?;
        return Ok(SUCCEEDED);
    }
    if arguments.keep {
        writeln!(out, "stopped; sessions and running turns continue, and the next `abide up` takes over")?;
        return Ok(SUCCEEDED);
    }
    let StopDaemonResponse { turns, waiting_runs, runs, sessions } = &stopping;
    writeln!(
        out,
        "stopped; ended {} turns, {} waiting processes, {sessions} sessions",
        turns.len(),
        waiting_runs.len()
    )?;
    for run in runs {
        writeln!(out, "{}: {}", run.run_id, describe_stopped_run(run))?;
    }
    Ok(SUCCEEDED)
}

/// Describes the state of a run after the stop.
fn describe_stopped_run(run: &StoppedRunView) -> String {
    if !run.stopped {
        return "its process did not end in time; its keeper supervises it until the next daemon takes over"
            .to_owned();
    }
    let before = match run.activity_before_stop.as_str() {
        "turn" => "its turn was stopped",
        "wait" => "the process that waited was ended",
        _ => "its turn had not started",
    };
    let now = match run.status.as_str() {
        "waiting_user" if run.activity_before_stop == "wait" => {
            "its request is void, and it asks whether to continue or stop".to_owned()
        }
        "waiting_user" => "it asks whether to continue or stop".to_owned(),
        "idle" => "the chat is idle".to_owned(),
        "queued" => "it is queued for the next daemon".to_owned(),
        "running" => "it starts with the next daemon".to_owned(),
        status => match &run.error {
            Some(error) => format!("{status}: {} ({})", terminal_text::one_line(&error.message), error.code),
            None => status.to_owned(),
        },
    };
    format!("{before}; {now}")
}
