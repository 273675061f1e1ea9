//! The only module that starts processes: clients start keepers, and keepers start their children.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use abide_os::beneath::Directory;
use pty_process::blocking::Command as PtyCommand;
use rustix::event::Timespec;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::clock::boottime_micros;
use crate::confine::{ExecReportPipe, ShellPipes, helper_program};
use crate::keeper_dir::KeeperDir;
use crate::output_pipes::OutputPipes;
use crate::pipe_proxy::PipeProxyStart;
use crate::process_tree;
use crate::protocol::{KeeperRefusal, KeeperSpec, LinkPolicy};
use crate::shell_driver::ShellDriver;

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
    keeper_dir: &KeeperDir,
    output_writers: [OwnedFd; 2],
) -> Result<(u32, ChildIo), KeeperRefusal> {
    let [out, err] = output_writers;
    let report = open_exec_report(spec, keeper_dir)?;
    let cwd = WorkingDirectory::open(spec)?;
    let mut command = build_command(spec, &cwd, report.as_ref(), ShellPipes::None)?;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::from(out))
        .stderr(Stdio::from(err))
        .spawn()
        .map_err(|error| spawn_refusal(spec, &error))?;
    let input = child.stdin.take().map(OwnedFd::from);
    if let Some(input) = &input {
        rustix::io::ioctl_fionbio(input, true).map_err(|error| KeeperRefusal::System(error.to_string()))?;
    }
    drop(command);
    await_exec_report(report, &mut child)?;
    Ok((child.id(), ChildIo::Pipes(input)))
}

/// Starts a shell that reads its script from the [`ShellDriver`].
pub(crate) fn spawn_shell(
    spec: &KeeperSpec,
    keeper_dir: &KeeperDir,
    driver: &mut ShellDriver,
    output_writers: [OwnedFd; 2],
) -> Result<(u32, ChildIo), KeeperRefusal> {
    let [out, err] = output_writers;
    let cwd = WorkingDirectory::open(spec)?;
    let Some(report) = open_exec_report(spec, keeper_dir)? else {
        let mut command = build_command(spec, &cwd, None, ShellPipes::None)?;
        let child = command
            .arg(driver.script_path())
            .stdin(File::open("/dev/null").map_err(|error| KeeperRefusal::System(error.to_string()))?)
            .stdout(Stdio::from(out))
            .stderr(Stdio::from(err))
            .spawn()
            .map_err(|error| spawn_refusal(spec, &error))?;
        return Ok((child.id(), ChildIo::Shell));
    };
    let unshared = |error: Errno| KeeperRefusal::System(format!("cannot share the shell's pipes: {error}"));
    let script = driver.script_reader().ok_or(KeeperRefusal::Unsupported("no script".to_owned()))?;
    let (proxy, input) = PipeProxyStart::new(script).map_err(unshared)?;
    let mut command = build_command(spec, &cwd, Some(&report), ShellPipes::Proxied)?;
    let mut child = command
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(out))
        .stderr(Stdio::from(err))
        .spawn()
        .map_err(|error| spawn_refusal(spec, &error))?;
    drop(command);
    await_exec_report(Some(report), &mut child)?;
    let mut end_child = |error: Errno| {
        child.kill().ok();
        child.wait().ok();
        unshared(error)
    };
    let started = proxy.connect().map_err(&mut end_child)?;
    driver.use_proxy(started.proxy).map_err(&mut end_child)?;
    if started.shell != child.id() {
        // Bubblewrap stays the parent of the shell. Without it, the shell becomes a child of this process, which is a
        // subreaper.
        child.kill().ok();
        child.wait().ok();
        await_exec(started.shell)?;
    }
    Ok((started.shell, ChildIo::Shell))
}

