//! All engines examined at once, by the same function that the daemon uses before a run, in a directory of their own.

use std::{
    io::{IsTerminal, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use abide_daemon::probe::{self, ProbeRequest};
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{AdapterBasis, EngineHealth, EngineInstallation},
    processes::Processes,
};
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{
    home, machine,
    processes::{KeeperProcesses, StandbyPolicy},
};

/// An engine as it was found.
#[derive(Debug)]
pub(super) struct ExaminedEngine {
    pub(super) name: String,
    /// How it is called; empty if it is switched off.
    pub(super) command: Vec<String>,
    /// Where its program lies.
    pub(super) program: Option<PathBuf>,
    /// What its adapter was made from.
    pub(super) evidence: AdapterBasis,
    pub(super) state: ExaminedState,
}

/// Whether an engine can be used.
#[derive(Debug)]
pub(super) enum ExaminedState {
    /// It was looked at.
    Seen(EngineHealth),
    /// The owner has switched it off.
    Off,
}

/// How an examination ended.
#[derive(Debug)]
pub(super) enum ExaminationEnd {
    Done(Vec<ExaminedEngine>),
    Interrupted,
}

impl ExaminedEngine {
    pub(super) fn off(name: &str) -> Self {
        let state = ExaminedState::Off;
        Self {
            name: name.to_owned(),
            command: vec![],
            program: None,
            evidence: AdapterBasis::Recorded,
            state,
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        matches!(&self.state, ExaminedState::Seen(EngineHealth { trouble: None, .. }))
    }
}

/// What the one who waits hears.
enum ExaminationUpdate {
    Examined(usize, EngineHealth),
    Interrupted,
}

/// Examines all of them at once; none takes longer than its checks may, or each of them than `patience`.
pub(super) fn examine(
    entries: Vec<InstalledEngine>,
    patience: Option<Duration>,
) -> anyhow::Result<ExaminationEnd> {
    // An empty directory: what lies where we were called from is none of the checks' business.
    let folder = tempfile::Builder::new().prefix("abide-doctor-").tempdir();
    let folder = folder.context("cannot make a temporary directory")?;
    let workspace = folder.path().join("workspace");
    std::fs::create_dir(&workspace).context("cannot make a temporary directory")?;
    let directory = workspace.to_string_lossy().into_owned();
    let keepers = KeeperProcesses {
        directory: folder.path().join("keepers"),
        launcher: home::launcher()?,
        env: home::environment_of_children(),
        isolator: None,
        retention: RETENTION,
        children: Mutex::new(vec![]),
        readiness: StandbyPolicy::None,
    };
    let (sender, news) = channel();
    on_interruption(sender.clone())?;
    let cancel = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            let (sender, keepers, directory, cancel) = (sender.clone(), &keepers, &directory, &cancel);
            workers.push(scope.spawn(move || {
                let unique = number.to_string();
                let examination = ProbeRequest { directory, unique: &unique, patience, cancel };
                let health = probe::examine(keepers, entry, &examination);
                let _nobody_waits_any_more = sender.send(ExaminationUpdate::Examined(number, health));
            }));
        }
        let all_over = || workers.iter().all(|worker| worker.is_finished());
        collect(&entries, &keepers, &news, &cancel, &all_over)
    });
    reap(&keepers);
    ended
}

/// Keepers say that they are done when their directory is gone, and then go themselves: that moment is waited for.
fn reap(keepers: &KeeperProcesses) {
    if keepers.names().is_empty() {
        let mut children = keepers.children.lock().unwrap_or_else(PoisonError::into_inner);
        for mut child in children.drain(..) {
            let _gone_in_any_case = child.wait();
        }
    }
}

/// How much of a check's output is kept; more than is looked at.
const RETENTION: u64 = 8 << 20;

fn collect(
    entries: &[InstalledEngine],
    keepers: &KeeperProcesses,
    news: &Receiver<ExaminationUpdate>,
    cancel: &AtomicBool,
    all_over: &dyn Fn() -> bool,
) -> anyhow::Result<ExaminationEnd> {
    let mut seen: Vec<Option<EngineHealth>> = entries.iter().map(|_| None).collect();
    let mut interrupted = false;
    let mut progress = ProgressLine::new();
    while seen.contains(&None) {
        let waiting = entries.iter().zip(&seen).filter(|(_, health)| health.is_none());
        let waiting: Vec<&str> = waiting.map(|(entry, _)| entry.engine.name()).collect();
        progress.show(&format!("looking at {}", waiting.join(", ")));
        let over = all_over();
        match news.recv_timeout(LOOK_AGAIN) {
            Ok(ExaminationUpdate::Examined(number, health)) => seen[number] = Some(health),
            Ok(ExaminationUpdate::Interrupted) => {
                interrupted = true;
                cancel.store(true, Ordering::Release);
            }
            // Who is over has told before, unless it broke.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if over => {
                anyhow::bail!("an examination broke off")
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if interrupted {
            // Whatever is being checked ends now, and what is started meanwhile at the next look.
            for name in keepers.names() {
                let _tried_again = keepers.end(&name);
            }
        }
    }
    progress.clear();
    if interrupted {
        return Ok(ExaminationEnd::Interrupted);
    }
    let engines = entries.iter().zip(seen.into_iter().flatten()).map(|(entry, health)| ExaminedEngine {
        name: entry.engine.name().to_owned(),
        command: entry.installation.command.clone(),
        program: program(&entry.installation),
        evidence: entry.engine.evidence(),
        state: ExaminedState::Seen(health),
    });
    Ok(ExaminationEnd::Done(engines.collect()))
}

/// How long news is waited for before looking whether any can still come, and what there is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Where the program lies that the system would start.
fn program(installation: &EngineInstallation) -> Option<PathBuf> {
    let search = installation.env.get("PATH").cloned().or_else(|| home::variable("PATH"));
    machine::program(installation.command.first()?, &search.unwrap_or_default())
}

/// Keepers outlive whoever started them, so a person's ctrl-C must not simply end this program.
fn on_interruption(sender: Sender<ExaminationUpdate>) -> anyhow::Result<()> {
    let (mut reader, writer) = UnixStream::pair().context("cannot make a socket pair")?;
    for signal in [SIGINT, SIGTERM] {
        let writer = writer.try_clone().context("cannot listen to signals")?;
        signal_hook::low_level::pipe::register(signal, writer).context("cannot listen to signals")?;
    }
    std::thread::spawn(move || {
        if reader.read_exact(&mut [0]).is_ok() {
            let _nobody_waits_any_more = sender.send(ExaminationUpdate::Interrupted);
        }
    });
    Ok(())
}

/// One line that is written over again, where a person looks.
struct ProgressLine {
    visible: bool,
    written: String,
}

impl ProgressLine {
    fn new() -> Self {
        Self { visible: std::io::stderr().is_terminal(), written: String::new() }
    }

    fn show(&mut self, text: &str) {
        if self.visible && self.written != text {
            text.clone_into(&mut self.written);
            let _only_for_the_eye = write!(std::io::stderr(), "\r\x1b[2K{text}…");
        }
    }

    fn clear(&self) {
        if self.visible {
            let _only_for_the_eye = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
