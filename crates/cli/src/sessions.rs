//! `abide sessions`: terminal sessions on the command line, accessed directly through their keepers.
//!
//! Sessions created here belong to the home, not to a process: they stay until they are removed.

mod attach;

use std::io::Write;
use std::process::ExitCode;

use abide_api::translate;
use abide_keeper::launch::KeeperConnection;
use abide_keeper::protocol::{
    CommandInput, KeeperRequest, KeeperResponse, KeeperStatus, OutputStream, ShellCommand, TaggedRequest,
    TaggedResponse,
};
use abide_terminal::{
    CreateSessionRequest, SessionMeta, TerminalCall, TerminalEvent, TerminalReply, TerminalRuntime,
    TerminalSize, session_dirs,
};
use anyhow::{Context, bail};
use serde_json::json;

use crate::args::SessionsCommand;
use crate::config::{self, GivenSetting};
use crate::exit::SUCCEEDED;
use crate::home;
use crate::text;

const STATUS_TIMEOUT_MS: u64 = 2_000;
const NO_TIMEOUT_MS: u64 = u64::MAX / 4_000;

pub(crate) fn run(command: SessionsCommand, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    match command {
        SessionsCommand::Ls { output } => list(output.json),
        SessionsCommand::New { name, shell, cwd, env, pty, output } => {
            let cwd =
                cwd.map(std::path::absolute).transpose()?.map(|path| path.to_string_lossy().into_owned());
            let pty = pty.then(attach::terminal_size);
            new(CreateSessionRequest { shell, cwd, env, name, pty }, output.json, given)
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
    let mut rows = Vec::new();
    for (id, keeper_dir) in session_dirs(&home::home()?.join("keepers")) {
        let Ok(mut keeper) = KeeperConnection::attach(keeper_dir) else { continue };
        let Ok(status) = keeper.status(STATUS_TIMEOUT_MS) else { continue };
        rows.push((id, status));
    }
    let mut out = std::io::stdout().lock();
    if json {
        let sessions: Vec<_> = rows.iter().map(|(id, status)| describe(id, status)).collect();
        writeln!(out, "{}", json!({ "sessions": sessions }))?;
        return Ok(SUCCEEDED);
    }
    writeln!(out, "{:10} {:10} {:>8}  {:20} {:16} NAME", "SESSION", "STATE", "PID", "CREATED", "SHELL")?;
    for (id, status) in &rows {
        let meta = meta(status);
        let created = translate::time(status.created_at / 1_000_000 * 1_000_000);
        // Names and paths come from other programs, so control characters are escaped.
        let name = text::one_line(&meta.name.unwrap_or_default());
        let shell = text::one_line(&meta.shell);
        writeln!(
            out,
            "{id:10} {:10} {:>8}  {created:20} {shell:16} {name}",
            state(status),
            status.child.pid,
        )?;
    }
    Ok(SUCCEEDED)
}

fn new(create: CreateSessionRequest, json: bool, given: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let mut runtime = TerminalRuntime::new(home::terminal_config(&config::load(given)?.config, true)?)?;
    runtime.call(1, TerminalCall::Create(create));
    let info = loop {
        runtime.work();
        let mut answers = runtime.events().into_iter().filter_map(|event| match event {
            TerminalEvent::Reply(1, answer) => Some(*answer),
            TerminalEvent::Reply(..) | TerminalEvent::Chunk(..) => None,
        });
        match answers.next() {
            Some(Ok(TerminalReply::Session(info))) => break info,
            Some(Ok(_)) => bail!("the runtime returned a response of another kind; please report it"),
            Some(Err(error)) => return Err(error.into()),
            None => {
                let mut fds = [rustix::event::PollFd::new(&runtime, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut fds, None)?;
            }
        }
    };
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&translate::session(info))?)?;
    } else {
        writeln!(out, "{}", info.session)?;
    }
    Ok(SUCCEEDED)
}

