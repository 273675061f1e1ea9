//! The daemon itself, for people: `abide status` and `abide down`.
//!
//! Neither starts one: who asks whether it runs, or wants it gone, does not want a new one.

use std::{io::Write, process::ExitCode};

use abide_keeper::identity::ProcessIdentity;
use abide_wire::service::{Status, StopRequest, Stopping};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::{
    args::{Down, Output},
    client::Client,
    config::Given,
    exit::SUCCEEDED,
    runs::when,
    table::{self, Colour, Look},
    trouble::{Kind, Trouble, note},
};

pub(crate) fn status(output: &Output, given: &[Given]) -> anyhow::Result<ExitCode> {
    let Some(client) = Client::existing(given)? else {
        return Err(Trouble::failure(
            "NOT_RUNNING",
            "no daemon runs here; `abide up --detach` starts one, as do commands that need it",
        )
        .into());
    };
    let status = client.status()?;
    let mut out = std::io::stdout().lock();
    if output.json {
        writeln!(out, "{}", serde_json::to_string(&status)?)?;
        return Ok(SUCCEEDED);
    }
    for line in lines(&status, &client.address().url()) {
        writeln!(out, "{line}")?;
    }
    Ok(SUCCEEDED)
}

fn lines(status: &Status, url: &str) -> Vec<String> {
    let Status { version, pid, started_at, ready, slots_max, slots_held, queued, .. } = status;
    let state = if *ready { Look::Good.cell("ready") } else { Look::Careful.cell("taking up what it found") };
    let questions = match status.open_interactions {
        0 => Look::Plain.cell("none open"),
        open => Look::Careful.cell(format!("{open} open; `abide inbox` lists them")),
    };
    let runs: Vec<String> = status
        .runs
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let runs = if runs.is_empty() { "none yet".to_owned() } else { runs.join(", ") };
    let fact = |name: &str, cell| vec![Look::Head.cell(name), cell];
    let plain = |name: &str, text: String| fact(name, Look::Plain.cell(text));
    let mut rows = vec![
        fact("state", state),
        plain("address", url.to_owned()),
        plain("daemon", format!("abide {version}, pid {pid}, since {}", when::full(started_at))),
        plain("slots", format!("{slots_held} of {slots_max} taken, {queued} runs queued")),
        fact("questions", questions),
        plain("runs", runs),
        plain("sessions", status.sessions.to_string()),
    ];
    if !status.stalled.is_empty() {
        let silent = format!("silent for long: {}", status.stalled.join(", "));
        rows.push(fact("stalled", Look::Careful.cell(silent)));
    }
    table::lines(&rows, Colour::of_stdout())
}

pub(crate) fn down(arguments: &Down, given: &[Given]) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let nothing = Stopping { turns: vec![], waits: vec![], sessions: 0 };
    let Some(client) = Client::existing(given)? else {
        note("abide: no daemon runs here");
        if arguments.output.json {
            writeln!(out, "{}", serde_json::to_string(&nothing)?)?;
        }
        return Ok(SUCCEEDED);
    };
    let daemon = client.address().process;
    let stopping = match client.stop(StopRequest { keep: arguments.keep }) {
        Ok(stopping) => stopping,
        // It may be gone before its answer is.
        Err(trouble) if trouble.kind == Kind::Unreachable && ends(&daemon) => nothing,
        Err(trouble) => return Err(trouble.into()),
    };
    if !ends(&daemon) {
        return Err(Trouble::failure(
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
    let Stopping { turns, waits, sessions } = &stopping;
    writeln!(
        out,
        "stopped; ended {} turns, {} waiting processes, {sessions} sessions",
        turns.len(),
        waits.len()
    )?;
    for run in turns {
        note(format_args!("{run}: its turn was stopped; it waits for you to say how it goes on"));
    }
    for run in waits {
        note(format_args!("{run}: the process that waited with it was ended"));
    }
    Ok(SUCCEEDED)
}

/// How long a daemon that was told to stop may take to go.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Waits for the end of a process. Whether it came.
fn ends(process: &ProcessIdentity) -> bool {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    // It is opened first and looked at then: who is alive after that is the one that we hold.
    if let Some(pid) = pid
        && let Ok(held) = pidfd_open(pid, PidfdFlags::empty())
        && process.is_alive()
    {
        let mut fds = [PollFd::new(&held, PollFlags::IN)];
        let _looked_at_below = poll(&mut fds, Some(&PATIENCE));
    }
    !process.is_alive()
}
