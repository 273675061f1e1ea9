//! Finds and kills processes whose keeper was killed.
//!
//! A keeper ends all its descendants. When it is killed itself, they are reparented. They are found as children of this
//! process, if it is a subreaper, and by an entry of their environment. Neither needs a file of the keeper, which may
//! have been killed before it wrote one.

use std::fs;

use abide_os::process::PidFd;
use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpid};

use crate::process_tree;

/// Maximum number of scans for leftovers.
const MAX_SCANS: u32 = 200;
/// Number of consecutive scans without a result. One scan misses a process that is forking, or whose environment cannot
/// be read because it is executing a program.
const REQUIRED_EMPTY_SCANS: u32 = 4;
const SCAN_INTERVAL_NS: i64 = 5_000_000;

/// Makes this process the subreaper of all processes that lose their keeper. Returns whether that succeeded. A process
/// that already has children, because a shell with background jobs executed it, does not become one: those children
/// must not be ended.
pub fn adopt_orphans() -> bool {
    process_tree::children(std::process::id()).is_empty() && set_child_subreaper(Some(getpid())).is_ok()
}

/// Kills and reaps all children of this process and their descendants, except `keepers`. Only for a subreaper that
/// starts no processes but keepers.
pub fn end_orphans(keepers: &[u32]) {
    let own = std::process::id();
    kill_until_gone(|| {
        let orphans = process_tree::children(own).into_iter().filter(|child| !keepers.contains(child));
        orphans.filter_map(PidFd::of_child).collect()
    });
}

/// Kills every process with this entry (`NAME=VALUE`) in its initial environment, and its descendants.
pub fn kill_by_env_entry(entry: &str) {
    let own = std::process::id();
    kill_until_gone(|| {
        let others = process_tree::all_pids().into_iter().filter(|pid| *pid != own);
        others.filter_map(|pid| PidFd::open(pid, |_| has_env_entry(pid, entry))).collect()
    });
}

/// Whether a process has this entry in its initial environment. False for processes of other users.
fn has_env_entry(pid: u32, entry: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|line| line == entry.as_bytes())
}

/// Kills the processes returned by `find`, until it returns none.
fn kill_until_gone(find: impl Fn() -> Vec<PidFd>) {
    let mut empty_scans = 0;
    for _ in 0..MAX_SCANS {
        let found = find();
        empty_scans = if found.is_empty() { empty_scans + 1 } else { 0 };
        if empty_scans >= REQUIRED_EMPTY_SCANS {
            return;
        }
        for root in found {
            for process in process_tree::descendants_of(&root, &[]) {
                process.signal(Signal::KILL);
            }
            // A process that could not be killed is found again.
            root.signal(Signal::KILL).ok();
            // A process that is not a child of this one is reaped by its parent.
            if let Some(pid) = i32::try_from(root.pid()).ok().and_then(Pid::from_raw) {
                waitpid(Some(pid), WaitOptions::NOHANG).ok();
            }
        }
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: SCAN_INTERVAL_NS };
        // Only a pause; its result does not matter.
        rustix::event::poll(&mut [], Some(&pause)).ok();
    }
}