/// Waits until the exec helper with this pid has executed its program. Needed where its report does not tell, because
/// bubblewrap was executed in between.
fn await_exec(pid: u32) -> Result<(), KeeperRefusal> {
    let own = process_tree::executable(std::process::id());
    let give_up_at = boottime_micros() + EXEC_TIMEOUT_US;
    while process_tree::executable(pid) == own && boottime_micros() < give_up_at {
        // Only a pause; its result does not matter.
        rustix::event::poll(&mut [], Some(&EXEC_POLL_INTERVAL)).ok();
    }
    match process_tree::executable(pid) {
        Some(program) if Some(&program) != own.as_ref() => Ok(()),
        Some(_) | None => Err(KeeperRefusal::System("the exec helper does not start the shell".to_owned())),
    }
}

/// Time limit for the exec helper to execute a shell inside bubblewrap, in microseconds.
const EXEC_TIMEOUT_US: u64 = 20_000_000;
const EXEC_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Starts a child on a new pseudo-terminal.
pub(crate) fn spawn_on_pty(
    spec: &KeeperSpec,
    keeper_dir: &KeeperDir,
    rows: u16,
    cols: u16,
) -> Result<(u32, ChildIo), KeeperRefusal> {
    let cwd = WorkingDirectory::open(spec)?;
    check_cwd_and_program(spec, &cwd)?;
    let report = open_exec_report(spec, keeper_dir)?;
    let failed =
        |error: pty_process::Error| KeeperRefusal::System(format!("cannot open a terminal: {error}"));
    let (pty, pts) = pty_process::blocking::open().map_err(failed)?;
    pty.resize(pty_process::Size::new(rows, cols)).map_err(failed)?;
    let (program, arguments) = spec.argv.split_first().ok_or(KeeperRefusal::Program(String::new()))?;
    let prefix = report.as_ref().map(|report| report.prefix(&spec.confinement, ShellPipes::None));
    let started = match &prefix {
        Some(prefix) => PtyCommand::new(helper_program()).args(prefix).arg(program),
        None => PtyCommand::new(program),
    };
    let mut child = started
        .args(arguments)
        .env_clear()
        .envs(spec.env.iter().map(|(key, value)| (key, value)))
        .current_dir(&cwd.path)
        .spawn(pts)
        .map_err(|error| KeeperRefusal::Program(format!("{program}: {error}")))?;
    let pty = OwnedFd::from(pty);
    await_exec_report(report, &mut child)?;
    rustix::io::ioctl_fionbio(&pty, true).map_err(|error| KeeperRefusal::System(error.to_string()))?;
    Ok((child.id(), ChildIo::Pty(pty)))
}

/// The pipe on which the exec helper of a confined child reports. None if the child is not confined.
fn open_exec_report(
    spec: &KeeperSpec,
    keeper_dir: &KeeperDir,
) -> Result<Option<ExecReportPipe>, KeeperRefusal> {
    if spec.confinement.is_empty() {
        return Ok(None);
    }
    ExecReportPipe::new(keeper_dir.path()).map(Some).map_err(|error| KeeperRefusal::System(error.to_string()))
}

/// Waits until a confined child has executed its program. A child that fails to do so is killed and reaped.
fn await_exec_report(report: Option<ExecReportPipe>, child: &mut Child) -> Result<(), KeeperRefusal> {
    let Some(report) = report else { return Ok(()) };
    report.wait(child.id()).inspect_err(|_| {
        child.kill().ok();
        child.wait().ok();
    })
}

/// The working directory of a child. The value must live until the child has entered it.
struct WorkingDirectory {
    path: PathBuf,
    /// The directory that was checked. [`Self::path`] refers to this descriptor, which the child inherits until it
    /// executes its program. So a link that is put into the path after the check has no effect.
    _checked: Option<Directory>,
}

