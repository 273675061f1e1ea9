//! `abide sessions`: terminal sessions on the command line, accessed directly through their keepers.
//!
//! Sessions created here belong to the home, not to a process: they stay until they are removed.

mod attach;

use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;

use abide_api::translate::to_wire;
use abide_host::home_folders::HomeFolder;
use abide_os::poll::wait_readable;
use abide_terminal::direct::{
    DirectCommand, DirectCommandEnd, DirectSession, DirectSessionError, list_sessions,
};
use abide_terminal::{
    CallId, CallTicket, CommandOutput, CommandResult, CreateSessionRequest, ExecId, OutputStream,
    SessionInfo, TerminalCall, TerminalEvent, TerminalRuntime, TerminalSize,
};
use anyhow::bail;
use serde_json::json;

use crate::args::SessionsCommand;
use crate::config::{self, GivenSetting};
use crate::exit::{SUCCEEDED, program_exit_code};
use crate::home;
use crate::terminal_text;

/// Maximum bytes of each stream in the JSON result of a command.
const MAX_RESULT_BYTES: u64 = 1 << 20;

pub(crate) fn run(command: SessionsCommand, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    match command {
        SessionsCommand::Ls { output } => list(output.json),
        SessionsCommand::New { name, shell, cwd, env, pty, output } => {
            let cwd =
                cwd.map(std::path::absolute).transpose()?.map(|path| path.to_string_lossy().into_owned());
            let pty = pty.then(attach::terminal_size);
            new(CreateSessionRequest { shell, cwd, env, name, pty }, output.json, overrides)
        }
        SessionsCommand::Exec { session, command, timeout, output } => {
            let command = if let [only] = command.as_slice() { only.clone() } else { command.join(" ") };
            exec(&session, command, timeout, output.json)
        }
        SessionsCommand::Attach { session } => attach::run(find(&session)?),
        SessionsCommand::Rm { sessions, force, output } => remove(&sessions, force, output.json),
    }
}

fn list(json: bool) -> anyhow::Result<ExitCode> {
    let sessions = list_sessions(&HomeFolder::Keepers.path(&home::home()?));
    let mut out = std::io::stdout().lock();
    if json {
        let sessions: Vec<_> = sessions.iter().map(describe).collect();
        writeln!(out, "{}", json!({ "sessions": sessions }))?;
        return Ok(SUCCEEDED);
    }
    writeln!(out, "{:10} {:10} {:>8}  {:20} {:16} NAME", "SESSION", "STATE", "PID", "CREATED", "SHELL")?;
    for info in &sessions {
        let created = to_wire::time(info.created_at / 1_000_000 * 1_000_000);
        // Names and paths come from other programs, so control characters are escaped.
        let name = terminal_text::one_line(info.meta.name.as_deref().unwrap_or_default());
        let shell = terminal_text::one_line(&info.meta.shell);
        writeln!(
            out,
            "{:10} {:10} {:>8}  {created:20} {shell:16} {name}",
            info.session.as_str(),
            info.state.as_str(),
            info.pid,
        )?;
    }
    Ok(SUCCEEDED)
}

fn new(create: CreateSessionRequest, json: bool, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let mut runtime = TerminalRuntime::new(home::terminal_config(&config::load(overrides)?.config, true)?)?;
    let ticket = CallTicket::new(CallId::default());
    runtime.call(TerminalCall::Create(create, ticket));
    let info = loop {
        runtime.work();
        let mut created = runtime
            .events()
            .into_iter()
            .filter_map(|event| if let TerminalEvent::Session(reply) = event { Some(reply) } else { None });
        match created.find(|reply| reply.ticket == ticket) {
            Some(reply) => break (*reply.result)?,
            None => drop(wait_readable(&[runtime.as_fd()], None)?),
        }
    };
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&to_wire::session(info))?)?;
    } else {
        writeln!(out, "{}", info.session)?;
    }
    Ok(SUCCEEDED)
}

