//! The only module that starts processes: clients start keepers, and keepers start their children.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pty_process::blocking::Command as PtyCommand;
use rustix::fs::{Access, access};

use crate::confine::{ExecReportPipe, helper};
use crate::lane::OutputPipes;
use crate::place::KeeperDir;
use crate::protocol::{KeeperRefusal, KeeperSpec};
use crate::script::ShellDriver;

/// The connection of the keeper to the standard streams of its child.
#[derive(Debug)]
pub(crate) enum ChildIo {
    /// The writing end of standard input. The output is read through [`OutputPipes`].
    Pipes(Option<OwnedFd>),
    /// A shell that reads its script from the [`ShellDriver`].
    Shell,
    /// The controlling side of the child's pseudo-terminal.
    Pty(OwnedFd),
}

/// Starts a new keeper in its own process group. It inherits only `channel`.
pub(crate) fn spawn_keeper(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    channel: OwnedFd,
) -> io::Result<Child> {
    command(program.as_os_str())
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(channel))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Starts a child with pipes; returns its pid.
pub(crate) fn spawn_piped(
    spec: &KeeperSpec,
    place: &KeeperDir,
    lane: [OwnedFd; 2],
) -> Result<(u32, ChildIo), KeeperRefusal> {
    let [out, err] = lane;
    let report = report(spec, place)?;
    let mut command = prepared(spec, report.as_ref())?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::from(out))
        .stderr(Stdio::from(err))
        .spawn()
        .map_err(|error| refused(spec, &error))?;
    let input = child.stdin.take().map(OwnedFd::from);
    if let Some(input) = &input {
        rustix::io::ioctl_fionbio(input, true).map_err(|error| KeeperRefusal::System(error.to_string()))?;
    }
    drop(command);
    executed(report, &mut child)?;
    Ok((child.id(), ChildIo::Pipes(input)))
}

/// Starts a shell that reads its script from the [`ShellDriver`].
pub(crate) fn spawn_shell(
    spec: &KeeperSpec,
    prompter: &ShellDriver,
    lane: [OwnedFd; 2],
) -> Result<(u32, ChildIo), KeeperRefusal> {
    let [out, err] = lane;
    let mut command = prepared(spec, None)?;
    let child = command
        .arg(prompter.script_path())
        .stdin(File::open("/dev/null").map_err(|error| KeeperRefusal::System(error.to_string()))?)
        .stdout(Stdio::from(out))
        .stderr(Stdio::from(err))
        .spawn()
        .map_err(|error| refused(spec, &error))?;
    Ok((child.id(), ChildIo::Shell))
}

/// Starts a child on a new pseudo-terminal.
pub(crate) fn spawn_on_pty(
    spec: &KeeperSpec,
    place: &KeeperDir,
    rows: u16,
    cols: u16,
) -> Result<(u32, ChildIo), KeeperRefusal> {
    check(spec)?;
    let report = report(spec, place)?;
    let failed =
        |error: pty_process::Error| KeeperRefusal::System(format!("cannot open a terminal: {error}"));
    let (pty, pts) = pty_process::blocking::open().map_err(failed)?;
    pty.resize(pty_process::Size::new(rows, cols)).map_err(failed)?;
    let (program, arguments) = spec.argv.split_first().ok_or(KeeperRefusal::Program(String::new()))?;
    let prefix = report.as_ref().map(|report| report.prefix(&spec.confinement));
    let started = match &prefix {
        Some(prefix) => PtyCommand::new(helper()).args(prefix).arg(program),
        None => PtyCommand::new(program),
    };
    let mut child = started
        .args(arguments)
        .env_clear()
        .envs(spec.env.iter().map(|(key, value)| (key, value)))
        .current_dir(&spec.cwd)
        .spawn(pts)
        .map_err(|error| KeeperRefusal::Program(format!("{program}: {error}")))?;
    let pty = OwnedFd::from(pty);
    executed(report, &mut child)?;
    rustix::io::ioctl_fionbio(&pty, true).map_err(|error| KeeperRefusal::System(error.to_string()))?;
    Ok((child.id(), ChildIo::Pty(pty)))
}

/// The pipe on which the exec helper of a confined child reports. None if the child is not confined, or is confined
/// together with its keeper.
fn report(spec: &KeeperSpec, place: &KeeperDir) -> Result<Option<ExecReportPipe>, KeeperRefusal> {
    if spec.confinement.is_empty() || spec.is_confined_with_keeper() {
        return Ok(None);
    }
    ExecReportPipe::new(place.path()).map(Some).map_err(|error| KeeperRefusal::System(error.to_string()))
}

/// Waits until a confined child has executed its program. A child that fails to do so is killed and reaped.
fn executed(report: Option<ExecReportPipe>, child: &mut Child) -> Result<(), KeeperRefusal> {
    let Some(report) = report else { return Ok(()) };
    report.wait(child.id()).inspect_err(|_| {
        child.kill().ok();
        child.wait().ok();
    })
}

fn prepared(spec: &KeeperSpec, report: Option<&ExecReportPipe>) -> Result<Command, KeeperRefusal> {
    check(spec)?;
    let (program, arguments) = spec.argv.split_first().ok_or(KeeperRefusal::Program(String::new()))?;
    let mut command = match report {
        Some(report) => {
            let mut started = command(helper());
            started.args(report.prefix(&spec.confinement)).arg(program);
            started
        }
        None => command(program.as_ref()),
    };
    command.args(arguments).env_clear().envs(spec.env.iter().map(|(key, value)| (key, value)));
    command.current_dir(&spec.cwd).process_group(0);
    Ok(command)
}

/// Checks the directory and the program before the start, because a failed spawn returns the same error number for
/// both.
fn check(spec: &KeeperSpec) -> Result<(), KeeperRefusal> {
    let cwd = spec.cwd.as_path();
    if !cwd.is_dir() || access(cwd, Access::EXEC_OK).is_err() {
        return Err(KeeperRefusal::Directory(cwd.display().to_string()));
    }
    let program = spec.argv.first().map_or("", String::as_str);
    if program.contains('/') {
        let path = cwd.join(program);
        if !path.is_file() || access(&path, Access::EXEC_OK).is_err() {
            return Err(KeeperRefusal::Program(program.to_owned()));
        }
    }
    Ok(())
}

fn refused(spec: &KeeperSpec, error: &io::Error) -> KeeperRefusal {
    KeeperRefusal::Program(format!("{}: {error}", spec.argv.first().map_or("", String::as_str)))
}

#[expect(clippy::disallowed_methods, reason = "this is the door: every process of ours starts here")]
pub(crate) fn command(program: &OsStr) -> Command {
    Command::new(program)
}

/// Creates the output pipes for a child that is about to be started.
pub(crate) fn first_lane() -> Result<(OutputPipes, [OwnedFd; 2]), KeeperRefusal> {
    OutputPipes::new(0, 0).map_err(|error| KeeperRefusal::System(error.to_string()))
}