impl WorkingDirectory {
    fn open(spec: &KeeperSpec) -> Result<Self, KeeperRefusal> {
        match spec.cwd_links {
            LinkPolicy::Follow => Ok(Self { path: spec.cwd.clone(), _checked: None }),
            LinkPolicy::Refuse => {
                let opened = Directory::open_without_links(&spec.cwd);
                let checked = opened.map_err(|_| KeeperRefusal::Directory(spec.cwd.display().to_string()))?;
                let path = format!("/proc/self/fd/{}", checked.as_fd().as_raw_fd()).into();
                Ok(Self { path, _checked: Some(checked) })
            }
        }
    }
}

fn build_command(
    spec: &KeeperSpec,
    cwd: &WorkingDirectory,
    report: Option<&ExecReportPipe>,
    pipes: ShellPipes,
) -> Result<Command, KeeperRefusal> {
    check_cwd_and_program(spec, cwd)?;
    let (program, arguments) = spec.argv.split_first().ok_or(KeeperRefusal::Program(String::new()))?;
    let mut command = match report {
        Some(report) => {
            let mut started = command(helper_program());
            started.args(report.prefix(&spec.confinement, pipes)).arg(program);
            started
        }
        None => command(program.as_ref()),
    };
    command.args(arguments).env_clear().envs(spec.env.iter().map(|(key, value)| (key, value)));
    command.current_dir(&cwd.path).process_group(0);
    Ok(command)
}

/// Checks the directory and the program before the start, because a failed spawn returns the same error number for
/// both.
fn check_cwd_and_program(spec: &KeeperSpec, cwd: &WorkingDirectory) -> Result<(), KeeperRefusal> {
    let cwd = cwd.path.as_path();
    if !cwd.is_dir() || access(cwd, Access::EXEC_OK).is_err() {
        return Err(KeeperRefusal::Directory(spec.cwd.display().to_string()));
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

fn spawn_refusal(spec: &KeeperSpec, error: &io::Error) -> KeeperRefusal {
    KeeperRefusal::Program(format!("{}: {error}", spec.argv.first().map_or("", String::as_str)))
}

#[expect(clippy::disallowed_methods, reason = "this is the door: every process of ours starts here")]
pub(crate) fn command(program: &OsStr) -> Command {
    Command::new(program)
}

/// Creates the output pipes for a child that is about to be started.
pub(crate) fn first_output_pipes() -> Result<(OutputPipes, [OwnedFd; 2]), KeeperRefusal> {
    OutputPipes::new(0, 0).map_err(|error| KeeperRefusal::System(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::protocol::{ChildMode, KeeperOwner, SpoolOverflow};

    fn spec(cwd: PathBuf, cwd_links: LinkPolicy) -> KeeperSpec {
        KeeperSpec {
            argv: ["sh", "-c", "pwd -P"].map(str::to_owned).to_vec(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cwd,
            shape: ChildMode::Pipes,
            retention: 0,
            meta: vec![],
            owner: KeeperOwner::Home,
            overflow: SpoolOverflow::DropOldest,
            confinement: vec![],
            group: None,
            cwd_links,
        }
    }

    /// An agent replaces the workspace of another run between the check and the start.
    #[test]
    fn a_child_works_in_the_directory_that_was_checked_and_links_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap();
        let [work, outside, aside] = ["work", "outside", "aside"].map(|name| path.join(name));
        fs::create_dir(&work).unwrap();
        fs::create_dir(&outside).unwrap();
        let refusing = spec(work.clone(), LinkPolicy::Refuse);
        let checked = WorkingDirectory::open(&refusing).unwrap();
        let mut command = build_command(&refusing, &checked, None, ShellPipes::None).unwrap();
        fs::rename(&work, &aside).unwrap();
        symlink(&outside, &work).unwrap();
        let printed = command.output().unwrap().stdout;
        assert_eq!(String::from_utf8(printed).unwrap().trim_end(), aside.to_str().unwrap());
        let refused = WorkingDirectory::open(&refusing).err();
        assert!(matches!(refused, Some(KeeperRefusal::Directory(named)) if named == work.to_string_lossy()));
        assert!(WorkingDirectory::open(&spec(work, LinkPolicy::Follow)).is_ok());
    }
}
