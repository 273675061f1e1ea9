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
//! `ABIDE_TEST_GUARD_PAUSE_MS` is the time for which the crash guard quarantines an operation (`up/assembly.rs`).

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use abide_host::home_folders::HomeFolder;
use abide_os::{
    failpoint::{self, FailpointPlan},
    private_file,
};
use anyhow::Context;

use crate::home;

/// The failpoints of the daemon.
const NAMES: &[&str] = &["before_commit", "after_commit", "effect_started", "effect_performed"];

/// The processes to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailpointVictims {
    Daemon,
    All,
    Keepers,
    Children,
}

/// Reads the chosen failpoint from the environment.
pub(super) fn install() -> anyhow::Result<()> {
    let victims = match home::variable("ABIDE_TEST_FAILPOINT_VICTIMS").as_deref() {
        None => FailpointVictims::Daemon,
        Some("all") => FailpointVictims::All,
        Some("keepers") => FailpointVictims::Keepers,
        Some("children") => FailpointVictims::Children,
        Some(text) => anyhow::bail!("cannot parse ABIDE_TEST_FAILPOINT_VICTIMS={text}"),
    };
    let home = home::home()?;
    home::prepare(&home)?;
    let path = home.join("failpoints");
    let log = private_file::open(File::options().create(true).append(true), &path);
    let log = log.with_context(|| format!("cannot open {}", path.display()))?;
    let text = home::variable("ABIDE_TEST_FAILPOINT");
    let plan = FailpointPlan::parse(text.as_deref(), NAMES, log);
    let plan =
        plan.with_context(|| format!("cannot parse ABIDE_TEST_FAILPOINT={}", text.unwrap_or_default()))?;
    let keepers = HomeFolder::Keepers.path(&home);
    failpoint::install(move |name, _| plan.record(name, |log| victims.kill(&keepers, log)));
    Ok(())
}

impl FailpointVictims {
    /// Kills keepers of runs, their children, or both, and then this process if it is a victim. A keeper is killed
    /// first, so that it cannot record the exit of its child. `keepers_dir` is the parent of all keepers' directories.
    fn kill(self, keepers_dir: &Path, log: &mut dyn Write) {
        match self {
            Self::Daemon => {}
            Self::All => kill_keepers(keepers_dir, true, true, log),
            Self::Keepers => return kill_keepers(keepers_dir, true, false, log),
            Self::Children => return kill_keepers(keepers_dir, false, true, log),
        }
        failpoint::kill_this_process();
    }
}

fn kill_keepers(keepers_dir: &Path, keepers: bool, children: bool, log: &mut dyn Write) {
    let processes = processes();
    for (keeper, _) in &processes {
        let Ok(place) = fs::read_link(format!("/proc/{keeper}/cwd")) else { continue };
        let Some(name) = place.file_name().and_then(|name| name.to_str()) else { continue };
        // A keeper's working directory contains the file `secret`; that of its children does not.
        if !place.starts_with(keepers_dir) || !name.starts_with("run_") || !place.join("secret").exists() {
            continue;
        }
        let held = processes.iter().filter(|(_, parent)| parent == keeper).map(|(pid, _)| *pid);
        let held: Vec<i32> = held.filter(|_| children).collect();
        // A missing line fails the test that reads the log.
        if keepers {
            writeln!(log, "killed keeper {name}").ok();
            kill(*keeper);
        } else if !held.is_empty() {
            writeln!(log, "killed child {name}").ok();
        }
        held.into_iter().for_each(kill);
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
