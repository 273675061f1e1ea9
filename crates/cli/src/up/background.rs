//! The daemon in the background: finds it, or starts it in its own session and waits until it is ready.
//!
//! Concurrent callers wait for the start in progress and use its daemon.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use abide_host::home_folders::HomeFolder;
use abide_keeper::detached::DetachedCommand;
use abide_os::private_file;
use abide_store::LossPolicy;
use anyhow::Context;
use rustix::event::Timespec;

use super::{DaemonAddress, lock};
use crate::{config::GivenSetting, error::CliError, home, terminal_text};

/// A daemon that accepts requests.
#[derive(Debug)]
pub(crate) struct RunningDaemon {
    pub(crate) address: DaemonAddress,
    /// Whether this call started it.
    pub(crate) started_now: bool,
}

/// Interval and number of polls for the address of a daemon that another process has started.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const MAX_POLLS: u32 = 300;

/// The hidden flag that marks a daemon without a terminal.
pub(crate) const BACKGROUND_FLAG: &str = "background";

/// Finds the daemon of this home, or starts it with these settings.
pub(crate) fn find_or_start(home: &Path, overrides: &[GivenSetting]) -> anyhow::Result<RunningDaemon> {
    find_or_start_with(home, overrides, LossPolicy::Refuse)
}

/// Like [`find_or_start`], with a policy for lost acknowledged input.
pub(super) fn find_or_start_with(
    home: &Path,
    overrides: &[GivenSetting],
    loss: LossPolicy,
) -> anyhow::Result<RunningDaemon> {
    if let Some(address) = DaemonAddress::find(home) {
        return Ok(RunningDaemon { address, started_now: false });
    }
    home::prepare(home)?;
    // Held until the daemon is ready, so that only one is started.
    let _lock = lock::lock_start(home)?;
    if let Some(address) = DaemonAddress::find(home) {
        return Ok(RunningDaemon { address, started_now: false });
    }
    start(home, overrides, loss)
}

fn start(home: &Path, overrides: &[GivenSetting], loss: LossPolicy) -> anyhow::Result<RunningDaemon> {
    let log = BackgroundLog::open(home)?;
    let (ready, ready_writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot create a pipe")?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let settings_json = serde_json::to_vec(overrides).context("cannot pass the settings to the daemon")?;
    let (input, settings) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot create a pipe")?;
    let accept_loss = (loss == LossPolicy::Accept).then(|| "--accept-loss".to_owned());
    let arguments = ["up".to_owned(), format!("--{BACKGROUND_FLAG}")].into_iter().chain(accept_loss);
    let arguments: Vec<OsString> = arguments.map(OsString::from).collect();
    let directory = home::variable("HOME").map(PathBuf::from).filter(|path| path.is_dir());
    let mut child = DetachedCommand {
        program: program.as_os_str(),
        arguments: &arguments,
        env: &[("ABIDE_HOME", home.as_os_str())],
        directory: &directory.unwrap_or_else(|| PathBuf::from("/")),
        input: Some(input),
        output: Some(ready_writer),
        errors: Some(log.file.try_clone().context("cannot share the log")?.into()),
    }
    .start()
    .with_context(|| format!("cannot start {}", program.display()))?;
    // A daemon that exits before it reads its settings is reported by its exit status and log.
    File::from(settings).write_all(&settings_json).ok();
    // The daemon writes its address when it is ready. The pipe is closed when it exits.
    let mut line = String::new();
    let read = BufReader::new(File::from(ready)).read_line(&mut line);
    if read.is_ok_and(|count| count > 0)
        && let Some(address) = DaemonAddress::find(home)
    {
        return Ok(RunningDaemon { address, started_now: true });
    }
    let exit_text = child.wait().map(|status| format!(" ({status})")).unwrap_or_default();
    // Another daemon may have been started at the same time. It is used when it has published its address.
    for _ in 0..MAX_POLLS {
        if let Some(address) = DaemonAddress::find(home) {
            return Ok(RunningDaemon { address, started_now: false });
        }
        if !lock::is_held(home) {
            break;
        }
        sleep(POLL_INTERVAL);
    }
    let log_tail = log.last_lines();
    Err(CliError::failure(
        "DAEMON_FAILED",
        format!(
            "the daemon did not start{exit_text}:\n{log_tail}\nall of it is in {}; `abide up` shows it here",
            log.path.display()
        ),
    )
    .into())
}

/// Reads the settings passed by the starting process. They are passed on standard input, because other users can read
/// arguments, and the URL of a store may hold a password.
pub(super) fn read_settings() -> anyhow::Result<Vec<GivenSetting>> {
    serde_json::from_reader(std::io::stdin().lock())
        .context("the settings were not received on standard input")
}

/// Detaches this process from the terminal that it was started from.
pub(super) fn detach_from_terminal() {
    // This fails only for a process group leader, which is already independent of the starter's group.
    rustix::process::setsid().ok();
}

/// Closes standard output, for which the starting process waits.
pub(super) fn release_starter() {
    if let Ok(nowhere) = OpenOptions::new().write(true).open("/dev/null") {
        // If this fails, the starter waits until the daemon exits.
        rustix::stdio::dup2_stdout(&nowhere).ok();
    }
}

/// Sleeps, for conditions of another process that cannot be waited for.
pub(crate) fn sleep(time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // A signal may end the pause early.
    rustix::event::poll(&mut [], Some(&time)).ok();
}

/// The log of daemons in the background.
struct BackgroundLog {
    path: PathBuf,
    file: File,
    /// Offset at which the output of this start begins.
    start_offset: u64,
}

/// Size in bytes from which the log is truncated.
const MAX_LOG_BYTES: u64 = 1 << 20;
/// Number of last lines shown in an error.
const SHOWN_LOG_LINES: usize = 12;

impl BackgroundLog {
    fn open(home: &Path) -> anyhow::Result<Self> {
        let folder = HomeFolder::Logs.path(home);
        let path = folder.join("background.log");
        let open = || {
            private_file::create_dir(&folder)?;
            let file = private_file::open(OpenOptions::new().create(true).append(true).read(true), &path)?;
            if file.metadata()?.len() > MAX_LOG_BYTES {
                file.set_len(0)?;
            }
            let from = file.metadata()?.len();
            Ok::<_, std::io::Error>((file, from))
        };
        let (file, from) = open().with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Self { path, file, start_offset: from })
    }

    fn last_lines(&self) -> String {
        let mut bytes = Vec::new();
        let mut file = &self.file;
        let read = file
            .seek(SeekFrom::Start(self.start_offset))
            .and_then(|_| file.take(MAX_LOG_BYTES).read_to_end(&mut bytes));
        if read.is_err() || bytes.is_empty() {
            return "  no output".to_owned();
        }
        let bytes = terminal_text::escape_control_chars(&String::from_utf8_lossy(&bytes));
        let lines: Vec<&str> = bytes.lines().collect();
        let shown = lines.iter().skip(lines.len().saturating_sub(SHOWN_LOG_LINES));
        shown.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}
