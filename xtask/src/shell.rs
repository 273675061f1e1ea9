//! Starts all programs that the commands of this binary run.
//!
//! Each command is printed before it runs, so that it can be repeated by hand. A termination signal is forwarded to the
//! running commands, and the command then unwinds as after a failure; this stops a temporary server on Ctrl-C. No shell
//! is used; arguments are passed unchanged.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use std::{env, thread};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A command that is printed before it runs.
pub(crate) struct EchoedCommand {
    command: Command,
}

/// The account of a command that must not run under ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnixUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl EchoedCommand {
    /// Creates a command that inherits our environment without its `ABIDE_…` variables: settings in a developer's shell
    /// must not configure the binaries that tests and benchmarks start.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut shell = Self::with_settings(program);
        let settings = env::vars_os().map(|(name, _)| name);
        for name in settings.filter(|name| name.as_encoded_bytes().starts_with(b"ABIDE_")) {
            shell.command.env_remove(name);
        }
        shell
    }

    /// Creates a command that inherits our whole environment.
    #[expect(clippy::disallowed_methods, reason = "the only function of xtask that starts programs")]
    pub(crate) fn with_settings(program: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(program) }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Passes only `PATH` of our environment.
    pub(crate) fn path_only_env(mut self) -> Self {
        self.command.env_clear();
        match env::var_os("PATH") {
            Some(path) => self.env("PATH", path),
            None => self,
        }
    }

    /// Passes nothing of our environment; variables for the command are set after this call.
    pub(crate) fn empty_env(mut self) -> Self {
        self.command.env_clear();
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn user(mut self, user: Option<UnixUser>) -> Self {
        if let Some(UnixUser { uid, gid }) = user {
            self.command.uid(uid).gid(gid);
        }
        self
    }

    /// Prints and runs the command with our own input and output; fails unless it succeeds.
    pub(crate) fn run(mut self) -> Result<()> {
        eprintln!("+ {}", self.line());
        let mut child = self.spawn()?;
        let running = ForegroundChild::enter(&child);
        let status = child.wait();
        drop(running);
        let status = status.with_context(|| format!("could not wait for `{}`", self.line()))?;
        if interrupted() {
            bail!("interrupted");
        }
        if !status.success() {
            bail!("`{}` failed with {status}", self.line());
        }
        Ok(())
    }

    /// Runs the command silently and returns its output.
    pub(crate) fn read(mut self) -> Result<String> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn()?;
        let running = ForegroundChild::enter(&child);
        let output = child.wait_with_output();
        drop(running);
        let output = output.with_context(|| format!("could not wait for `{}`", self.line()))?;
        self.check_output(output)
    }

    /// Runs the command silently and returns its output, also if it fails; its standard error is shown.
    pub(crate) fn read_even_on_failure(mut self) -> Result<String> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = self.spawn()?;
        let running = ForegroundChild::enter(&child);
        let output = child.wait_with_output();
        drop(running);
        let output = output.with_context(|| format!("could not wait for `{}`", self.line()))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Like `read`, but kills the command and its process group after `limit`.
    pub(crate) fn read_within(mut self, limit: Duration) -> Result<String> {
        self.command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let group = Pid::from_child(&child);
        let running = ForegroundChild::enter(&child);
        let (done, ended) = mpsc::channel();
        let mut stderr = child.stderr.take();
        // Both pipes are read concurrently: a command that fills one of them would otherwise never end.
        let errors = thread::spawn(move || drain(&mut stderr));
        thread::spawn(move || {
            let mut stdout = child.stdout.take();
            let stdout = drain(&mut stdout);
            let stderr = errors.join().unwrap_or_default();
            let _ = done.send(child.wait().map(|status| Output { status, stdout, stderr }));
        });
        let output = ended.recv_timeout(limit);
        drop(running);
        match output {
            Ok(output) => {
                let output = output.with_context(|| format!("could not wait for `{}`", self.line()))?;
                self.check_output(output)
            }
            Err(_) => {
                // The process has not been reaped, so the id still belongs to this group.
                let _ = kill_process_group(group, Signal::KILL);
                bail!("`{}` did not end within {} s", self.line(), limit.as_secs())
            }
        }
    }

    /// Starts the command in its own process group, so that the terminal's Ctrl-C does not reach it, with standard
    /// error on a pipe. The caller must end it.
    pub(crate) fn start(mut self) -> Result<Child> {
        eprintln!("+ {} &", self.line());
        self.command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        self.spawn()
    }

    /// Starts the command in its own process group with pipes for input and output; standard error goes to `log`. The
    /// caller must end it.
    pub(crate) fn start_with_pipes(mut self, log: File) -> Result<Child> {
        self.command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        self.spawn()
    }

    fn check_output(&self, output: Output) -> Result<String> {
        if interrupted() {
            bail!("interrupted");
        }
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`{}` failed with {}: {}", self.line(), output.status, stderr.trim());
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{}` printed bytes, not text", self.line()))
    }

    fn spawn(&mut self) -> Result<Child> {
        self.command.spawn().with_context(|| self.cannot_start())
    }

    fn cannot_start(&self) -> String {
        format!("could not start `{}`", self.line())
    }

    /// Formats the command for a shell. Environment variables are left out: some are secrets.
    fn line(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(shell_quote).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the first program of this name on the path.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|candidate| candidate.is_file())
}

/// Forwards SIGINT and SIGTERM to the running commands from now on, instead of exiting.
pub(crate) fn watch_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("could not listen for signals")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            INTERRUPTED.store(true, Ordering::SeqCst);
            // The terminal has sent SIGINT to the whole foreground group; nextest would take a second one as "kill at
            // once".
            if signal == SIGINT && io::stdin().is_terminal() {
                continue;
            }
            forward_signal();
        }
    });
    Ok(())
}

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

fn forward_signal() {
    for child in current().iter() {
        // It may have exited in the meantime.
        let _ = kill_process(*child, Signal::TERM);
    }
}

fn current() -> MutexGuard<'static, Vec<Pid>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a command for the forwarding of signals until it is dropped.
struct ForegroundChild(Pid);

impl ForegroundChild {
    fn enter(child: &Child) -> Self {
        let pid = Pid::from_child(child);
        current().push(pid);
        // The signal may have come before the command was registered.
        if interrupted() {
            forward_signal();
        }
        Self(pid)
    }
}

impl Drop for ForegroundChild {
    fn drop(&mut self) {
        current().retain(|pid| *pid != self.0);
    }
}

/// Reads until the pipe is closed. After an error, the bytes read so far are returned.
fn drain(pipe: &mut Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

fn shell_quote(word: &OsStr) -> String {
    let word = OsString::from(word).to_string_lossy().into_owned();
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The processes to which signals are forwarded; empty between commands.
static CURRENT: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::EchoedCommand;

    #[test]
    fn a_failure_names_the_command_as_one_would_type_it() {
        let error = EchoedCommand::new("sh").args(["-c", "exit 3"]).run().unwrap_err();
        assert_eq!(error.to_string(), "`sh -c 'exit 3'` failed with exit status: 3");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = EchoedCommand::new("no-such-program").args(["--version"]).read().unwrap_err();
        assert_eq!(error.to_string(), "could not start `no-such-program --version`");
    }

    #[test]
    fn output_is_returned_completely() {
        assert_eq!(EchoedCommand::new("printf").args(["a b\n"]).read().unwrap(), "a b\n");
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let error =
            EchoedCommand::new("sleep").arg("600").read_within(Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "`sleep 600` did not end within 0 s");
    }

    #[test]
    fn a_command_that_ends_in_time_is_read_normally() {
        let limit = Duration::from_secs(600);
        assert_eq!(EchoedCommand::new("printf").args(["a"]).read_within(limit).unwrap(), "a");
        let error =
            EchoedCommand::new("sh").args(["-c", "echo no >&2; exit 3"]).read_within(limit).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c 'echo no >&2; exit 3'` failed with exit status: 3: no");
    }

    #[test]
    fn a_command_does_not_see_the_settings_of_the_shell() {
        let names = |shell: EchoedCommand| -> Vec<String> {
            let environment = shell.read().unwrap();
            let names = environment.lines().filter_map(|line| line.split('=').next());
            names.filter(|name| name.starts_with("ABIDE_")).map(str::to_owned).collect()
        };
        if std::env::vars_os().any(|(name, _)| name == "ABIDE_LISTEN") {
            assert_eq!(names(EchoedCommand::new("env")), [""; 0]);
            assert!(names(EchoedCommand::with_settings("env")).contains(&"ABIDE_LISTEN".to_owned()));
            assert_eq!(
                names(EchoedCommand::new("env").env("ABIDE_TEST_SKIPS", "given")),
                ["ABIDE_TEST_SKIPS"]
            );
            return;
        }
        // The environment of this process must not be changed, so the test runs itself as a child.
        let own = "shell::tests::a_command_does_not_see_the_settings_of_the_shell";
        let itself = EchoedCommand::new(std::env::current_exe().unwrap()).args(["--exact", own]);
        let output = itself.env("ABIDE_LISTEN", "not an address").read().unwrap();
        assert!(output.contains("1 passed"), "{output}");
    }

    #[test]
    fn a_clean_command_sees_the_path_and_what_it_is_given() {
        let environment = EchoedCommand::new("env").path_only_env().env("GIVEN", "1").read().unwrap();
        let names: Vec<&str> = environment.lines().filter_map(|line| line.split('=').next()).collect();
        assert_eq!(names, ["GIVEN", "PATH"]);
    }
}
