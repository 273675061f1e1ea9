//! Processes whose keeper was killed: nobody supervises them any more, so they are found by other means and killed.
//!
//! A keeper ends everything below it. When it is killed itself, its descendants get another parent. They are found as
//! children of this process, if it adopts orphans, and by an entry of their environment. Neither needs a file of the keeper:
//! it may have been killed before it wrote one.

use std::fs;

use abide_os::process::PidFd;
use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpid};

use crate::procs;

/// How often leftovers are looked for at most, and how long between two looks.
const MOST_LOOKS: u32 = 200;
/// How many looks in a row must find nothing. One look misses a process that is forking, or whose environment cannot be read
/// because it is executing a program.
const EMPTY_LOOKS: u32 = 4;
const LOOK_NS: i64 = 5_000_000;

/// Makes this process the new parent of everything that loses its keeper. Says whether that was done. A process that has
/// children already, because a shell with background jobs became it, adopts nothing: they are not ours to end.
pub fn adopt_orphans() -> bool {
    procs::children(std::process::id()).is_empty() && set_child_subreaper(Some(getpid())).is_ok()
}

/// Kills and reaps the children of this process, with everything below them, except these. For a process that adopts
/// orphans and starts nothing but keepers.
pub fn end_orphans(keepers: &[u32]) {
    let own = std::process::id();
    kill_until_gone(|| {
        let orphans = procs::children(own).into_iter().filter(|child| !keepers.contains(child));
        orphans.filter_map(PidFd::of_child).collect()
    });
}

/// Kills every process that has this entry (`NAME=VALUE`) in the environment that it was started with, and everything
/// below it.
pub fn end_marked(entry: &str) {
    let own = std::process::id();
    kill_until_gone(|| {
        let others = procs::all_pids().into_iter().filter(|pid| *pid != own);
        others.filter_map(|pid| PidFd::open(pid, |_| has_entry(pid, entry))).collect()
    });
}

/// Whether a process was started with this entry in its environment. Nothing is known about other users' processes.
fn has_entry(pid: u32, entry: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|line| line == entry.as_bytes())
}

/// Kills what is found, until nothing is found any more.
fn kill_until_gone(find: impl Fn() -> Vec<PidFd>) {
    let mut empty = 0;
    for _ in 0..MOST_LOOKS {
        let found = find();
        empty = if found.is_empty() { empty + 1 } else { 0 };
        if empty >= EMPTY_LOOKS {
            return;
        }
        for root in found {
            for process in procs::descendants_of(&root, &[]) {
                process.signal(Signal::KILL);
            }
            // One that cannot be killed is found again.
            root.signal(Signal::KILL).ok();
            // One that is not our child is reaped by its parent.
            if let Some(pid) = i32::try_from(root.pid()).ok().and_then(Pid::from_raw) {
                waitpid(Some(pid), WaitOptions::NOHANG).ok();
            }
        }
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        // Only a pause; what it returns does not matter.
        rustix::event::poll(&mut [], Some(&moment)).ok();
    }
}
