//! Examines all engines concurrently, with the daemon's own probe, in a temporary directory.

use std::{
    io::{IsTerminal, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use abide_daemon::probe::{self, ProbeRequest};
use abide_host::processes::{KeeperProcesses, StandbyPolicy, TrackedKeepers};
use abide_os::program_lookup;
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{AdapterBasis, EngineHealth, EngineInstallation},
    processes::Processes,
};
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::home;

#[derive(Debug)]
pub(super) struct ExaminedEngine {
    pub(super) name: String,
    /// The command; empty if the engine is disabled.
    pub(super) command: Vec<String>,
    /// Path of the program.
    pub(super) program: Option<PathBuf>,
    /// The evidence that its adapter was written and tested with.
    pub(super) evidence: AdapterBasis,
    pub(super) state: ExaminedState,
}

#[derive(Debug)]
pub(super) enum ExaminedState {
    /// The probe has completed.
    Probed(EngineHealth),
    /// The engine is disabled in the configuration.
    Disabled,
}

/// Result of the examination of all engines.
#[derive(Debug)]
pub(super) enum ExaminationEnd {
    Done(Vec<ExaminedEngine>),
    Interrupted,
}

impl ExaminedEngine {
    pub(super) fn disabled(name: &str) -> Self {
        let state = ExaminedState::Disabled;
        Self {
            name: name.to_owned(),
            command: vec![],
            program: None,
            evidence: AdapterBasis::Recorded,
            state,
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        matches!(&self.state, ExaminedState::Probed(EngineHealth { failure: None, .. }))
    }
}

/// Message to the collecting thread.
enum ExaminationUpdate {
    Examined(usize, EngineHealth),
    Interrupted,
}

/// Examines all engines concurrently. Each check is limited by its own timeout or by the given one, whichever is
/// shorter.
pub(super) fn examine(
    entries: Vec<InstalledEngine>,
    timeout: Option<Duration>,
) -> anyhow::Result<ExaminationEnd> {
    // Checks run in an empty directory, so that files in the current directory do not influence them.
    let folder = tempfile::Builder::new().prefix("abide-doctor-").tempdir();
    let folder = folder.context("cannot create a temporary directory")?;
    let workspace = folder.path().join("workspace");
    std::fs::create_dir(&workspace).context("cannot create a temporary directory")?;
    let directory = workspace.to_string_lossy().into_owned();
    let keepers = KeeperProcesses {
        directory: folder.path().join("keepers"),
        launcher: home::launcher()?,
        env: home::child_environment(),
        isolator: None,
        retained_output_bytes: RETAINED_OUTPUT_BYTES,
        keepers: TrackedKeepers::default(),
        standby: StandbyPolicy::None,
    };
    let (sender, updates) = channel();
    on_interruption(sender.clone())?;
    let cancel = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            let (sender, keepers, directory, cancel) = (sender.clone(), &keepers, &directory, &cancel);
            workers.push(scope.spawn(move || {
                let unique = number.to_string();
                let is_cancelled = || cancel.load(Ordering::Acquire);
                let examination =
                    ProbeRequest { directory, unique: &unique, timeout, is_cancelled: &is_cancelled };
                let health = probe::examine(keepers, entry, &examination);
                // The receiver is dropped after an interrupt.
                sender.send(ExaminationUpdate::Examined(number, health)).ok();
            }));
        }
        let all_over = || workers.iter().all(|worker| worker.is_finished());
        collect(&entries, &keepers, &updates, &cancel, &all_over)
    });
    reap(&keepers);
    ended
}

/// Reaps the keepers. A keeper deletes its directory before it exits, so it may still be running for a moment.
fn reap(keepers: &KeeperProcesses) {
    if keepers.names().is_empty() {
        keepers.keepers.await_exits();
    }
}

/// Output kept of a check, in bytes; more than a probe reads.
const RETAINED_OUTPUT_BYTES: u64 = 8 << 20;

fn collect(
    entries: &[InstalledEngine],
    keepers: &KeeperProcesses,
    updates: &Receiver<ExaminationUpdate>,
    cancel: &AtomicBool,
    all_over: &dyn Fn() -> bool,
) -> anyhow::Result<ExaminationEnd> {
    let mut results: Vec<Option<EngineHealth>> = entries.iter().map(|_| None).collect();
    let mut interrupted = false;
    let mut progress = ProgressLine::new();
    while results.contains(&None) {
        let waiting = entries.iter().zip(&results).filter(|(_, health)| health.is_none());
        let waiting: Vec<&str> = waiting.map(|(entry, _)| entry.engine.name()).collect();
        progress.show(&format!("checking {}", waiting.join(", ")));
        let over = all_over();
        match updates.recv_timeout(POLL_INTERVAL) {
            Ok(ExaminationUpdate::Examined(number, health)) => results[number] = Some(health),
            Ok(ExaminationUpdate::Interrupted) => {
                interrupted = true;
                cancel.store(true, Ordering::Release);
            }
            // A finished worker has sent its result unless it panicked.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if over => {
                anyhow::bail!("a check of an engine failed")
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if interrupted {
            // Ends all checks in progress. A check that starts meanwhile is ended in the next iteration.
            for name in keepers.names() {
                // A failure is retried in the next iteration.
                keepers.terminate(&name).ok();
            }
        }
    }
    progress.clear();
    if interrupted {
        return Ok(ExaminationEnd::Interrupted);
    }
    let engines = entries.iter().zip(results.into_iter().flatten()).map(|(entry, health)| ExaminedEngine {
        name: entry.engine.name().to_owned(),
        command: entry.installation.command.clone(),
        program: program(&entry.installation),
        evidence: entry.engine.adapter_basis(),
        state: ExaminedState::Probed(health),
    });
    Ok(ExaminationEnd::Done(engines.collect()))
}

/// Interval at which the state of the workers is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the path of the program that the system would start.
fn program(installation: &EngineInstallation) -> Option<PathBuf> {
    let search = installation.env.get("PATH").cloned().or_else(|| home::variable("PATH"));
    program_lookup::find(installation.command.first()?, &search.unwrap_or_default())
}

/// Handles SIGINT and SIGTERM. Keepers outlive the process that started them, so they must be ended before this one
/// exits.
fn on_interruption(sender: Sender<ExaminationUpdate>) -> anyhow::Result<()> {
    let (mut reader, writer) = UnixStream::pair().context("cannot create a socket pair")?;
    for signal in [SIGINT, SIGTERM] {
        let writer = writer.try_clone().context("cannot listen for signals")?;
        signal_hook::low_level::pipe::register(signal, writer).context("cannot listen for signals")?;
    }
    std::thread::spawn(move || {
        if reader.read_exact(&mut [0]).is_ok() {
            // The receiver is dropped when the examination has ended.
            sender.send(ExaminationUpdate::Interrupted).ok();
        }
    });
    Ok(())
}

/// A status line on standard error that is overwritten. Shown only on a terminal.
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
            // The progress line is optional.
            write!(std::io::stderr(), "\r\x1b[2K{text}…").ok();
        }
    }

    fn clear(&self) {
        if self.visible {
            // The progress line is optional.
            write!(std::io::stderr(), "\r\x1b[2K").ok();
        }
    }
}
