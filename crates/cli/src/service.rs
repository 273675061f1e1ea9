//! Commands for the daemon: `abide status` and `abide down`.
//!
//! Neither starts a daemon.

use std::{io::Write, process::ExitCode, time::Duration};

use abide_keeper::identity::ProcessIdentity;
use abide_wire::service::{DaemonStatus, StopDaemonRequest, StopDaemonResponse, StoppedRunView};

use crate::{
    args::{DownArguments, OutputArguments},
    client::DaemonClient,
    config::GivenSetting,
    exit::{FAILED, SUCCEEDED},
    runs::when,
    table::{self, ColourMode, TextStyle},
    text,
    trouble::{CliError, CliErrorKind, note},
};

pub(crate) fn status(output: &OutputArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let Some(client) = DaemonClient::existing(given)? else {
        return Err(CliError::failure(
            "NOT_RUNNING",
            "no daemon runs here; `abide up --detach` starts one, as do commands that need it",
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
        Some(error) => TextStyle::Bad.cell(text::one_line(error)),
        None if *ready => TextStyle::Good.cell("ready"),
        None => TextStyle::Careful.cell("taking up what it found"),
    };
    let questions = match status.open_interactions {
        0 => TextStyle::Plain.cell("none open"),
        open => TextStyle::Careful.cell(format!("{open} open; `abide inbox` lists them")),
    };
    let runs: Vec<String> = status
        .runs
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let runs = if runs.is_empty() { "none yet".to_owned() } else { runs.join(", ") };
    let fact = |name: &str, cell| vec![TextStyle::Head.cell(name), cell];
    let plain = |name: &str, text: String| fact(name, TextStyle::Plain.cell(text));
    let mut rows = vec![
        fact("state", state),
        plain("address", url.to_owned()),
        plain("daemon", format!("abide {version}, pid {pid}, since {}", when::full(started_at))),
        plain("slots", format!("{slots_held} of {slots_max} taken, {queued} runs queued")),
        fact("questions", questions),
        plain("runs", runs),
        plain("sessions", status.sessions.to_string()),
    ];
    if let Some(pressure) = &status.resource_pressure {
        let held_back =
            format!("{}; no run starts and nothing new is taken until then", text::one_line(pressure));
        rows.push(fact("disk space", TextStyle::Bad.cell(held_back)));
    }
    if !status.stalled.is_empty() {
        let silent = format!("silent for long: {}", status.stalled.join(", "));
        rows.push(fact("stalled", TextStyle::Careful.cell(silent)));
    }
    for (run, reason) in &status.troubled {
        let trouble = format!("{}: {}; see `abide verify`", text::one_line(run), text::one_line(reason));
        rows.push(fact("trouble", TextStyle::Bad.cell(trouble)));
    }
    table::lines(&rows, ColourMode::of_stdout())
}

pub(crate) fn down(arguments: &DownArguments, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let nothing = StopDaemonResponse::default();
    let Some(client) = DaemonClient::existing(given)? else {
        note("abide: no daemon runs here");
        if arguments.output.json {
            writeln!(out, "{}", serde_json::to_string(&nothing)?)?;
        }
        return Ok(SUCCEEDED);
    };
    let daemon = client.address().process;
    let stopping = match client.stop(StopDaemonRequest { keep: arguments.keep }) {
        Ok(stopping) => stopping,
        // The daemon may exit before its response is received.
        Err(trouble) if trouble.kind == CliErrorKind::Unreachable && ends(&daemon) => nothing,
        Err(trouble) => return Err(trouble.into()),
    };
    if !ends(&daemon) {
        return Err(CliError::failure(
            "STILL_RUNNING",
            format!("the daemon, pid {}, has not ended yet; `abide status` shows what it does", daemon.pid),
        )
        .into());
    }
    if arguments.output.json {
        writeln!(out, "{}", serde_json::to_string(&stopping)?)?;
        return Ok(SUCCEEDED);
    }
    if arguments.keep {
        writeln!(out, "stopped; sessions and running turns go on, and `abide up` takes them up again")?;
        return Ok(SUCCEEDED);
    }
    let StopDaemonResponse { turns, waits, runs, sessions } = &stopping;
    writeln!(
        out,
        "stopped; ended {} turns, {} waiting processes, {sessions} sessions",
        turns.len(),
        waits.len()
    )?;
    for run in runs {
        writeln!(out, "{}: {}", run.run_id, became(run))?;
    }
    Ok(SUCCEEDED)
}

/// Describes the state of a run after the stop.
fn became(run: &StoppedRunView) -> String {
    if !run.stopped {
        return "its process did not end in time; its keeper holds it, and the next daemon takes it up"
            .to_owned();
    }
    let before = match run.was.as_str() {
        "turn" => "its turn was stopped",
        "wait" => "the process that waited was ended",
        _ => "its turn had not started",
    };
    let now = match run.status.as_str() {
        "waiting_user" if run.was == "wait" => {
            "its request is void, and it asks whether to continue or stop".to_owned()
        }
        "waiting_user" => "it asks whether to continue or stop".to_owned(),
        "idle" => "the chat is idle".to_owned(),
        "queued" => "it is queued for the next daemon".to_owned(),
        "running" => "it starts with the next daemon".to_owned(),
        status => match &run.error {
            Some(error) => format!("{status}: {} ({})", text::one_line(&error.message), error.code),
            None => status.to_owned(),
        },
    };
    format!("{before}; {now}")
}

/// Time limit for the exit of the daemon after a stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for the exit of a process. Returns whether it exited in time.
fn ends(process: &ProcessIdentity) -> bool {
    process.open().is_none_or(|process| process.wait(PATIENCE))
}