fn exec(session: &str, command: String, timeout: Option<f64>, json: bool) -> anyhow::Result<ExitCode> {
    let mut connection = find(session)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float that is too large saturates"
    )]
    let timeout_ms = timeout.map(|seconds| (seconds.max(0.0) * 1_000.0) as u64);
    let output = match json {
        true => CommandOutput::Collected { max_bytes: MAX_RESULT_BYTES },
        false => CommandOutput::Streamed,
    };
    let command = DirectCommand { text: command, timeout_ms, output };
    let end = connection.run(command, &mut |stream, bytes| match stream {
        OutputStream::Stdout => std::io::stdout().write_all(bytes),
        OutputStream::Stderr => std::io::stderr().write_all(bytes),
    });
    let end = end.map_err(|error| refused(session, error))?;
    let outcome = &end.result.outcome;
    if json {
        if let Some(reason) = &outcome.lost {
            bail!(reason.clone());
        }
        writeln!(std::io::stdout(), "{}", describe_result(&end))?;
        return Ok(program_exit_code(outcome.code));
    }
    std::io::stdout().flush()?;
    if outcome.timed_out {
        eprintln!("abide: stopped after {} ms", outcome.duration_us / 1_000);
    }
    if end.shell_restarted {
        eprintln!("abide: the shell was restarted; its variables and functions are lost");
    }
    if let Some(reason) = &outcome.lost {
        bail!(reason.clone());
    }
    Ok(program_exit_code(outcome.code))
}

fn describe_result(end: &DirectCommandEnd) -> serde_json::Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let CommandResult { outcome, stdout, stderr, printed } = &end.result;
    json!({
        "exec_id": ExecId(outcome.job).to_string(), "stdout": text(stdout), "stderr": text(stderr),
        "exit_code": outcome.code, "duration_ms": outcome.duration_us / 1_000,
        "timed_out": outcome.timed_out, "cancelled": outcome.cancelled,
        "shell_restarted": end.shell_restarted,
        "truncated": {
            "stdout": printed[0] - stdout.len() as u64,
            "stderr": printed[1] - stderr.len() as u64,
        },
    })
}

/// Names the session in the error of a refused request.
fn refused(session: &str, error: DirectSessionError) -> anyhow::Error {
    match error {
        DirectSessionError::Refused(refusal) => anyhow::anyhow!("session {session}: {refusal}"),
        other @ (DirectSessionError::NotFound
        | DirectSessionError::Ambiguous
        | DirectSessionError::Ended
        | DirectSessionError::OutputUnwritable(_)
        | DirectSessionError::Keeper(_)) => other.into(),
    }
}

fn remove(sessions: &[String], force: bool, json: bool) -> anyhow::Result<ExitCode> {
    for session in sessions {
        find(session)?.end(force).map_err(|error| refused(session, error))?;
        if json {
            writeln!(std::io::stdout(), "{}", json!({ "session_id": session, "state": "TERMINATED" }))?;
        } else {
            writeln!(std::io::stdout(), "{session}")?;
        }
    }
    Ok(SUCCEEDED)
}

/// Finds a session by its id, or by its name if it is unique.
fn find(session: &str) -> anyhow::Result<DirectSession> {
    match DirectSession::find(&HomeFolder::Keepers.path(&home::home()?), session) {
        Err(DirectSessionError::Ambiguous) => {
            bail!("several sessions are named {}; use the id", terminal_text::one_line(session))
        }
        Err(DirectSessionError::NotFound) => {
            bail!("there is no session {}; `abide sessions ls` lists them", terminal_text::one_line(session))
        }
        result => Ok(result?),
    }
}

fn describe(info: &SessionInfo) -> serde_json::Value {
    json!({
        "session_id": info.session.as_str(), "name": info.meta.name, "state": info.state.as_str(),
        "shell": info.meta.shell, "cwd": info.meta.cwd, "pid": info.pid, "created_at": to_wire::time(info.created_at),
        "last_activity_at": to_wire::time(info.last_activity_at), "command_count": info.command_count,
        "env_keys": info.meta.env_keys, "pty": info.meta.pty.is_some(), "exit_code": info.exit_code,
    })
}

/// Terminal size if our own is unknown.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };
