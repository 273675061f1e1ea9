//! Failpoints of the daemon: kills the process at a chosen point, as a power failure would. Only in builds with the
//! feature `failpoints`, which are never shipped.
//!
//! `ABIDE_TEST_FAILPOINT=after_commit:7` kills this process right after its seventh commit. The other points are
//! `before_commit`, `effect_started` and `effect_performed`. Each point reached is logged as a line in the home's file
//! `failpoints`, so that a run without a kill shows how many there are.
//!
//! `ABIDE_TEST_FAILPOINT_VICTIMS` selects the processes to kill: `all` (every keeper of a run, its child, and then this
//! process), `keepers` or `children` (only those); by default only this process. Each kill is logged to the same file
//! before it happens.
//!
//! `ABIDE_TEST_GUARD_PAUSE_MS` is the time for which the crash guard sets an operation aside (`up/assembly.rs`).

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

use abide_daemon::failpoint::{self, DaemonFailpoint};
use abide_os::private_file;
use anyhow::Context;

use crate::{home, private};

/// The chosen failpoint, the counters of all points, and the log.
struct FailpointWatch {
    place: Option<(DaemonFailpoint, u64)>,
    victims: FailpointVictims,
    /// The parent folder of all keepers' directories.
    keepers: PathBuf,
    reached: Mutex<[u64; 4]>,
    log: File,
}

/// The processes to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailpointVictims {
    Daemon,
    All,
    Keepers,
    Children,
}

static WATCH: OnceLock<FailpointWatch> = OnceLock::new();

/// Reads the chosen failpoint from the environment.
pub(crate) fn install() -> anyhow::Result<()> {
    let place = match home::variable("ABIDE_TEST_FAILPOINT") {
        Some(text) => {
            Some(parse(&text).with_context(|| format!("cannot parse ABIDE_TEST_FAILPOINT={text}"))?)
        }
        None => None,
    };
    let victims = match home::variable("ABIDE_TEST_FAILPOINT_VICTIMS").as_deref() {
        None => FailpointVictims::Daemon,
        Some("all") => FailpointVictims::All,
        Some("keepers") => FailpointVictims::Keepers,
        Some("children") => FailpointVictims::Children,
        Some(text) => anyhow::bail!("cannot parse ABIDE_TEST_FAILPOINT_VICTIMS={text}"),
    };
    let keepers = home::home()?.join("keepers");
    let path = home::home()?.join("failpoints");
    private::prepare_home(&home::home()?)?;
    let log = private_file::open(File::options().create(true).append(true), &path);
    let log = log.with_context(|| format!("cannot open {}", path.display()))?;
    // A watch that was installed before stays.
    WATCH.set(FailpointWatch { place, victims, keepers, reached: Mutex::default(), log }).ok();
    failpoint::install(reached);
    Ok(())
}

fn parse(text: &str) -> Option<(DaemonFailpoint, u64)> {
    let (name, number) = text.split_once(':')?;
    let point = [
        DaemonFailpoint::BeforeCommit,
        DaemonFailpoint::AfterCommit,
        DaemonFailpoint::EffectStarted,
        DaemonFailpoint::EffectPerformed,
    ]
    .into_iter()
    .find(|point| told(*point) == name)?;
    Some((point, number.parse().ok()?))
}

fn told(point: DaemonFailpoint) -> &'static str {
    match point {
        DaemonFailpoint::BeforeCommit => "before_commit",
        DaemonFailpoint::AfterCommit => "after_commit",
        DaemonFailpoint::EffectStarted => "effect_started",
        DaemonFailpoint::EffectPerformed => "effect_performed",
    }
}

fn reached(point: DaemonFailpoint) {
    let Some(watch) = WATCH.get() else { return };
    let mut reached = watch.reached.lock().unwrap_or_else(PoisonError::into_inner);
    let count = &mut reached[point as usize];
    *count += 1;
    // A missing line fails the test that reads the log.
    writeln!(&watch.log, "{}:{count}", told(point)).ok();
    if watch.place == Some((point, *count)) {
        watch.kill_others();
        if let FailpointVictims::Keepers | FailpointVictims::Children = watch.victims {
            return;
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // Waits for the signal to be delivered. The lock stops all other threads that reach a failpoint.
        loop {
            std::thread::park();
        }
    }
}

impl FailpointWatch {
    /// Kills keepers of runs, their children, or both. A keeper is killed first, so that it cannot record the exit of
    /// its child.
    fn kill_others(&self) {
        let (keepers, children) = match self.victims {
            FailpointVictims::Daemon => return,
            FailpointVictims::All => (true, true),
            FailpointVictims::Keepers => (true, false),
            FailpointVictims::Children => (false, true),
        };
        let processes = processes();
        for (keeper, _) in &processes {
            let Ok(place) = fs::read_link(format!("/proc/{keeper}/cwd")) else { continue };
            let Some(name) = place.file_name().and_then(|name| name.to_str()) else { continue };
            // A keeper's working directory contains the file `secret`; that of its children does not.
            if !place.starts_with(&self.keepers)
                || !name.starts_with("run_")
                || !place.join("secret").exists()
            {
                continue;
            }
            let held = processes.iter().filter(|(_, parent)| parent == keeper).map(|(pid, _)| *pid);
            let held: Vec<i32> = held.filter(|_| children).collect();
            if keepers {
                // A missing line fails the test that reads the log.
                writeln!(&self.log, "killed keeper {name}").ok();
                kill(*keeper);
            } else if !held.is_empty() {
                // A missing line fails the test that reads the log.
                writeln!(&self.log, "killed child {name}").ok();
            }
            held.into_iter().for_each(kill);
        }
    }
}

/// Returns the ids of all processes and of their parents.
fn processes() -> Vec<(i32, i32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?))
    })
    .collect()
}

fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // The process may have exited already.
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
}