fn exec(session: &str, command: String, timeout: Option<f64>, json: bool) -> anyhow::Result<ExitCode> {
    let mut keeper = find(session)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float that is too large saturates"
    )]
    let timeout_ms = timeout.map(|seconds| (seconds.max(0.0) * 1_000.0) as u64);
    let keep = if json { 1 << 20 } else { 0 };
    let run = ShellCommand {
        text: command.into_bytes(),
        input: CommandInput::Nothing,
        timeout_ms,
        keep,
        follow: !json,
    };
    keeper.socket.send(&TaggedRequest { tag: 1, act: KeeperRequest::Run(run) })?;
    let mut shell_restarted = false;
    loop {
        let answer = keeper.socket.wait::<TaggedResponse>(NO_TIMEOUT_MS)?.context("the session has ended")?;
        match answer.news {
            KeeperResponse::ShellRestarted(_) => shell_restarted = true,
            _ if answer.tag != 1 => {}
            KeeperResponse::Output(output) => match output.stream {
                OutputStream::Stdout => std::io::stdout().write_all(&output.bytes)?,
                OutputStream::Stderr => std::io::stderr().write_all(&output.bytes)?,
            },
            KeeperResponse::Ran(ran) => {
                if let Some(why) = ran.outcome.lost {
                    bail!(why);
                }
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let result = json!({
                    "exec_id": format!("e-{}", ran.outcome.job), "stdout": text(&ran.stdout), "stderr": text(&ran.stderr),
                    "exit_code": ran.outcome.code, "duration_ms": ran.outcome.duration_us / 1_000,
                    "timed_out": ran.outcome.timed_out, "cancelled": ran.outcome.cancelled,
                    "shell_restarted": shell_restarted,
                    "truncated": {
                        "stdout": ran.printed[0] - ran.stdout.len() as u64,
                        "stderr": ran.printed[1] - ran.stderr.len() as u64,
                    },
                });
                writeln!(std::io::stdout(), "{result}")?;
                return exit_with(ran.outcome.code);
            }
            KeeperResponse::Ended(outcome) => {
                std::io::stdout().flush()?;
                if outcome.timed_out {
                    eprintln!("abide: stopped after {} ms", outcome.duration_us / 1_000);
                }
                if shell_restarted {
                    eprintln!("abide: the shell was restarted; its variables and functions are lost");
                }
                if let Some(why) = outcome.lost {
                    bail!(why);
                }
                return exit_with(outcome.code);
            }
            KeeperResponse::Refused(refusal) => bail!("session {session}: {refusal}"),
            KeeperResponse::Done
            | KeeperResponse::Status(_)
            | KeeperResponse::Started(_)
            | KeeperResponse::Piece(_)
            | KeeperResponse::Exited(_)
            | KeeperResponse::Settled(_) => {}
        }
    }
}

fn exit_with(code: i32) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::from(u8::try_from(code.rem_euclid(256)).unwrap_or(1)))
}

fn remove(sessions: &[String], force: bool, json: bool) -> anyhow::Result<ExitCode> {
    for session in sessions {
        let mut keeper = find(session)?;
        if let KeeperResponse::Refused(refusal) =
            keeper.request(1, KeeperRequest::End { force }, NO_TIMEOUT_MS)?
        {
            bail!("session {session}: {refusal}");
        }
        // The keeper process exits last.
        while !keeper.socket.is_closed() {
            keeper.socket.wait::<TaggedResponse>(STATUS_TIMEOUT_MS)?;
        }
        if json {
            writeln!(std::io::stdout(), "{}", json!({ "session_id": session, "state": "TERMINATED" }))?;
        } else {
            writeln!(std::io::stdout(), "{session}")?;
        }
    }
    Ok(SUCCEEDED)
}

/// Finds a session by its id, or by its name if it is unique.
fn find(session: &str) -> anyhow::Result<KeeperConnection> {
    let keepers = home::home()?.join("keepers");
    let mut found = Vec::new();
    for (id, keeper_dir) in session_dirs(&keepers) {
        let Ok(mut keeper) = KeeperConnection::attach(keeper_dir) else { continue };
        let Ok(status) = keeper.status(STATUS_TIMEOUT_MS) else { continue };
        if id == session {
            return Ok(keeper);
        }
        if meta(&status).name.as_deref() == Some(session) {
            found.push(keeper);
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(keeper), true) => Ok(keeper),
        (Some(_), false) => {
            bail!("several sessions are named {}; use the id", text::one_line(session))
        }
        (None, _) => {
            bail!("there is no session {}; `abide sessions ls` lists them", text::one_line(session))
        }
    }
}

fn meta(status: &KeeperStatus) -> SessionMeta {
    serde_json::from_slice(&status.meta).unwrap_or_default()
}

fn state(status: &KeeperStatus) -> &'static str {
    match (&status.exit, &status.running) {
        (Some(_), _) => "TERMINATED",
        (None, Some(_)) => "RUNNING",
        (None, None) => "IDLE",
    }
}

fn describe(id: &str, status: &KeeperStatus) -> serde_json::Value {
    let meta = meta(status);
    json!({
        "session_id": id, "name": meta.name, "state": state(status), "shell": meta.shell, "cwd": meta.cwd,
        "pid": status.child.pid, "created_at": translate::time(status.created_at),
        "last_activity_at": translate::time(status.last_activity_at), "command_count": status.jobs,
        "env_keys": meta.env_keys, "pty": meta.pty.is_some(), "exit_code": status.exit.as_ref().map(|exit| exit.code),
    })
}

/// Terminal size if our own is unknown.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };
