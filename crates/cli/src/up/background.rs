//! The daemon in the background: found, or started in a session of its own and waited for until it is ready.
//!
//! Whoever comes while another one starts it waits for that start and uses its daemon.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use abide_keeper::background::DetachedCommand;
use abide_store::LossPolicy;
use anyhow::Context;
use rustix::event::Timespec;

use super::{DaemonAddress, lock};
use crate::{config::GivenSetting, home, private, text, trouble::CliError};

/// A daemon that takes requests.
#[derive(Debug)]
pub(crate) struct RunningDaemon {
    /// Where it is.
    pub(crate) address: DaemonAddress,
    /// Whether it was started just now.
    pub(crate) fresh: bool,
}

/// How often, and how often at the most, another one's daemon is looked for that has not said yet where it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOKS: u32 = 300;

/// The flag by which the daemon knows that nobody sees its terminal.
pub(crate) const BACKGROUND: &str = "background";

/// The daemon of this home; started with these settings if there is none.
pub(crate) fn find_or_start(home: &Path, given: &[GivenSetting]) -> anyhow::Result<RunningDaemon> {
    find_or_start_with(home, given, LossPolicy::Refuse)
}

/// The same, for a store that may have lost acknowledged input.
pub(super) fn find_or_start_with(
    home: &Path,
    given: &[GivenSetting],
    loss: LossPolicy,
) -> anyhow::Result<RunningDaemon> {
    if let Some(address) = DaemonAddress::find(home) {
        return Ok(RunningDaemon { address, fresh: false });
    }
    private::home(home)?;
    let _until_it_is_there = lock::starting(home)?;
    if let Some(address) = DaemonAddress::find(home) {
        return Ok(RunningDaemon { address, fresh: false });
    }
    start(home, given, loss)
}

fn start(home: &Path, given: &[GivenSetting], loss: LossPolicy) -> anyhow::Result<RunningDaemon> {
    let log = BackgroundLog::open(home)?;
    let (ready, tell) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let told = serde_json::to_vec(given).context("cannot pass the settings on")?;
    let (input, settings) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    let accept_loss = (loss == LossPolicy::Accept).then(|| "--accept-loss".to_owned());
    let arguments = ["up".to_owned(), format!("--{BACKGROUND}")].into_iter().chain(accept_loss);
    let arguments: Vec<OsString> = arguments.map(OsString::from).collect();
    let directory = home::variable("HOME").map(PathBuf::from).filter(|path| path.is_dir());
    let mut child = DetachedCommand {
        program: own.as_os_str(),
        arguments: &arguments,
        env: &[("ABIDE_HOME", home.as_os_str())],
        directory: &directory.unwrap_or_else(|| PathBuf::from("/")),
        input: Some(input),
        output: Some(tell),
        errors: Some(log.file.try_clone().context("cannot share the log")?.into()),
    }
    .start()
    .with_context(|| format!("cannot start {}", own.display()))?;
    // If it is gone already, it has said why.
    let _told_by_its_end = File::from(settings).write_all(&told);
    // It says its address when it is ready, and closes the pipe however it ends.
    let mut line = String::new();
    let heard = BufReader::new(File::from(ready)).read_line(&mut line);
    if heard.is_ok_and(|count| count > 0)
        && let Some(address) = DaemonAddress::find(home)
    {
        return Ok(RunningDaemon { address, fresh: true });
    }
    let how = child.wait().map(|status| format!(" ({status})")).unwrap_or_default();
    // Somebody may have started one by hand at the same moment; then that is the one, once it says where it is.
    for _ in 0..LOOKS {
        if let Some(address) = DaemonAddress::find(home) {
            return Ok(RunningDaemon { address, fresh: false });
        }
        if !lock::is_held(home) {
            break;
        }
        pause(LOOK_EVERY);
    }
    let said = log.end();
    Err(CliError::failure(
        "DAEMON_FAILED",
        format!(
            "the daemon did not start{how}:\n{said}\nall of it is in {}; `abide up` shows it here",
            log.path.display()
        ),
    )
    .into())
}

/// The settings that our starter was given. They come by the input and not as arguments, which everybody on the machine
/// can read: the address of a store may hold a password.
pub(super) fn given() -> anyhow::Result<Vec<GivenSetting>> {
    serde_json::from_reader(std::io::stdin().lock()).context("the settings do not come by the standard input")
}

/// Makes this process independent of the terminal that it was started from.
pub(super) fn leave_terminal() {
    // It fails only for the leader of a group, which is as independent of our starter's.
    let _already_leads_a_group = rustix::process::setsid();
}

/// Lets go of whoever waited for the start.
pub(super) fn let_starter_go() {
    if let Ok(nowhere) = OpenOptions::new().write(true).open("/dev/null") {
        let _kept_open_otherwise = rustix::stdio::dup2_stdout(&nowhere);
    }
}

/// Lets time pass where nothing can be waited for: another process has to come back, or to have room again.
pub(crate) fn pause(time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let _a_signal_is_as_good = rustix::event::poll(&mut [], Some(&time));
}

/// What daemons in the background print.
struct BackgroundLog {
    path: PathBuf,
    file: File,
    /// Where this start's part begins.
    from: u64,
}

/// A log that has grown beyond this is begun anew.
const MOST_LOG: u64 = 1 << 20;
/// How much of its end is shown.
const SHOWN_LINES: usize = 12;

impl BackgroundLog {
    fn open(home: &Path) -> anyhow::Result<Self> {
        let path = home.join("logs").join("background.log");
        let open = || {
            private::directory(&home.join("logs"))?;
            let file = private::open(OpenOptions::new().create(true).append(true).read(true), &path)?;
            if file.metadata()?.len() > MOST_LOG {
                file.set_len(0)?;
            }
            let from = file.metadata()?.len();
            Ok::<_, std::io::Error>((file, from))
        };
        let (file, from) = open().with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Self { path, file, from })
    }

    fn end(&self) -> String {
        let mut said = Vec::new();
        let mut file = &self.file;
        let read =
            file.seek(SeekFrom::Start(self.from)).and_then(|_| file.take(MOST_LOG).read_to_end(&mut said));
        if read.is_err() || said.is_empty() {
            return "  it said nothing".to_owned();
        }
        let said = text::tame(&String::from_utf8_lossy(&said));
        let lines: Vec<&str> = said.lines().collect();
        let shown = lines.iter().skip(lines.len().saturating_sub(SHOWN_LINES));
        shown.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}
